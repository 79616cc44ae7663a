"""The parts of a training run: the lists between two moments without ops or messages in flight.

    no checkpoints           all steps are one part
    lists with a flush       a part is one pass of the lists; a checkpoint can be written after each
    lists without a flush    a part is all steps up to the next checkpoint: there they are drained, and filled again;
                             a run that is asked to leave may be drained earlier (`early_drain`)
    a search for an advance  a part is a phase with one advance (`rank_training`)

So a run that resumes from a checkpoint gives the same results as an uninterrupted run. After an early drain it gives
the results of a run with a checkpoint at the drain.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, final

from pipesched.executor import RATES_WITH_END, ExecutionError
from pipesched.executor.core import ModuleStage, lists_of
from pipesched.executor.launch import CheckpointSettings, Gate, LeaveRequest, Reach, RunSpec, ending_early
from pipesched.executor.training import (
    BATCHES,
    NO_OTHER,
    AdvancePolicy,
    CheckpointIndex,
    FileDigest,
    RunIdentity,
    ScoreTable,
    StageStates,
    checkpoint_folder,
    clear_after,
    copy_states,
    has_checkpoints,
    keep_newest,
    last_good,
    load_stages,
    newest_good,
    read_index,
    read_scores,
    require_no_checkpoints,
    require_same_run,
    resume_advice,
    write_index,
    write_scores,
    write_states,
)
from pipesched.profiles.io import costs_file_of
from pipesched.schedules import Schedule
from pipesched.schedules.common import tuple_of
from pipesched.schedules.ops import Op, moved


class TrainingPart(NamedTuple):
    """A part of a training run.

    Attributes:
        lists: Its lists; the same object as in the part before if they are the same.
        first_microbatch: The run's micro-batch that is number 0 of the lists.
        begun: Steps of the run before the part.
        steps: Steps of the run after the part, unless it is drained early.
    """

    lists: Schedule
    first_microbatch: int
    begun: int
    steps: int

    def named(self, op: Op) -> Op:
        """Return an op of the lists with its numbers in the whole run."""
        if not self.begun:
            return op
        return moved(op, self.first_microbatch, lambda stage: self.begun)  # noqa: ARG005 -- each steps as often


@final
class TrainingParts:
    """The parts of a training run, the checkpoints between them, and the checkpoint that it resumes from.

    Args:
        spec: Specification of the run, whose job trains.

    Attributes:
        run: The training run of the job's specification.
        num_steps: Steps of the whole run.
        lists: The lists of all steps.
        scores: The scores of the steps before the run resumes.
        gate: Decides where lists without a flush end early, or None for no early end.
        policy: Chooses how far ahead the forwards of the next part run, or None if the specification says that.
        phases: The parts of a run with a policy that have begun.

    Raises:
        ExecutionError: The checkpoint is damaged, or of another run; the folder has checkpoints of another run; or the
            steps between checkpoints are not a multiple of the steps of one pass of the lists.
        ScheduleError: The schedule makes no lists of that number of steps, or cannot be run in parts.
    """

    def __init__(self, spec: RunSpec) -> None:
        job = spec.training
        self._spec, self._settings = spec, job.checkpoints
        self.run = run = job.run
        self.num_steps, self.lists = job.num_steps, run.lists(job.num_steps)
        self._start: Path | None = None
        self._index: CheckpointIndex | None = None
        self.scores = ScoreTable()
        self.gate: Gate | None = None
        self._is_dealt = False
        self.policy, self.phases = None, list[TrainingPart]()
        if job.advance is not None:
            self.policy = AdvancePolicy(job.schedule_spec.num_microbatches // run.pipelines - 1, job.limit_bytes)
        if self._settings is not None:
            self._resume(self._settings)
        next(iter(self), None)  # lists that cannot be made are refused before anything is written

    def _resume(self, settings: CheckpointSettings) -> None:
        """Check the settings, and read the scores of the checkpoint to resume from."""
        every, flush_steps = settings.every, self.run.flush_steps or 1
        if every % flush_steps:
            raise ExecutionError(
                f"every: got {every} steps, expected a multiple of {flush_steps}, the steps in the lists of "
                f"{self.run.name}; try {every - every % flush_steps or flush_steps}"
            )
        self._start = None if settings.start is None else Path(settings.start)
        require_no_checkpoints(Path(settings.folder), self._start)
        if self._start is None:
            return
        self._index = read_index(self._start)
        run = run_of(self._spec)
        self._is_dealt = require_same_run(self._start, self._index, run, is_synchronous=self._is_synchronous)
        if self._index.steps > self.num_steps:
            raise ExecutionError(
                f"{self._start}: got a checkpoint after {self._index.steps} steps, expected at most {self.num_steps}, "
                "the steps of the run; try more steps"
            )
        with self._advising():
            self.scores = read_scores(self._start, self._index)

    @property
    def has_checkpoints(self) -> bool:
        """Whether the run writes checkpoints."""
        return self._settings is not None

    @property
    def _checkpoints(self) -> CheckpointSettings:
        assert self._settings is not None, "the run has checkpoints"
        return self._settings

    def __iter__(self) -> Iterator[TrainingPart]:
        if self.policy is not None:
            return self._phases(self.policy)
        return self._parts(None if self.gate is None else self.gate.reach)

    def _phases(self, policy: AdvancePolicy) -> Iterator[TrainingPart]:
        steps = 0
        while steps < self.num_steps:
            left = self.num_steps - steps
            phase = self.phase(steps, left if policy.is_settled else min(BATCHES, left), policy.advance)
            yield phase
            steps = phase.steps

    def phase(self, begun: int, num_steps: int, advance: int) -> TrainingPart:
        """Return a phase of a run with a policy.

        Args:
            begun: Steps of the run before the phase.
            num_steps: Steps of the phase.
            advance: Distance by which its forwards run ahead.
        """
        made = self._spec.training.schedule_spec
        run = replace(made, parameters={**made.parameters, "advance": advance}).run(num_steps)
        first = begun * self.run.microbatches_per_step
        return TrainingPart(run.lists(num_steps), first, begun, begun + num_steps)

    def _parts(self, reach: Reach | None) -> Iterator[TrainingPart]:
        if self._settings is None:
            yield TrainingPart(self.lists, 0, 0, self.num_steps)
            return
        every = self._settings.every
        steps, lists, size = len(self.scores), None, 0

        def begun() -> int:
            return steps

        while steps < self.num_steps:
            count = self.run.flush_steps or every - steps % every
            count = min(count, self.num_steps - steps)
            if lists is None or count != size or self.run.counts_run:
                lists, size = self._lists(begun, count, reach), count
            yield TrainingPart(lists, steps * self.run.microbatches_per_step, steps, steps + count)
            steps += count

    def _lists(self, begun: Callable[[], int], count: int, reach: Reach | None) -> Schedule:
        """Return the lists of `count` steps, for the part that begins after `begun()` steps."""
        run, per_step = self.run, self.run.microbatches_per_step
        lists = run.part(begun(), count)
        if reach is None or run.flush_steps is not None:
            return lists
        return ending_early(lists, lambda: begun() * per_step, lambda size: run.part(begun(), size // per_step), reach)

    def leave_request(self) -> LeaveRequest | None:
        """Return the rule for draining a run that is asked to leave, or None if such a run is not drained early."""
        if self._settings is None or self.run.flush_steps is not None:
            return None
        return LeaveRequest(self.run.microbatches_per_step, self._settings.every, len(self.scores))

    def steps_after(self, part: TrainingPart) -> int:
        """Return the number of steps that the run has done by the end of a part."""
        end = None if self.gate is None else self.gate.end
        if end is None or end <= part.first_microbatch:
            return part.steps
        return min(part.steps, end // self.run.microbatches_per_step)

    def ops_of(self, rank: int) -> Iterator[Op]:
        """Yield the lowered list of `rank`, part by part; the ops have the same names as in a run without parts.

        This reader runs no op: it waits for no decision on an early end, and no decision waits for it.
        """
        gate = self.gate
        begun = self._parts(None if gate is None else lambda microbatch: gate.end)  # noqa: ARG005
        for part in begun if self.policy is None else self.phases:
            yield from map(part.named, lists_of(part.lists, {rank})[rank])
            if self.steps_after(part) < part.steps:
                return

    @property
    def goes_on(self) -> bool:
        """Whether the run resumes from a checkpoint, and has steps left."""
        return self._start is not None and len(self.scores) < self.num_steps

    def begin(self) -> None:
        """Remove files that the run will write again; one process calls this, before any process writes.

        Raises:
            ExecutionError: The folder cannot be made.
        """
        if self._settings is not None:
            clear_after(Path(self._settings.folder), len(self.scores))

    def load(self, rank: int, stages: Mapping[int, ModuleStage]) -> None:
        """Load the state of the checkpoint into the stages of `rank`.

        Raises:
            ExecutionError: A file is damaged, or its tensors do not fit a stage.
        """
        if self._start is None or self._index is None:
            return
        part = next(iter(self), None)
        averaged = {} if part is None else part.lists.averagers
        references = [stage for stage, ranks in averaged.items() if min(ranks) == rank]

        def load(checkpoint: Path, index: CheckpointIndex) -> None:
            bounds = self._spec.bounds
            load_stages(checkpoint, index, rank, stages, bounds, is_dealt=self._is_dealt, references=references)

        def fits(checkpoint: Path) -> bool:
            try:
                load(checkpoint, read_index(checkpoint))
            except ExecutionError:
                return False
            return True

        with self._advising(fits):
            load(self._start, self._index)

    @contextmanager
    def _advising(self, fits: Callable[[Path], bool] = lambda checkpoint: True) -> Iterator[None]:  # noqa: ARG005
        """Add advice to errors about a checkpoint: another checkpoint to resume from.

        Args:
            fits: Returns whether the run can resume from another checkpoint.

        Raises:
            ExecutionError: The error raised inside, with the advice.
        """
        assert self._start is not None, "there is one"
        try:
            yield
        except ExecutionError as error:
            good = last_good(self._start, fits)
            advice = f"{NO_OTHER}; try the model of the checkpoint" if good is None else resume_advice(good)
            raise ExecutionError(f"{error}; {advice}") from error

    @property
    def _is_synchronous(self) -> bool:
        """Whether a step depends on the mean gradient of its batch alone."""
        if self.run.flush_steps != 1:
            return False
        traits = self.run.part(0, 1).traits
        return not (traits.is_asynchronous or traits.averages)

    def is_due(self, steps: int, *, is_last: bool) -> bool:
        """Return whether a checkpoint follows `steps` steps, which may be the last because of a request to leave."""
        if self._settings is None:
            return False
        return is_last or steps % self._settings.every == 0 or steps == self.num_steps

    def copy(self, rank: int, stages: Mapping[int, ModuleStage]) -> StageStates:
        """Return copies of the state of `rank`.

        Raises:
            ExecutionError: A stage is in the middle of a computation.
        """
        return copy_states(rank, stages, self._spec.bounds)

    def write(self, steps: int, states: StageStates) -> dict[str, FileDigest]:
        """Write the copied state after `steps` steps; return the digests of the files.

        Raises:
            ExecutionError: A file cannot be written.
        """
        return write_states(checkpoint_folder(Path(self._checkpoints.folder), steps), states)

    def finish(self, files: Mapping[str, FileDigest], scores: ScoreTable) -> None:
        """Make a checkpoint of the files of all ranks, and remove old checkpoints; one process calls this.

        Args:
            files: Digests of the files, by name.
            scores: The scores of all steps of the run so far.

        Raises:
            ExecutionError: A file cannot be written.
        """
        settings = self._checkpoints
        checkpoint = checkpoint_folder(Path(settings.folder), len(scores))
        index = CheckpointIndex(
            format="pipesched-checkpoint",
            version=1,
            steps=len(scores),
            every=settings.every,
            keep=settings.keep,
            run=run_of(self._spec),
            is_synchronous=self._is_synchronous,
            files={**files, **write_scores(checkpoint, scores)},
        )
        write_index(checkpoint, index)
        keep_newest(Path(settings.folder), settings.keep)


def run_of(spec: RunSpec) -> RunIdentity:
    """Return all settings that affect a step of a training run."""
    job, made = spec.training, spec.training.schedule_spec
    lists = None if made.lists is None else f"lists {hashlib.sha256(made.lists.encode()).hexdigest()[:12]}"
    values: dict[str, object] = {
        "model": spec.model and (costs_file_of(spec.model) or spec.model),
        "schedule": lists or made.name,
        "num_ranks": made.num_ranks,
        "num_microbatches": made.num_microbatches,
        "num_chunks": made.num_chunks,
        "parameters": ", ".join(f"{name}={value}" for name, value in sorted(made.parameters.items())) or None,
        "recompute": made.recompute,
        "width": made.width,
        "partition": ",".join(str(last - first) for first, last in spec.bounds),
        "batch_size": job.batch_size,
    }
    names = ("optimizer", "lr", "seed", "dtype", "prediction", "compression", "averaging")
    values |= {name: getattr(spec, name) for name in names}
    optimizer = {"clip_grad_norm": spec.clip_grad_norm, "weight_decay": job.weight_decay}
    optimizer |= {"is_nesterov": job.is_nesterov or None}
    values["optimizer"] = _with_given(spec.optimizer, optimizer)
    if job.lr_schedule != "constant" or job.lr_warmup:
        length = job.lr_steps or (job.num_steps if job.lr_schedule in RATES_WITH_END else None)
        milestones = ",".join(map(str, tuple_of(job.lr_milestones or ()))) or None
        rate: dict[str, object] = {"steps": length, "warmup": job.lr_warmup or None, "end": job.lr_end}
        rate |= {"power": job.lr_power, "milestones": milestones, "factor": job.lr_factor}
        values["lr"] = _with_given(f"{spec.lr}, {job.lr_schedule}", rate)
    return RunIdentity(**{name: "none" if value is None else str(value) for name, value in values.items()})


def _with_given(text: str, settings: Mapping[str, object]) -> str:
    """Return a text with the settings that are given, in an order that does not change."""
    return ", ".join([text, *(f"{name} {value}" for name, value in settings.items() if value is not None)])


def going_on(spec: RunSpec) -> tuple[RunSpec, int]:
    """Return a run that resumes from the newest undamaged checkpoint, if there is one, and the steps before it.

    Injected faults are removed.

    Raises:
        ExecutionError: All checkpoints are damaged.
    """
    settings = spec.training.checkpoints
    assert settings is not None, "with checkpoints"
    start = settings.start
    if has_checkpoints(Path(settings.folder)):
        start = str(newest_good(Path(settings.folder)))
    steps = 0 if start is None else read_index(Path(start)).steps
    job = replace(spec.training, checkpoints=replace(settings, start=start))
    return replace(spec, inject=(), job=job), steps
