"""Measure with processes of this machine: one per rank, or one for all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import final

from pipesched.executor.launch import Measure, RunSpec
from pipesched.executor.runs.launcher import WatchedJob, run_watched
from pipesched.executor.runs.measuring_job import Measured
from pipesched.schedules.formats import from_json, read_timeline
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Op


def launch(spec: RunSpec, tick: Callable[[float], None] = lambda fraction: None) -> Measured:  # noqa: ARG005
    """Run `spec`, whose job measures, with one process per rank, or with one process for all ranks on streams.

    Args:
        spec: Specification of the run.
        tick: Called regularly with the fraction of all ops that have begun.

    Raises:
        ExecutionError: A stage is averaged on several devices.
        RankFailed: A rank failed, died or hung; with rank, op and micro-batch. All others are ended.
        ProfileError: A file names the model, which is not trusted.
    """
    return run_watched(_Measuring(spec, tick))


@final
class _Measuring(WatchedJob[Measured]):
    """Counts the ops that have begun."""

    def __init__(self, spec: RunSpec, tick: Callable[[float], None]) -> None:
        assert isinstance(spec.job, Measure), "of this kind"
        schedule = lower(from_json(spec.job.schedule, "the job's schedule"))
        super().__init__(spec, schedule)
        self._ops = schedule.ops
        self._total = (spec.job.warmup + spec.job.iterations) * sum(map(len, self._ops))
        self._tick = tick

    def ops_of(self, folder: Path, rank: int) -> Iterable[Op]:  # noqa: ARG002
        return self._ops[rank]

    def on_progress(self, num_ops: int) -> None:
        self._tick(num_ops / self._total)

    def result(self, folder: Path) -> Measured:
        from pydantic import TypeAdapter

        numbers = TypeAdapter(dict[str, tuple[float, ...]]).validate_json((folder / "result.json").read_text())
        return Measured(read_timeline(folder / "timeline.json"), **numbers)
