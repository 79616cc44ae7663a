"""What a run is to do: everything that its processes need to know, as one file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from executor.errors import ExecutionError
from profiles.stage_costs import StageCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of a schedule by one process per rank.

    Attributes:
        schedule: The schedule in JSON (schedules.formats.schedule_json).
        model: As for `resolve_model`; None when emulated.
        bounds: Half-open range of layers of every stage.
        microbatch_size: Samples per micro-batch.
        emulate: Costs of stages that only take time; None to run the model.
        how: Whether emulated stages sleep or spin.
        optimizer: Name in `OPTIMIZERS`.
        dtype: Name of a torch dtype.
        device: ``cpu`` or ``cuda``.
        backend: ``gloo``, ``nccl``, or ``auto``: NCCL where every rank has a GPU of its own, else gloo.
        threads: CPU threads per rank.
        iterations: Times that the list is run and measured, after `warmup` runs.
        timeout_s: How long one message may keep a rank waiting.
        is_checked: Whether a list that cannot finish is refused before it runs.
    """

    schedule: str
    model: str | None = None
    bounds: tuple[tuple[int, int], ...] = ()
    microbatch_size: int = 1
    emulate: StageCosts | None = None
    how: Literal["sleep", "busy"] = "sleep"
    optimizer: str = "adamw"
    lr: float = 1e-3
    seed: int = 0
    dtype: str = "float32"
    device: Literal["cpu", "cuda"] = "cpu"
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    threads: int = 1
    iterations: int = 5
    warmup: int = 1
    timeout_s: float = 60.0
    is_checked: bool = True


def job_to_json(job: Job) -> str:
    """Return `job` as JSON."""
    from pydantic import TypeAdapter

    return TypeAdapter(Job).dump_json(job, indent=1).decode()


def job_from_json(text: str, origin: str) -> Job:
    """Return the job that `text` describes.

    Raises:
        ExecutionError: It describes none; with the first fault.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(Job).validate_json(text)
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(map(str, fault["loc"])) or "top"
        raise ExecutionError(f"{origin}: {place}: got {fault['input']!r:.60}, {fault['msg']}") from None
