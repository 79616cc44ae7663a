"""Start the processes of a run on this machine, watch them, and bring back what they measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pipesched.executor.core import averagers
from pipesched.executor.launch import Processes, RunSpec, job_folder, job_to_json
from pipesched.profiles.io import require_trusted
from pipesched.schedules import Op, Timeline
from pipesched.schedules.formats import from_json, read_timeline
from pipesched.schedules.lowering import lower


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run gave.

    Attributes:
        timeline: The iteration of median makespan.
        makespans_s: Of every measured iteration.
        losses: Mean loss of every micro-batch, from the initial weights; empty when emulated.
    """

    timeline: Timeline
    makespans_s: tuple[float, ...]
    losses: tuple[float, ...]


def launch(job: RunSpec, tick: Callable[[float], None] = lambda fraction: None) -> Measured:  # noqa: ARG005
    """Run `job` with one process per rank on this machine.

    Args:
        tick: Told now and then what fraction of all ops is done.

    Raises:
        ExecutionError: A stage is averaged on several devices.
        RankFailed: A rank failed, died or hung; with rank, op and micro-batch. All others are ended.
        ProfileError: The job is read from a file, which names what is imported.
    """
    if job.model is not None:
        require_trusted(job.model)  # what the ranks read is ours
    schedule = lower(from_json(job.schedule, "the job's schedule"))
    averagers(schedule)  # before any process is started
    lists = schedule.ops
    total = (job.warmup + job.iterations) * sum(map(len, lists))

    def op_at(rank: int, index: int) -> Op | None:
        return lists[rank][index] if index < len(lists[rank]) else None

    with job_folder() as folder:
        (folder / "job.json").write_text(job_to_json(job))
        processes = Processes(
            folder, schedule.rank_to_device, op_at, threads=job.threads, timeout_s=job.timeout_s, device=job.device
        )
        processes.run(lambda done: tick(done / total))
        return _read_result(folder)


def _read_result(folder: Path) -> Measured:
    from pydantic import TypeAdapter

    numbers = TypeAdapter(dict[str, tuple[float, ...]]).validate_json((folder / "result.json").read_text())
    return Measured(read_timeline(folder / "timeline.json"), numbers["makespans_s"], numbers["losses"])
