"""The ranks of a training loop that a user's script runs: batch by batch, here or in a process per rank."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias, final

import torch
from torch import Tensor, nn

from pipesched.executor import ExecutionError, RunSettings
from pipesched.executor.core import (
    Batch,
    ModuleStage,
    Rank,
    Recorder,
    Stage,
    load_whole_state,
    make_clock,
    make_meter,
    whole_state,
)
from pipesched.executor.runs.loop_lists import accumulating_lists, forward_lists
from pipesched.executor.runs.measured_timeline import measured_timeline
from pipesched.profiles.models import Model, OptimizerFactory, Value, kept_random_state, mapped, on_device, torch_dtype
from pipesched.schedules import Schedule, Timeline
from pipesched.schedules.ops import Compute

RankRecord: TypeAlias = tuple[list[tuple[int, int, int]], list[int], list[int]]
"""Times of the ops of a rank [ns], bytes after each and peak bytes inside each."""


FORWARD_TAG, _GATHERING_TAG = 5, 4
"""Numbers of the messages of forwards alone, and of batches without an update, over gloo."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSpec:
    """The specification of a training loop.

    Attributes:
        schedule: The lowered lists of one batch (`lists_of_batch`).
        model: The model.
        bounds: Half-open range of layers of every stage.
        settings: Device, dtype, seed, clipping and timeout.
        optimizer: Makes the optimizer of a stage from its parameters.
        keeps_dtype: Whether weights and data keep their types, in place of the dtype of the settings.
        autocast: Type in which autocast runs the forwards, or None without autocast.
        sample: Inputs of one micro-batch.
    """

    schedule: Schedule
    model: Model
    bounds: tuple[tuple[int, int], ...]
    settings: RunSettings
    optimizer: OptimizerFactory
    keeps_dtype: bool
    sample: Value
    autocast: torch.dtype | None = None


