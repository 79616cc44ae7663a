"""Train with one process per rank on this machine, and read the scores of the last stage meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias, final

import torch
from torch import nn

from pipesched.executor import ExecutionError, RankFailed
from pipesched.executor.core import load_whole_state, weight_file
from pipesched.executor.launch import DrainPage, RunSpec
from pipesched.executor.runs.launcher import WatchedJob, run_watched
from pipesched.executor.runs.result_text import result_file, result_from_text
from pipesched.executor.runs.training_parts import TrainingPart, TrainingParts, going_on
from pipesched.executor.runs.training_setup import TrainingSetup, training_of
from pipesched.executor.training import (
    LossHistory,
    OnStep,
    RunDiverged,
    Scores,
    Trained,
    export_weights,
)
from pipesched.profiles.models import build_layers
from pipesched.schedules.ops import Op

OnRestart: TypeAlias = Callable[[RankFailed, int], None]
"""Called when a rank has failed, with the error and the steps that the restarted run begins after."""


_CPU = torch.device("cpu")


def launch_training(
    spec: RunSpec,
    on_step: OnStep | None = None,
    is_asked: Callable[[], bool] = lambda: False,
    export: Path | None = None,
    restarts: int = 0,
    on_restart: OnRestart = lambda error, steps: None,  # noqa: ARG005 -- nobody need listen
) -> Trained:
    """Run `spec`, whose job trains, with one process per rank on this machine.

    Args:
        spec: Specification of the run.
        on_step: Called soon after each step; may raise to end the run.
        is_asked: Returns whether a run with checkpoints is to end after its next one.
        export: File for the final weights of the whole model, or None.
        restarts: Number of restarts from the newest checkpoint after a rank has failed.
        on_restart: Called at each restart with the error and the number of steps.

    Raises:
        ExecutionError: The checkpoint to resume from is damaged, or of another run; or `export` cannot be written.
        RankFailed: A rank failed, died or hung; the message names rank, op and micro-batch. All others are ended.
        ProfileError: There is no such model, it cannot be built, or a file names it and it is not trusted.
    """
    tell = None if on_step is None else _once(on_step)
    failures: list[str] = []
    while True:
        job = _Training(spec, tell, is_asked, export)
        try:
            return replace(run_watched(job), failures=tuple(failures))
        except RunDiverged:
            return replace(job.history.end(), failures=tuple(failures))
        except RankFailed as error:
            if len(failures) == restarts:
                raise
            failures.append(str(error))
            try:
                spec, steps = going_on(spec)
            except ExecutionError as damage:
                raise RankFailed(f"{error}; the training cannot start again: {damage}") from error
            on_restart(error, steps)


def _once(on_step: OnStep) -> OnStep:
    """Return a callback that calls `on_step` once per step, also if steps are repeated."""
    num_told = 0

    def tell(step: int, scores: Scores) -> None:
        nonlocal num_told
        if step == num_told:
            num_told += 1
            on_step(step, scores)

    return tell


@final
class _Training(WatchedJob[Trained]):
    """Reads the scores that the ranks write, while they run."""

    def __init__(
        self, spec: RunSpec, on_step: OnStep | None, is_asked: Callable[[], bool], export: Path | None
    ) -> None:
        self._parts = TrainingParts(spec)
        super().__init__(spec, self._parts.lists)
        self.history = LossHistory(
            self._parts.run.microbatches_per_step, on_step, is_finite_checked=spec.is_finite_checked
        )
        self._is_asked, self._export = is_asked, export
        self.history.restore(self._parts.scores)
        self._request = self._parts.leave_request()

    def begin(self, folder: Path) -> None:
        if self._parts.has_checkpoints:
            self._require_fitting(self._parts)
            self._parts.begin()
            self._drain_page = DrainPage.create(drain_file(folder), self.lists.num_ranks)
            self._parts.gate = self._drain_page.gate(0)
        self.spec = replace(self.spec, save=self.spec.save or str(folder / "weights"))
        self._tails = [_Tail(scores_file(folder, number), self.history) for number in range(self.lists.num_ranks)]
        self._folder, self._num_ops = folder, 0
        super().begin(folder)

    def _require_fitting(self, parts: TrainingParts) -> None:
        """Refuse a checkpoint that does not fit some rank, before any rank is started.

        Raises:
            ExecutionError: A file is damaged, or its tensors do not fit a stage.
        """
        if parts.goes_on:
            training = training_of(self.spec)
            for rank in range(self.lists.num_ranks):
                parts.load(rank, training.stages(self.lists, rank, _CPU, lambda *_: None))

    def ops_of(self, folder: Path, rank: int) -> Iterable[Op]:
        self._parts.phases = [*_phases(self._parts, folder)]
        return self._parts.ops_of(rank)

    def on_progress(self, num_ops: int) -> None:
        if num_ops != self._num_ops:
            self._num_ops = num_ops
            self._read_tails()
        if self._parts.has_checkpoints and self._is_asked():
            self._drain_page.ask()
            agreement = self._drain_page.agreement
            if self._request is not None and not agreement.decided and self._request.is_late(is_asked=True):
                self._drain_page.write(agreement.following(self._drain_page.read, self._request))

    def _read_tails(self) -> None:
        for tail in self._tails:
            tail.read()

    def result(self, folder: Path) -> Trained:
        self._read_tails()
        if len(self.history.steps) < self._parts.num_steps:
            return replace(self.history.end(), is_paused=True)
        training = training_of(self.spec)
        stages = _load(training, Path(self.spec.save or ""))
        if self._export is not None:
            export_weights(self._export, training.model, stages, self.spec.bounds)
        trained = result_from_text(result_file(folder).read_text())
        assert isinstance(trained, Trained), "its job trains"
        return replace(self.history.end(training.judge(stages, _CPU)), ahead=trained.ahead)


def scores_file(folder: Path, number: int) -> Path:
    """Return the file in which a process writes the scores of its rank's micro-batches."""
    return folder / f"scores{number}.jsonl"


