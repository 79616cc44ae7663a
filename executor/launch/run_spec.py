"""What a run is to do: everything that its processes need to know, as one file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from pipesched.executor import (
    DTYPES,
    Averaging,
    Backend,
    DeviceKind,
    ExecutionError,
    How,
    MessagePrecision,
    epsilon_fault,
)
from pipesched.profiles import ProfileError
from pipesched.profiles.costs import StageCosts
from pipesched.profiles.io import STRICT, NameFromFile, one_line
from pipesched.schedules import LONGEST_S, shown
from pipesched.schedules.weights import PredictionRule

_Kind = TypeVar("_Kind")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """One run of a schedule by one process per rank.

    Attributes:
        schedule: The schedule in JSON (schedules.formats.schedule_json).
        model: As for `resolve_model`; None when emulated.
        bounds: Half-open range of layers of every stage.
        microbatch_size: Samples per micro-batch.
        emulate: Costs of stages that only take time; None to run the model.
        how: Whether emulated stages sleep or spin.
        cluster: The machines to emulate too, in JSON (`cluster_json`): the speeds of the devices, and links that
            hold messages back; None: messages take what they really take.
        optimizer: Name in `OPTIMIZERS`.
        prediction: How weights are predicted where an op looks ahead; None: as the catalogue says of the schedule.
        dtype: Name in `DTYPES`.
        device: ``cpu`` or ``cuda``.
        backend: ``gloo``, ``nccl``, or ``auto``: NCCL where every rank has a GPU of its own, else gloo.
        compression: Of the messages between stages of a model; None for none. Emulated costs have their own.
        averaging: How pipelines are drawn to their reference model, where they are.
        threads: CPU threads per rank.
        iterations: Times that the list is run and measured, after `warmup` runs.
        timeout_s: How long one message may keep a rank waiting.
        is_checked: Whether a list that cannot finish is refused before it runs.
        is_pinned: Whether every rank on CPUs gets cores of its own, where there are enough.
        save: Folder that gets the parameters of every stage after the last run; None for none.
    """

    schedule: str
    model: str | None = None
    bounds: tuple[tuple[int, int], ...] = ()
    microbatch_size: int = 1
    emulate: StageCosts | None = None
    how: How = "sleep"
    cluster: str | None = None
    optimizer: str = "adamw"
    lr: float = 1e-3
    seed: int = 0
    prediction: PredictionRule | None = None
    dtype: str = "float32"
    device: DeviceKind = "cpu"
    backend: Backend = "auto"
    compression: MessagePrecision | None = None
    averaging: Averaging = "asynchronous"
    threads: int = 1
    iterations: int = 5
    warmup: int = 1
    timeout_s: float = 60.0
    is_checked: bool = True
    is_pinned: bool = True
    save: str | None = None

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        faults = list(faults_of(self, {"microbatch_size": 1, "iterations": 1, "warmup": 0}))
        if self.emulate is not None:
            faults += _cost_faults(self.emulate)
        if self.compression is not None and self.emulate is not None:
            faults.append("compression: got half with emulate, expected none: the costs say what is compressed")
        if self.averaging != "asynchronous" and self.emulate is not None:
            faults.append("averaging: got synchronous with emulate, expected none: emulated stages have no reference")
        if self.cluster is not None and self.emulate is None:
            faults.append("cluster: got one without emulate, expected none: the messages of a model are real")
        if faults:
            raise ExecutionError(one_line(faults))


def faults_of(job: Any, counts: Mapping[str, int]) -> Iterator[str]:
    """Yield what is wrong with what every kind of job has: its `counts`, each with its least, dtype, timeout, seed."""
    limits = {name: (least, 2**31 - 1) for name, least in counts.items()} | {"threads": (1, 1024)}
    for name, (least, most) in (limits | {"seed": (-(2**63), 2**63 - 1)}).items():
        value = getattr(job, name)
        if not least <= value <= most:
            bound = f"at least {least}" if value < least else f"at most {most}"
            yield f"{name}: got {shown(value)}, expected {bound}"
    if job.dtype not in DTYPES:
        yield f"dtype: got {shown(job.dtype)}, expected one of {', '.join(DTYPES)}"
    epsilon = None if getattr(job, "emulate", None) is not None else epsilon_fault(job.dtype, job.optimizer)
    if epsilon is not None:
        yield f"dtype: {epsilon}"
    if not 0 < job.timeout_s <= LONGEST_S:
        yield f"timeout_s: got {job.timeout_s:g}, expected seconds above 0, and at most a week ({LONGEST_S:g})"


def _cost_faults(costs: StageCosts) -> Iterator[str]:
    """Yield which stages are to take or hold what cannot be."""
    for index, stage in enumerate(costs.stages):
        for field in fields(stage):
            most = LONGEST_S if field.name.endswith("_s") else 2**63 - 1
            value = getattr(stage, field.name)
            if value is not None and not 0 <= value <= most:
                yield f"emulate.stages.{index}.{field.name}: got {value:g}, expected 0 to {most:.7g}; try less"
    rate = None if costs.compression is None else costs.compression.convert_bytes_per_s
    if rate is not None and not rate > 0:
        yield f"emulate.compression.convert_bytes_per_s: got {rate:g}, expected more than 0"


def job_to_json(job: RunSpec) -> str:
    """Return `job` as JSON."""
    from pydantic import TypeAdapter

    return TypeAdapter(RunSpec).dump_json(job, indent=1).decode()


def job_from_json(text: str, origin: str) -> RunSpec:
    """Return the job that `text` describes.

    Raises:
        ExecutionError: It describes none; with the faults.
    """
    return validated(RunSpec, text, origin)


def validated(kind: type[_Kind], text: str, origin: str) -> _Kind:
    """Return the `kind` of job that `text` describes in JSON; its model is named by a file, until that is trusted.

    Raises:
        ExecutionError: It describes none; with the faults.
    """
    from pipesched.profiles.io import parse_record

    try:
        job: Any = parse_record(kind, text, origin, "correct it, or write the job again")
    except ProfileError as error:
        raise ExecutionError(str(error)) from None
    named: _Kind = job if job.model is None else replace(job, model=NameFromFile(job.model, origin))
    return named
