"""The job of a rank, to measure or to train, between meeting the other ranks and leaving them."""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

import torch

from pipesched.executor import starting, waits_told_to, writing
from pipesched.executor.core import Batch, DevicePosition, ModuleStage, Stage, lists_of, polled
from pipesched.executor.launch import Gate, LeaveRequest, PageRow, RankContext, RunSpec, references
from pipesched.executor.runs.equal_models import require_equal_layers, require_equal_weights
from pipesched.executor.training import Scores, save_stages
from pipesched.executor.transport import BoundaryShape, find_shapes
from pipesched.profiles.models import Model, resolve_model
from pipesched.schedules import Schedule
from pipesched.schedules.ops import Op

_Result = TypeVar("_Result")

OnScores: TypeAlias = Callable[[int, Scores], None]
"""Called with each micro-batch that reaches the last stage of this rank, and its scores."""

OnPhase: TypeAlias = Callable[[int, int], None]
"""Called at the beginning of each phase of a search with its number of steps, and its advance."""


@dataclass(frozen=True, slots=True)
class RankListener:
    """Callbacks for the progress of a rank.

    Attributes:
        at: Called before each op with its position in the lowered list and the op.
        on_scores: Keeps the scores of each trained micro-batch, on ranks with the last stage; a run without checkpoints
            then returns no scores. None: the ranks exchange them.
        on_phase: Called at each phase of a training run that searches how far ahead to run.
        is_asked: Returns whether a training run is to end after a checkpoint; called in every process.
        gate: Decides where lists without a flush end early, or None for no early end.
        on_turn: Called when the rank gets its turn in a process with several ranks.
        device: Row for the position of the rank's GPU, which is behind `at`, or None.
    """

    at: Callable[[int, Op], None] = lambda index, op: None  # noqa: ARG005 -- nobody need listen
    on_scores: OnScores | None = None
    on_phase: OnPhase = lambda num_steps, advance: None  # noqa: ARG005
    is_asked: Callable[[], bool] = lambda: False
    gate: Gate | None = None
    on_turn: Callable[[], None] = lambda: None
    device: PageRow | None = None


@contextmanager
def following_device(listener: RankListener, device: torch.device) -> Iterator[RankListener]:
    """Yield a listener that also writes the position and the waits of a GPU; on a CPU yield `listener`."""
    row = listener.device
    if row is None or device.type == "cpu":
        yield listener
        return
    placed, position = with_position(listener, row, device)
    try:
        with waits_told_to(position.wait), polled([position]):
            yield placed
    finally:
        row.end()


def with_position(listener: RankListener, row: PageRow, device: torch.device) -> tuple[RankListener, DevicePosition]:
    """Return a listener that also notes ops for the position of a GPU, and the position, which writes to `row`."""
    position = DevicePosition(device, row.reach, row.wait)

    def at(index: int, op: Op) -> None:
        listener.at(index, op)
        position.at(index, op)

    row.begin()
    return replace(listener, at=at), position


class RankJob(ABC, Generic[_Result]):
    """A job as one rank handles it.

    Attributes:
        spec: Specification of the run.
        lists: The lists of all ranks; lowered if they are in memory.
        listener: Callbacks for the progress of the rank.

    Args:
        model: The model of the run; None to look up its name.
    """

    def __init__(self, spec: RunSpec, lists: Schedule, listener: RankListener, model: Model | None = None) -> None:
        self.spec = spec
        self.lists = lists
        self.listener = listener
        self._model = model

    @property
    def model(self) -> Model:
        """The model of a run that is not emulated.

        Raises:
            ProfileError: There is no model of this name.
        """
        if self._model is None:
            self._model = resolve_model(self.spec.model or "")
        return self._model

    @abstractmethod
    def build(self, context: RankContext) -> tuple[Mapping[int, Stage], Batch]:
        """Return the stages of the rank, and their input data."""

    def shapes(self, context: RankContext, stages: Mapping[int, Stage], batch: Batch) -> Mapping[int, BoundaryShape]:
        """Return the shapes of the values between stages; all ranks call this together."""
        return find_shapes(self.lists, context.rank, stages, batch.inputs[0] if 0 in stages else None)

    @abstractmethod
    def work(
        self, context: RankContext, stages: Mapping[int, Stage], batch: Batch, shapes: Mapping[int, BoundaryShape]
    ) -> None:
        """Run the lists; all ranks call this together."""

    @abstractmethod
    def gather(self, context: RankContext) -> _Result | None:
        """Return the result in the first process, None elsewhere; all ranks call this together."""

    def ops_of(self, rank: int) -> Iterable[Op]:
        """Return the lowered list of `rank`, from the first op that the listener sees."""
        return lists_of(self.lists, {rank})[rank]

    @property
    def leave_request(self) -> LeaveRequest | None:
        """The decision when to drain a run that is asked to leave; None if the run needs no such decision."""
        return None

    def run(self, context: RankContext) -> _Result | None:
        """Run the job; return the result in the first process, None elsewhere.

        Raises:
            ExecutionError: The job cannot run, or an op failed (the message names rank, op and micro-batch).
            ProfileError: There is no such model, or it cannot be built.
        """
        is_real = not self.spec.is_emulated
        with starting(context.rank):
            if is_real:
                require_equal_layers(self.model)
            stages, batch = self.build(context)
        if is_real:
            modules = {index: stage.module for index, stage in stages.items() if isinstance(stage, ModuleStage)}
            require_equal_weights(self.lists, self.model, self.spec.bounds, modules)
        shapes = self.shapes(context, stages, batch)
        gc.collect()
        gc.freeze()  # the built objects stay: the collector need not visit them inside an op
        try:
            with following_device(self.listener, context.device) as self.listener:
                self._work(context, stages, batch, shapes)
                return self.gather(context)
        finally:
            gc.unfreeze()  # in a user's process all that was there before goes on too

    def _work(
        self, context: RankContext, stages: Mapping[int, Stage], batch: Batch, shapes: Mapping[int, BoundaryShape]
    ) -> None:
        """Run the lists, with the references if there are any, and save the weights if requested."""
        is_real = not self.spec.is_emulated
        with references(self.lists, context, stages, self.spec.averaging) if is_real else nullcontext():
            self.work(context, stages, batch, shapes)
            for stage in stages.values():
                stage.settle()
        if self.spec.save is not None:
            others = {index for rank in range(context.rank) for index in self.lists.stages_on(rank)}
            own = {index: stage for index, stage in stages.items() if index not in others}
            with writing(context.rank):
                save_stages(Path(self.spec.save), self.model if is_real else None, self.spec.bounds, own)