def scores_line(microbatch: int, scores: Scores) -> str:
    """Return one line of a scores file."""
    return json.dumps([microbatch, scores.loss, scores.accuracy]) + "\n"


def drain_file(folder: Path) -> Path:
    """Return the shared page by which the launcher asks the ranks to leave, and all agree on an early end."""
    return folder / "drain"


def phases_file(folder: Path) -> Path:
    """Return the file in which the first process writes the steps and the advance of each phase."""
    return folder / "phases.jsonl"


def phase_line(num_steps: int, advance: int) -> str:
    """Return one line of the phases file."""
    return json.dumps([num_steps, advance]) + "\n"


def _phases(parts: TrainingParts, folder: Path) -> Iterator[TrainingPart]:
    """Yield each phase that has begun."""
    steps = 0
    for line in phases_file(folder).read_text().splitlines() if phases_file(folder).exists() else ():
        num_steps, advance = json.loads(line)
        yield parts.phase(steps, num_steps, advance)
        steps += num_steps


class _Tail:
    """The new lines of a file since the last read."""

    def __init__(self, path: Path, history: LossHistory) -> None:
        self._path = path
        self._history = history
        self._place = 0

    def read(self) -> None:
        """Add the scores of new complete lines to the history."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._place)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._place += len(whole) + len(newline)
        for line in whole.splitlines():
            microbatch, loss, accuracy = json.loads(line)
            self._history.add(microbatch, Scores(loss, accuracy))


def _load(training: TrainingSetup, folder: Path) -> list[nn.Module]:
    """Return all stages with the saved weights of the ranks."""
    stages: list[nn.Module] = []
    for index, bounds in enumerate(training.spec.bounds):
        stage = build_layers(training.model, *bounds, seed=training.spec.seed, dtype=training.dtype)
        with weight_file(folder / f"stage{index}.safetensors") as state:
            load_whole_state(training.model, training.spec.bounds, {index: stage}, state)
        stages.append(stage)
    return stages
