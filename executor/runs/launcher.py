"""Start the processes of a run on this machine, watch them, and return the result of any job."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar, final

from pipesched.executor.core import averagers
from pipesched.executor.launch import Processes, RunSpec, job_folder, job_to_json
from pipesched.executor.runs.measuring_job import Measured
from pipesched.executor.runs.result_text import result_file, result_from_text
from pipesched.profiles.io import require_trusted
from pipesched.schedules import Schedule
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Op

_Result = TypeVar("_Result")


class WatchedJob(ABC, Generic[_Result]):
    """A job as its launcher handles it.

    Attributes:
        spec: Specification of the run.
        lists: The lists that the ranks run.
    """

    def __init__(self, spec: RunSpec, lists: Schedule) -> None:
        self.spec = spec
        self.lists = lists

    def begin(self, folder: Path) -> None:
        """Write the job into the folder that the ranks share."""
        (folder / "job.json").write_text(job_to_json(self.spec))

    @abstractmethod
    def ops_of(self, folder: Path, rank: int) -> Iterable[Op]:
        """Return the lowered list of a rank, or its known part."""

    @abstractmethod
    def on_progress(self, num_ops: int) -> None:
        """Handle the number of ops that all ranks have begun; called regularly."""

    @abstractmethod
    def result(self, folder: Path) -> _Result:
        """Return the result, when all ranks are over."""


def run_watched(job: WatchedJob[_Result]) -> _Result:
    """Run `job` with one process per rank on this machine, or with one process for all ranks on streams.

    Raises:
        ExecutionError: A stage is averaged on several devices.
        RankFailed: A rank failed, died or hung; the message names rank, op and micro-batch. All others are ended.
        ProfileError: A file names the model, which is not trusted.
    """
    spec = job.spec
    if spec.model is not None:
        require_trusted(spec.model)  # the job file of the ranks is ours
    averagers(job.lists)  # before any process is started
    with job_folder() as folder:
        job.begin(folder)
        Processes(folder, spec, job.lists.rank_to_device, partial(job.ops_of, folder)).run(job.on_progress)
        return job.result(folder)


def launch(spec: RunSpec, tick: Callable[[float], None] = lambda fraction: None) -> Measured:  # noqa: ARG005
    """Run `spec`, whose job measures, with one process per rank, or with one process for all ranks on streams.

    Args:
        spec: Specification of the run.
        tick: Called regularly with the fraction of all ops that have begun.

    Raises:
        ExecutionError: A stage is averaged on several devices.
        RankFailed: A rank failed, died or hung; the message names rank, op and micro-batch. All others are ended.
        ProfileError: A file names the model, which is not trusted.
    """
    return run_watched(_Measuring(spec, tick))


@final
class _Measuring(WatchedJob[Measured]):
    """Counts the ops that have begun."""

    def __init__(self, spec: RunSpec, tick: Callable[[float], None]) -> None:
        job = spec.measurement
        super().__init__(spec, lower(job.lists))
        self._ops = self.lists.ops
        self._total = (job.warmup + job.iterations) * sum(map(len, self._ops))
        self._tick = tick

    def ops_of(self, folder: Path, rank: int) -> Iterable[Op]:  # noqa: ARG002
        return self._ops[rank]

    def on_progress(self, num_ops: int) -> None:
        self._tick(num_ops / self._total)

    def result(self, folder: Path) -> Measured:
        measured = result_from_text(result_file(folder).read_text())
        assert isinstance(measured, Measured), "its job measures"
        return measured