class OwnLoop(ABC):
    """The ranks of a training loop in this process.

    Every method but `stages` and `optimizers` is called in all processes, in the same order.

    Args:
        spec: Specification of the loop.
    """

    def __init__(self, spec: LoopSpec) -> None:
        self._spec = spec
        self._accumulating = accumulating_lists(spec.schedule)
        self._forwards: dict[int, list[Rank]] = {}
        self._recorded: list[Rank] = []
        self._losses: dict[int, Tensor] = {}
        self._outputs: dict[int, Value] = {}
        self._is_scored = False
        self._num_lists = 0

    @property
    @abstractmethod
    def stages(self) -> Mapping[int, Mapping[int, ModuleStage]]:
        """The stages of the ranks in this process, by rank and by number."""

    @abstractmethod
    def _join(self, lists: Schedule, stages: Mapping[int, Mapping[int, Stage]], tag: int) -> list[Rank]:
        """Return the ranks of this process for `lists`, whose messages do not mix with the messages of other lists."""

    @abstractmethod
    def _execute(self, ranks: Sequence[Rank], batch: Batch) -> None:
        """Run the lists of `ranks` once."""

    @abstractmethod
    def _mean_loss(self) -> Tensor:
        """Return the mean of the losses of the last batch, on the CPU, equal in all processes."""

    @abstractmethod
    def gather_texts(self, text: str) -> list[str]:
        """Return the text of every process."""

    @abstractmethod
    def union(self, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of all processes by name, on the CPU; tensors of equal names are equal."""

    @abstractmethod
    def _records(self) -> list[RankRecord]:
        """Return the records of all ranks, on one clock."""

    @abstractmethod
    def close(self, error: BaseException | None = None) -> None:
        """Leave the other ranks; after an error without waiting for them."""

    def begin_turn(self, call: str) -> None:  # noqa: B027 -- one process has one order
        """Begin the next call of the loop; all processes make the same calls."""

    def cause_of(self, error: BaseException) -> ExecutionError | None:  # noqa: ARG002
        """Return the error to report in place of `error`, if processes have made different calls, or None."""
        return None

    def step(self, batch: Batch, *, updates: bool, records: bool) -> Tensor:
        """Run one batch; return its mean loss.

        Args:
            batch: The micro-batches.
            updates: Whether the optimizers step, with the mean gradient of all batches since their last step.
            records: Whether `timeline` can return this batch.
        """
        self._losses.clear()
        self._num_lists += 1
        if updates:
            for stage in self._all_stages():
                stage.take_together(self._num_lists)
            self._num_lists = 0
        ranks = self._updating if updates else self._gathering
        if records:
            ranks = self._recorded = [_recording(rank, self._device_of(rank.rank)) for rank in ranks]
            self._recorded_lists = self._spec.schedule if updates else self._accumulating
        with torch.inference_mode(False), torch.enable_grad():  # whatever the script has set
            self._execute(ranks, batch)
        return self._mean_loss()

    def timeline(self) -> Timeline | None:
        """Return the Timeline of the last recorded batch, or None if none was recorded."""
        if not self._recorded:
            return None
        times, held, most = zip(*self._records(), strict=True)
        return measured_timeline(self._recorded_lists, times, held, most)

    def evaluate(self, batch: Batch, *, is_scored: bool) -> dict[int, Value]:
        """Run forwards in evaluation mode, without gradients; return the outputs on ranks with the last stage.

        Args:
            batch: The micro-batches, at most as many as of a step.
            is_scored: Whether the outputs are losses.
        """
        self._outputs, self._is_scored = {}, is_scored
        count = max(len(batch.inputs), len(batch.targets))
        if count not in self._forwards:
            lists = forward_lists(self._spec.schedule, count)
            self._forwards[count] = self._join(lists, self._forward_stages(), tag=FORWARD_TAG)
        modules = [stage.module for stage in self._all_stages()]
        with evaluation_mode(modules), kept_random_state():
            self._execute(self._forwards[count], batch)
        return self._outputs

    def state(self) -> dict[str, Tensor]:
        """Return the weights and buffers of the whole model, as `whole_state`, on the CPU."""
        model, replicas = self._spec.model, self._spec.schedule.replicas
        first = {
            index: stage.module
            for rank, stages in self.stages.items()
            for index, stage in stages.items()
            if min(replicas(index)) == rank
        }
        state = self.union(whole_state(model, self._spec.bounds, first))
        order = model.state_names or sorted(state, key=lambda name: int(name.partition(".")[0]))
        return {name: state[name] for name in order}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Load the weights and buffers in this process from a state of the whole model.

        Raises:
            StateError: As for `load_whole_state`.
        """
        for stages in self.stages.values():
            modules = {index: stage.module for index, stage in stages.items()}
            load_whole_state(self._spec.model, self._spec.bounds, modules, state)

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimizers of the stages in this process, in order of ranks and stages."""
        return [stage.optimizer for stage in self._all_stages() if stage.optimizer is not None]

    def _all_stages(self) -> list[ModuleStage]:
        return [stage for stages in self.stages.values() for stage in stages.values()]

    def _forward_stages(self) -> dict[int, dict[int, Stage]]:
        last = self._spec.schedule.num_stages - 1
        return {
            rank: {
                index: _ForwardStage(stage.module, self._take_output if index == last else None)
                for index, stage in stages.items()
            }
            for rank, stages in self.stages.items()
        }

    def _take_output(self, microbatch: int, output: Value, target: Value | None) -> None:
        self._outputs[microbatch] = self._spec.model.loss(output, target) if self._is_scored else output

    def _take_loss(self, microbatch: int, output: Value, target: Value, loss: Tensor) -> None:  # noqa: ARG002 -- as a stage calls it
        self._losses[microbatch] = loss

    @property
    @abstractmethod
    def is_first(self) -> bool:
        """Whether this process has rank 0."""

    @property
    @abstractmethod
    def parameter_counts(self) -> Mapping[int, int]:
        """The number of parameters of each stage."""

    @property
    @abstractmethod
    def boundary_bytes(self) -> Mapping[int, int]:
        """The bytes that a micro-batch sends from each stage to the next."""

    def _own_counts(self) -> dict[int, int]:
        """Return the number of parameters of each stage in this process."""
        return {
            index: sum(parameter.numel() for parameter in stage.module.parameters())
            for stages in self.stages.values()
            for index, stage in stages.items()
        }

    def _prepare(self) -> None:
        """Prepare the stages, once they are built."""
        if self._spec.autocast is not None:
            for rank, stages in self.stages.items():
                for stage in stages.values():
                    autocast_forwards(stage.module, self._device_of(rank), self._spec.autocast)

    def _use(self, ranks: list[Rank]) -> None:
        """Run these ranks from now on."""
        self._updating = ranks
        self._gathering = self._join(self._accumulating, self.stages, tag=_GATHERING_TAG)

    def _placed(self, batch: Batch, rank: int, device: torch.device) -> Batch:
        """Return the parts of a batch that a rank reads, on its device."""
        place = partial(_on, device, None if self._spec.keeps_dtype else torch_dtype(self._spec.settings.dtype))
        stages, last = self._spec.schedule.stages_on(rank), self._spec.schedule.num_stages - 1
        return Batch(
            [mapped(place, value) for value in batch.inputs] if 0 in stages else (),
            [mapped(place, value) for value in batch.targets] if last in stages else (),
        )

    @abstractmethod
    def _device_of(self, rank: int) -> torch.device:
        """Return the device of a rank in this process."""


@final
class _ForwardStage(Stage):
    """The layers of a stage, for lists that have only forwards.

    Args:
        module: The layers; one `Value` in, one out.
        on_output: Called with micro-batch, output and target after each forward of the last stage; None on other
            stages.
    """

    def __init__(self, module: nn.Module, on_output: Callable[[int, Value, Value | None], None] | None) -> None:
        self._module = module
        self._on_output = on_output

    def compute(self, op: Compute, received: Value | None, target: Value | None) -> Value | None:
        with torch.no_grad():
            output: Value = self._module(received)
        if self._on_output is None:
            return output
        self._on_output(op.microbatch, output, target)
        return None


def _on(device: torch.device, dtype: torch.dtype | None, tensor: Tensor) -> Tensor:
    cast = tensor if dtype is None or not tensor.is_floating_point() else tensor.to(dtype)
    return on_device(cast, device)


def _recording(rank: Rank, device: torch.device) -> Rank:
    return replace(rank, recorder=Recorder(make_clock(device), make_meter(device)))


def autocast_forwards(module: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Let each forward of a module run under autocast; a backward follows the types of its forward by itself."""
    entered: list[torch.autocast] = []

    def enter(*_: object) -> None:
        entered.append(torch.autocast(device.type, dtype))
        entered[-1].__enter__()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def leave(*_: object) -> None:
        entered.pop().__exit__(None, None, None)

    module.register_forward_pre_hook(enter)
    module.register_forward_hook(leave, always_call=True)


@contextmanager
def evaluation_mode(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Put modules and their submodules into evaluation mode inside the block."""
    modes = {part: part.training for module in modules for part in module.modules()}
    for part in modes:
        part.training = False
    try:
        yield
    finally:
        for part, is_training in modes.items():
            part.training = is_training
