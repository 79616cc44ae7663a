"""The settings of a run, for any schedule: type, default and meaning of each."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from pipesched.executor.settings import Averaging, TransportKind
from pipesched.profiles import Backend, DeviceKind, Dtype, MessagePrecision, OptimizerName
from pipesched.schedules import PredictionRule


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The settings of a run; the text beside a type is also its help on the command line."""

    optimizer: Annotated[OptimizerName, "Optimizer from torch.optim."] = "adamw"
    lr: Annotated[float, "Learning rate."] = 1e-3
    seed: Annotated[int, "Seed for weights, data and dropout."] = 0
    prediction: Annotated[
        PredictionRule | None, "Rule for predicting weights where a schedule looks ahead; none: the schedule's own."
    ] = None
    dtype: Annotated[Dtype, "Type of weights and activations, by its name in torch."] = "float32"
    device: Annotated[DeviceKind, "Device of every rank."] = "cpu"
    transport: Annotated[
        TransportKind, "A process per rank, or one process with a CUDA stream per rank; auto: streams on GPUs."
    ] = "auto"
    has_green_contexts: Annotated[bool, "Give each rank on streams of a GPU multiprocessors of its own."] = False
    backend: Annotated[Backend, "Backend of the messages; auto: nccl if every rank has a GPU, else gloo."] = "auto"
    compression: Annotated[
        MessagePrecision | None, "Send activations and gradients in half precision if their values fit."
    ] = None
    averaging: Annotated[
        Averaging, "Elastic averaging: against the last iteration's reference, or wait for this one's."
    ] = "asynchronous"
    threads: Annotated[int, "CPU threads per rank."] = 1
    timeout_s: Annotated[float, "Longest wait of a rank for one message [s]."] = 60.0
    is_pinned: Annotated[bool, "Whether every rank on CPUs gets cores of its own, if there are enough."] = True
    save: Annotated[
        str | None, "Folder for the parameters of every stage after the last run; none: nothing is saved."
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


@cache
def setting_choices() -> dict[str, tuple[object, ...]]:
    """Return the accepted words, and None, of each setting whose values are words."""
    choices: dict[str, tuple[object, ...]] = {}
    for name, hint in get_type_hints(RunSettings).items():
        alternatives = (hint,) if get_origin(hint) is Literal else get_args(hint)
        words = [word for part in alternatives if get_origin(part) is Literal for word in get_args(part)]
        if words:
            choices[name] = (None, *words) if type(None) in alternatives else tuple(words)
    return choices
