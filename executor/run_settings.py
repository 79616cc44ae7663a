"""The settings of a run, for any schedule: type, default and meaning of each."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any

from pipesched.executor.settings import Averaging, TransportKind
from pipesched.profiles import Backend, DeviceKind, Dtype, MessagePrecision, OptimizerName
from pipesched.schedules import PredictionRule
from pipesched.schedules.common import LONGEST_S, Description


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The settings of a run."""

    optimizer: Annotated[OptimizerName, Description("Optimizer from torch.optim.")] = "adamw"
    lr: Annotated[float, Description("Learning rate.", least=0.0, most=1e308)] = 1e-3
    seed: Annotated[int, Description("Seed for weights, data and dropout.", least=0, most=2**63 - 1)] = 0
    prediction: Annotated[
        PredictionRule | None,
        Description("Rule for predicting weights where a schedule looks ahead; none: the schedule's own."),
    ] = None
    dtype: Annotated[Dtype, Description("Type of weights and activations, by its name in torch.")] = "float32"
    device: Annotated[DeviceKind, Description("Device of every rank.")] = "cpu"
    transport: Annotated[
        TransportKind,
        Description("A process per rank, or one process with a CUDA stream per rank; auto: streams on GPUs."),
    ] = "auto"
    has_green_contexts: Annotated[
        bool, Description("Give each rank on streams of a GPU multiprocessors of its own.")
    ] = False
    backend: Annotated[
        Backend, Description("Backend of the messages; auto: nccl if every rank has a GPU, else gloo.")
    ] = "auto"
    compression: Annotated[
        MessagePrecision | None, Description("Send activations and gradients in half precision if their values fit.")
    ] = None
    averaging: Annotated[
        Averaging, Description("Elastic averaging: against the last iteration's reference, or wait for this one's.")
    ] = "asynchronous"
    threads: Annotated[int, Description("CPU threads per rank.", least=1, most=1024)] = 1
    timeout_s: Annotated[
        float, Description("Longest wait of a rank for one message [s].", least=0.1, most=LONGEST_S)
    ] = 60.0
    is_pinned: Annotated[
        bool,
        Description(
            "Whether every rank on CPUs gets cores of its own, if there are enough.",
            option="--no-pin",
            turned_off="Let the operating system choose the cores of every rank.",
        ),
    ] = True
    save: Annotated[
        str | None, Description("Folder for the parameters of every stage after the last run; none: nothing is saved.")
    ] = None

    def values(self) -> dict[str, Any]:
        """Return the settings by name, without fields of a subclass."""
        return {field.name: getattr(self, field.name) for field in fields(RunSettings)}


def uses_streams(settings: RunSettings) -> bool:
    """Return whether one process runs all ranks of a model, each on a stream of its device."""
    if settings.transport != "auto":
        return settings.transport == "streams"
    return settings.device == "cuda" and settings.compression is None and settings.backend == "auto"


def stream_fault(settings: RunSettings) -> str | None:
    """Return the first setting that contradicts streams, or None; arguments to change stand in backticks."""
    is_streamed = uses_streams(settings)
    if settings.has_green_contexts and not (is_streamed and settings.device == "cuda"):
        return "has_green_contexts: got True without streams of a GPU, expected `device=cuda` with it; leave it out"
    if is_streamed and settings.backend == "nccl":
        return "backend: got nccl with transport streams, expected processes; try `transport=processes`"
    if is_streamed and settings.device == "cuda" and settings.compression is not None:
        return (
            f"compression: got {settings.compression} on streams of a GPU, expected processes, as the size of a "
            "compressed message is known only when the device is done; try `transport=processes`"
        )
    return None
