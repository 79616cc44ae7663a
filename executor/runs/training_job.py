"""The job of training: the parts of a run one after the other, with scores and checkpoints between them.

Two drivers run the lists of a part: one has all ranks in this process (`local_training`), the other has one rank of
several processes (`rank_training`).
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial
from typing import final

import torch
from torch import Tensor

from pipesched.executor import ITS_CHECKPOINT, waiting_for
from pipesched.executor.core import ModuleStage, follow
from pipesched.executor.runs.training_parts import TrainingPart, TrainingParts
from pipesched.executor.training import (
    BackgroundWriter,
    FileDigest,
    LossHistory,
    RunDiverged,
    ScoreReader,
    Scores,
    ScoreTable,
    StageStates,
)
from pipesched.schedules import Schedule


class TrainingDriver(ABC):
    """Runs the ranks of this process; it is the only process unless a subclass says otherwise.

    Attributes:
        stages: The stages of each rank of this process.
        is_first: Whether this process completes a checkpoint from the files of all processes.
    """

    stages: Mapping[int, Mapping[int, ModuleStage]]
    is_first = True

    @abstractmethod
    def use(self, lists: Schedule) -> None:
        """Prepare the ranks for other lists; all processes call this together."""

    @abstractmethod
    def run(self, part: TrainingPart) -> None:
        """Run the lists of a part; all processes call this together."""

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensor of every process; all processes call this together."""
        return [tensor]

    def gather_texts_beside(self, text: str) -> list[str]:
        """Return the text of every process, called in a thread beside the run of the lists."""
        return [text]

    def writing(self) -> AbstractContextManager[None]:
        """Return a context that names the rank of this process in errors of writing."""
        return nullcontext()


@final
class TrainingJob:
    """A training run, as one process takes part in it.

    Args:
        parts: The parts of the run.
        history: The scores of all steps; the scores of the steps before a checkpoint are restored.
        on_scores: Called with each trained micro-batch of this process, and its scores, or None; may raise
            `RunDiverged`.
        shares_scores: Whether the processes exchange the scores of their micro-batches; if not, `on_scores` keeps them.

    Attributes:
        reader: Listens to the losses of the last stage.
    """

    def __init__(
        self,
        parts: TrainingParts,
        history: LossHistory,
        on_scores: Callable[[int, Scores], None] | None,
        *,
        shares_scores: bool = False,
    ) -> None:
        self.parts, self.history = parts, history
        self.reader = ScoreReader(self._hear)
        self._on_scores, self._shares_scores = on_scores, shares_scores
        self._scores = array("d")  # micro-batch, loss and accuracy, in turn
        history.restore(parts.scores)

    def _hear(self, microbatch: int, scores: Scores) -> None:
        if self._shares_scores:
            self._scores.extend((microbatch, scores.loss, math.nan if scores.accuracy is None else scores.accuracy))
        if self._on_scores is not None:
            self._on_scores(microbatch, scores)

    def run(self, driver: TrainingDriver, is_asked: Callable[[], bool]) -> bool:
        """Run part by part, and write checkpoints; return whether the run ended early on the request of a process.

        A run whose shared scores show that it has diverged ends at the next checkpoint.

        Args:
            driver: Runs the ranks, whose stages are built and loaded in every process.
            is_asked: Returns whether this process is asked to leave.

        Raises:
            ExecutionError: An op failed, or a file of a checkpoint cannot be written.
            RunDiverged: By `on_scores`.
        """
        parts, lists, steps = self.parts, None, self.parts.num_steps
        if driver.is_first:
            parts.begin()
        with BackgroundWriter() as writer:
            for part in parts:
                if part.lists is not lists:
                    lists = part.lists
                    for rank, stages in driver.stages.items() if lists is not parts.lists else ():
                        follow(stages, lists, rank)
                    driver.use(lists)
                for stages in driver.stages.values():
                    for stage in stages.values():
                        stage.first_microbatch = part.first_microbatch
                driver.run(part)
                writer.check()
                steps, asked = parts.steps_after(part), torch.tensor([int(parts.has_checkpoints and is_asked())])
                is_last = bool(torch.cat(driver.all_gather(asked)).any())
                if parts.is_due(steps, is_last=is_last):
                    self._take_scores(driver)
                    if self.history.diverged is not None:
                        return False
                    _settle(writer, driver)  # one copy of the weights at a time
                    with driver.writing():
                        states = {
                            name: state
                            for rank, stages in driver.stages.items()
                            for name, state in parts.copy(rank, stages).items()
                        }
                    writer.start(partial(self._write, driver, states, self.history.steps.copy()))
                if is_last:
                    break
            _settle(writer, driver)
        self._take_scores(driver)
        return steps < parts.num_steps

    def _take_scores(self, driver: TrainingDriver) -> None:
        """Wait for all scores, and move the new ones of all processes into the history; each process has its own."""
        self.reader.finish()
        own, self._scores = torch.tensor(self._scores, dtype=torch.float64).reshape(-1, 3), array("d")
        tables = torch.cat(driver.all_gather(own))
        try:
            for microbatch, loss, accuracy in sorted(tables.tolist()):
                self.history.add(int(microbatch), Scores(loss, None if math.isnan(accuracy) else accuracy))
        except RunDiverged:
            pass

    def _write(self, driver: TrainingDriver, states: StageStates, scores: ScoreTable) -> None:
        """Write the state after the last step; the first process makes a checkpoint from the files of all processes."""
        with driver.writing():
            files = self.parts.write(len(scores), states)
            texts = driver.gather_texts_beside(json.dumps({name: asdict(file) for name, file in files.items()}))
            if driver.is_first:
                told = {name: FileDigest(**file) for text in texts for name, file in json.loads(text).items()}
                self.parts.finish(told, scores)


def _settle(writer: BackgroundWriter, driver: TrainingDriver) -> None:
    """Wait until all processes have written the last checkpoint, so that none waits for another's disk inside an op."""
    with waiting_for("what is written of a checkpoint", ITS_CHECKPOINT):
        writer.wait()
    driver.all_gather(torch.zeros(1))
