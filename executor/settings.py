"""The settings of a run, for any schedule: type, default and meaning of each; names and limits."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, TypeAlias

from pipesched.profiles import Backend, DeviceKind, Dtype, MessagePrecision, OptimizerName
from pipesched.schedules import PredictionRule
from pipesched.schedules.common import LONGEST_S, Counts, Description, shown, tuple_of

How: TypeAlias = Literal["sleep", "busy"]
"""A sleeping emulated stage leaves its core to others; a busy one keeps it."""

TransportKind: TypeAlias = Literal["auto", "processes", "streams"]
"""A process per rank, or all ranks in one process, each on a stream of its GPU."""

RateSchedule: TypeAlias = Literal["constant", "step", "cosine", "linear", "polynomial"]
"""Schedules of the learning rate in torch.optim.lr_scheduler; step is MultiStepLR."""

Averaging: TypeAlias = Literal["asynchronous", "synchronous"]
"""Forms of elastic averaging, as in executor.core.elastic_averager."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Signals that end a run early; blocked while its processes are started."""

PAUSE_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""Signals that let a training run with checkpoints write one and leave."""

PAUSED = 75
"""Exit code of a training run after such a signal: temporary failure in sysexits.h, to be tried again."""

STACKS = signal.SIGUSR2
"""Signal that lets a rank write the Python stacks of its threads."""

LAST_STACKS = signal.SIGVTALRM
"""Signal that lets a stopped rank write its stacks when it continues, and ends it right after, as it has no handler."""

LAUNCHER_S = 2.0
"""Time by which a rank times out later than its launcher, which sees all ranks [s]."""

START_S = 300.0
"""Longest time of the ranks to get ready for their lists: importing, building, meeting [s]."""


def cut_fault(bounds: Sequence[tuple[int, int]], num_layers: int | None = None) -> str | None:
    """Return the first stage whose layers do not continue a cut of the model, or None if every layer has one stage.

    Args:
        bounds: Half-open range of layers of every stage.
        num_layers: Layers of the model, or None if unknown.
    """
    begin, most = 0, 2**31 - 1 if num_layers is None else num_layers
    for stage, (first, last) in enumerate(bounds):
        if first != begin or not first < last <= most:
            limit = "a larger number" if num_layers is None else f"a larger number up to {most}"
            return (
                f"got layers {shown(first)} to {shown(last)} (exclusive) on stage {stage}, expected layers {begin} to "
                f"{limit}; give each layer to one stage, in order"
            )
        begin = last
    if num_layers is None or begin == num_layers:
        return None
    return (
        f"got {begin} layers on {len(bounds)} stages, expected all {num_layers} of the model; give each layer to one "
        "stage"
    )


def epsilon_fault(dtype: str, optimizer: str, rule: PredictionRule | None = None) -> str | None:
    """Return the reason why `dtype` cannot be trained with `optimizer`, or None.

    Adam divides by the root of its second moment plus an epsilon of 1e-8. In float16 that is 0, and so is the moment of
    small gradients: after a step the weights are NaN.

    Args:
        dtype: Name of the data type.
        optimizer: Name in `OPTIMIZERS`.
        rule: Rule of weight prediction; Adam's rule keeps its own moments beside another optimizer.
    """
    adam = (
        optimizer
        if optimizer in ("adam", "adamw")
        else "Adam's rule of prediction"
        if rule is PredictionRule.ADAM
        else None
    )
    if dtype != "float16" or adam is None:
        return None
    other = "`optimizer=momentum`" if adam == optimizer else "`prediction=momentum`"
    return (
        f"got float16 with {adam}, whose epsilon of 1e-08 is 0 in float16, expected bfloat16, float32 or float64; try "
        f"bfloat16, or {other}"
    )


_MOST = 2**31 - 1
"""Most repetitions of a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberSettings:
    """The settings of the numbers of a model."""

    optimizer: Annotated[OptimizerName, Description("Optimizer from torch.optim.")] = "adamw"
    dtype: Annotated[Dtype, Description("Type of weights and activations, by its name in torch.")] = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSettings(NumberSettings):
    """The settings of the computations of a model."""

    device: Annotated[DeviceKind, Description("Device of every rank.")] = "cpu"
    threads: Annotated[int, Description("CPU threads per rank.", least=1, most=1024)] = 1
    seed: Annotated[int, Description("Seed for weights, data and dropout.", least=0, most=2**63 - 1)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings(LayerSettings):
    """The settings of a run."""

    lr: Annotated[float, Description("Learning rate.", least=0.0, most=1e308)] = 1e-3
    clip_grad_norm: Annotated[
        float | None,
        Description(
            "Clip the gradients of each step to this norm; all stages then step together (default: no clipping).",
            least=0.0,
            most=1e308,
        ),
    ] = None
    prediction: Annotated[
        PredictionRule | None,
        Description("Rule for predicting weights in schedules that look ahead (default: the rule of the schedule)."),
    ] = None
    transport: Annotated[
        TransportKind,
        Description("A process per rank, or one process with a CUDA stream per rank; auto: streams on GPUs."),
    ] = "auto"
    has_green_contexts: Annotated[
        bool, Description("Give each rank its own multiprocessors of the GPU; needs streams.")
    ] = False
    backend: Annotated[
        Backend, Description("Backend of the messages; auto: nccl if every rank has a GPU, else gloo.")
    ] = "auto"
    compression: Annotated[
        MessagePrecision | None, Description("Send activations and gradients in half precision if their values fit.")
    ] = None
    averaging: Annotated[
        Averaging,
        Description(
            "Elastic averaging: asynchronous uses the reference model of the last iteration, synchronous waits for the "
            "new one."
        ),
    ] = "asynchronous"
    timeout_s: Annotated[
        float, Description("Time limit for the wait of a rank for one message [s].", least=0.1, most=LONGEST_S)
    ] = 60.0
    is_pinned: Annotated[
        bool,
        Description(
            "Whether every rank on CPUs gets cores of its own, if the machine has enough.",
            option="--no-pin",
            turned_off="Let the operating system choose the cores of every rank.",
        ),
    ] = True
    weights: Annotated[
        str | None,
        Description(
            "Initial weights of the whole model: a .safetensors of its state dict (default: drawn from the seed, or "
            "set by the factory)."
        ),
    ] = None
    save: Annotated[
        str | None,
        Description(
            "Folder for the parameters of every stage after the last run (default: do not save them).", has_option=False
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)  # without slots, as settings are joined
class LearningSettings:
    """The settings of the optimizer over the steps of a training run."""

    panel: ClassVar[str] = "Run"

    weight_decay: Annotated[
        float | None,
        Description("Weight decay (default: as in PyTorch, 0.01 for adamw, else 0).", least=0.0, most=1e308),
    ] = None
    is_nesterov: Annotated[bool, Description("Use Nesterov's momentum; needs optimizer momentum.")] = False
    lr_schedule: Annotated[
        RateSchedule, Description("Schedule of the learning rate over the optimizer steps of the run.")
    ] = "constant"
    lr_milestones: Annotated[
        Counts | None,
        Description(
            "Milestones of schedule step: steps after which it multiplies the learning rate by `lr_factor`.",
            least=1,
            most=_MOST,
        ),
    ] = None
    lr_factor: Annotated[
        float | None,
        Description("Factor on the learning rate at each milestone (default: 0.1).", least=0.0, most=1e308),
    ] = None
    lr_end: Annotated[
        float | None,
        Description(
            "Ratio of the final to the first learning rate, for schedules cosine and linear (default: 0).",
            least=0.0,
            most=1.0,
        ),
    ] = None
    lr_power: Annotated[
        float | None, Description("Power of schedule polynomial (default: 1).", least=0.0, most=1e3)
    ] = None
    lr_warmup: Annotated[
        int,
        Description(
            "Warm-up steps, in which the learning rate grows linearly before its schedule starts.", least=0, most=_MOST
        ),
    ] = 0
    lr_steps: Annotated[
        int | None,
        Description(
            "Steps after which schedules cosine, linear and polynomial end, warm-up included (default: all steps of "
            "the run).",
            least=1,
            most=_MOST,
        ),
    ] = None


RATES_WITH_END: tuple[RateSchedule, ...] = ("cosine", "linear", "polynomial")
"""Schedules of the learning rate that end after a number of steps."""
_RATE_FIELDS: dict[str, tuple[RateSchedule, ...]] = {
    "lr_milestones": ("step",),
    "lr_factor": ("step",),
    "lr_end": ("cosine", "linear"),
    "lr_power": ("polynomial",),
    "lr_steps": RATES_WITH_END,
}
"""Schedules of the learning rate that have each setting."""


def learning_faults(
    settings: LearningSettings, optimizer: str, num_steps: int, *, may_continue: bool = False
) -> Iterator[str]:
    """Yield a message on each setting that contradicts another; backticks mark arguments to change.

    Args:
        settings: Settings, each of them valid.
        optimizer: Name in `OPTIMIZERS`.
        num_steps: Optimizer steps of the run.
        may_continue: Whether a later run may continue this one with more steps.
    """
    schedule, warmup = settings.lr_schedule, settings.lr_warmup
    if settings.is_nesterov and optimizer != "momentum":
        yield f"is_nesterov: got True with optimizer {optimizer}, expected momentum; add `optimizer=momentum`"
    for name, schedules in _RATE_FIELDS.items():
        value = getattr(settings, name)
        if value is not None and schedule not in schedules:
            got = ",".join(map(shown, tuple_of(value))) if name == "lr_milestones" else shown(value)
            expected = " or ".join(schedules)
            yield f"{name}: got {got} with schedule {schedule}, expected {expected}; try `lr_schedule={schedules[0]}`"
    if schedule == "step":
        yield from _milestone_faults(settings, None if may_continue else num_steps)
    if schedule not in RATES_WITH_END:
        return
    length = settings.lr_steps or num_steps
    if warmup >= length:
        yield f"lr_warmup: got {warmup}, expected fewer than the {length} steps of schedule {schedule}; try fewer"
    if schedule == "cosine" and length < num_steps:
        yield (
            f"lr_steps: got {length}, expected at least {num_steps}, the steps of the run: a cosine rises again after "
            "its end; leave `lr_steps` out"
        )


def _milestone_faults(settings: LearningSettings, num_steps: int | None) -> Iterator[str]:
    milestones, warmup = tuple_of(settings.lr_milestones or ()), settings.lr_warmup
    if not milestones:
        yield "lr_milestones: got none with schedule step, expected steps; try `lr_milestones=30,60`"
    elif any(later <= earlier for earlier, later in pairwise(milestones)):
        yield f"lr_milestones: got {','.join(map(shown, milestones))}, expected increasing steps; sort them"
    elif milestones[0] <= warmup:
        yield f"lr_milestones: got {milestones[0]}, expected more than the {warmup} steps of warm-up; try later steps"
    elif num_steps is not None and milestones[-1] >= num_steps:
        yield (
            f"lr_milestones: got {milestones[-1]}, expected steps below {num_steps}, the end of the run; try earlier "
            "steps"
        )


@dataclass(frozen=True, kw_only=True)  # without slots, as settings are joined
class Repetitions:
    """The repeated runs of measured op lists, and the check before them."""

    iterations: Annotated[int, Description("Measured runs of the lists; the median counts.", least=1, most=_MOST)] = 5
    warmup: Annotated[int, Description("Runs before the measured runs.", least=0, most=_MOST)] = 1
    is_checked: Annotated[
        bool,
        Description(
            "Whether lists that cannot finish are refused before they run.",
            option="--no-check",
            turned_off="Run a list that the checker refuses.",
        ),
    ] = True


@dataclass(frozen=True, kw_only=True)  # without slots, as settings are joined
class EmulationSettings:
    """The behaviour of emulated stages."""

    panel: ClassVar[str] = "Run"

    how: Annotated[How, Description("Emulated stages sleep, or keep their cores busy.")] = "sleep"


@dataclass(frozen=True, kw_only=True)  # without slots, as settings are joined
class FaultSettings:
    """Injected faults and numerical checks of a run."""

    panel: ClassVar[str] = "Run"

    inject: Annotated[
        Sequence[str],
        Description(
            "Fault to inject: kill, stop, raise, exit or nan, as kill:rank=2,op=2B3 (in a training with its step, as "
            "kill:rank=2,op=2B3,step=5); slow:rank=1,factor=3, drop-link:0-1,after=10, disk-full."
        ),
    ] = ()
    is_finite_checked: Annotated[
        bool,
        Description("End the run at the first op with NaN or infinity, and name this op.", option="--check-finite"),
    ] = False


def uses_streams(settings: RunSettings) -> bool:
    """Return whether one process runs all ranks of a model, each on a stream of its device."""
    if settings.transport != "auto":
        return settings.transport == "streams"
    return settings.device == "cuda" and settings.compression is None and settings.backend == "auto"


def stream_fault(settings: RunSettings) -> str | None:
    """Return a message on the first setting that contradicts streams, or None; backticks mark arguments to change."""
    is_streamed = uses_streams(settings)
    if settings.has_green_contexts and not (is_streamed and settings.device == "cuda"):
        return "has_green_contexts: got True without streams of a GPU, expected `device=cuda` too; leave it out"
    if is_streamed and settings.backend == "nccl":
        return "backend: got nccl with transport streams, expected processes; try `transport=processes`"
    if is_streamed and settings.device == "cuda" and settings.compression is not None:
        return (
            f"compression: got {settings.compression} on streams of a GPU, expected processes, as the size of a "
            "compressed message is known only after a wait for the device; try `transport=processes`"
        )
    return None
