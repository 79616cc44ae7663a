"""What a training run is to do in several processes: everything that they need to know, as one file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipesched.executor import Averaging, Backend, DeviceKind, ExecutionError, MessagePrecision
from pipesched.executor.launch.run_spec import faults_of, validated
from pipesched.profiles.io import STRICT, one_line
from pipesched.schedules.transforms import ScheduleSpec
from pipesched.schedules.weights import PredictionRule


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpec:
    """One training run by one process per rank.

    Attributes:
        recipe: Makes the lists; every process does so for itself.
        num_steps: Optimizer steps.
        model: As for `resolve_model`.
        bounds: Half-open range of layers of every stage.
        batch_size: Samples of a step, of each pipeline where several are averaged.
        optimizer: Name in `OPTIMIZERS`.
        prediction: How weights are predicted where an op looks ahead; None: as the catalogue says of the schedule.
        averaging: How pipelines are drawn to their reference model, where they are.
        advance: ``auto``: the forwards run further ahead until that is no faster (`advance_policy`); None: as the
            recipe says.
        limit_bytes: That a device may hold while they do; None for no limit.
        dtype: Name in `DTYPES`.
        device: ``cpu`` or ``cuda``.
        backend: ``gloo``, ``nccl``, or ``auto``: NCCL where every rank has a GPU of its own, else gloo.
        compression: Of the messages between stages; None for none.
        threads: CPU threads per rank.
        timeout_s: How long one message may keep a rank waiting.
        is_pinned: Whether every rank on CPUs gets cores of its own, where there are enough.
        save: Folder that gets the final parameters of every stage; None for none.
    """

    recipe: ScheduleSpec
    num_steps: int
    model: str
    bounds: tuple[tuple[int, int], ...]
    batch_size: int
    optimizer: str = "adamw"
    lr: float = 1e-3
    seed: int = 0
    prediction: PredictionRule | None = None
    averaging: Averaging = "asynchronous"
    advance: Literal["auto"] | None = None
    limit_bytes: int | None = None
    dtype: str = "float32"
    device: DeviceKind = "cpu"
    backend: Backend = "auto"
    compression: MessagePrecision | None = None
    threads: int = 1
    timeout_s: float = 60.0
    is_pinned: bool = True
    save: str | None = None

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        faults = list(faults_of(self, {"num_steps": 1, "batch_size": 1}))
        if self.advance is not None and not self.recipe.takes("advance"):
            faults.append(f"advance: got {self.advance} for {self.recipe.name or 'lists'}, expected none; try avgpipe")
        if faults:
            raise ExecutionError(one_line(faults))


def training_job_to_json(job: TrainingSpec) -> str:
    """Return `job` as JSON."""
    from pydantic import TypeAdapter

    return TypeAdapter(TrainingSpec).dump_json(job, indent=1).decode()


def is_training_job(text: str) -> bool:
    """Whether `text` is JSON of a job that trains, and not of one that measures."""
    from pydantic_core import from_json

    try:
        data = from_json(text.encode())
    except ValueError:
        return False
    return isinstance(data, dict) and "recipe" in data


def training_job_from_json(text: str, origin: str) -> TrainingSpec:
    """Return the job that `text` describes.

    Raises:
        ExecutionError: It describes none; with the faults.
    """
    return validated(TrainingSpec, text, origin)
