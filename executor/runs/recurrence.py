"""The losses of a run with steps between its micro-batches, by the recurrence of its lists, without a pipeline.

For each micro-batch and stage, the lists give the version and the look-ahead of the weights that F, R and B read, and
the Step of its gradient. Here one micro-batch follows another. Each version is a plain copy, which is written over the
parameters before its reader: after a forward, autograd then reads the weights of the backward.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, final

import torch
from torch import Tensor

from pipesched.executor.core import LayerGenerators, Predictor, load_whole_state, make_batch, stage_ops, weight_file
from pipesched.executor.launch import RunSpec
from pipesched.profiles.models import (
    Model,
    Value,
    build_layers,
    in_states,
    make_optimizer,
    mapped,
    module_states,
    resolve_model,
    tensors_of,
    torch_dtype,
)
from pipesched.schedules import Schedule
from pipesched.schedules.ops import ENDS_MICROBATCH, Phase, Step

_Loss: TypeAlias = Callable[[Any, Any], Tensor]
_Read: TypeAlias = tuple[int, int]
"""A version, and the steps by which it is predicted ahead."""


@dataclass(slots=True)
class _StageReads:
    """The reads and the Steps of a stage in the lists.

    Attributes:
        reads: The read of each phase and micro-batch.
        steps: The number of the Step that takes the gradient of each micro-batch.
        num_steps: Steps of the stage.
    """

    reads: dict[tuple[Phase, int], _Read] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)
    num_steps: int = 0

    @classmethod
    def of(cls, schedule: Schedule, stage: int) -> _StageReads:
        """Read the lists of all replicas of a stage, which step equally often."""
        reads = cls()
        for rank in schedule.replicas(stage):
            reads.num_steps = 0
            for op in stage_ops(schedule, rank, stage):
                if isinstance(op, Step):
                    reads.num_steps += 1
                    continue
                # before its first Step, a stage has no state for predictions
                reads.reads[op.phase, op.microbatch] = (op.version, op.lookahead if op.version else 0)
                if op.phase in ENDS_MICROBATCH:
                    reads.steps[op.microbatch] = reads.num_steps
        return reads


@final
class _PlainStage:
    """The layers of a stage, with copies of all versions that are read."""

    def __init__(self, spec: RunSpec, model: Model, schedule: Schedule, stage: int, lists: _StageReads) -> None:
        bounds, device = spec.bounds[stage], torch.device(spec.device)
        self.module = build_layers(model, *bounds, seed=spec.seed, dtype=torch_dtype(spec.dtype), device=device)
        if spec.weights is not None:
            with weight_file(spec.weights) as state:
                load_whole_state(model, spec.bounds, {stage: self.module}, state)
        self.parameters = [*self.module.parameters()]
        self.draws = LayerGenerators(self.module, bounds[0], spec.seed, device, is_repeated=True)
        self.draws.begin()
        self.lists = lists
        self._optimizer = make_optimizer(spec.optimizer, self.parameters, spec.lr) if self.parameters else None
        rule = spec.prediction or schedule.traits.prediction
        ahead = {read for read in self.lists.reads.values() if read[1]}
        self._predictor = None
        if ahead and self._optimizer is not None and rule is not None:
            self._predictor = Predictor(self._optimizer, rule)
        self._wanted = defaultdict[int, set[int]](set)
        for version, lookahead in ahead:
            self._wanted[version].add(lookahead)
        self._left = Counter(self.lists.reads.values())  # readers of each copy
        self._sizes = Counter(self.lists.steps.values())
        self._sums: dict[int, list[Tensor | None]] = {}
        self._version = 0
        self._copies: dict[_Read, list[Tensor]] = {}
        self._keep()

    def _keep(self) -> None:
        """Copy the present weights, and predict those that are read."""
        own = [parameter.detach().clone() for parameter in self.parameters]
        self._copies[self._version, 0] = own
        for lookahead in self._wanted.pop(self._version, ()):
            moved: Mapping[Tensor, Tensor] = {p: p.detach().clone() for p in self.parameters}
            if self._predictor is not None:
                self._predictor.move(moved, lookahead)
            self._copies[self._version, lookahead] = [moved[parameter] for parameter in self.parameters]

    def load(self, phase: Phase, microbatch: int) -> None:
        """Overwrite the parameters with the weights that an op reads."""
        read = self.lists.reads[phase, microbatch]
        self._write(read)
        self._left[read] -= 1
        if not self._left[read] and read != (self._version, 0):
            del self._copies[read]

    def _write(self, read: _Read) -> None:
        for parameter, copy in zip(self.parameters, self._copies[read], strict=True):
            parameter.data.copy_(copy)  # autograd keeps the storage, and does not see a change

    def has(self, phase: Phase, microbatch: int) -> bool:
        """Return whether the weights that an op reads are there."""
        return self.lists.reads[phase, microbatch] in self._copies

    def add(self, microbatch: int, gradients: Sequence[Tensor | None]) -> None:
        """Add the gradients of a micro-batch to the sum of its Step; after the Step's last micro-batch, step."""
        number = self.lists.steps[microbatch]
        sums = self._sums.setdefault(number, [None] * len(gradients))
        for index, gradient in enumerate(gradients):
            before = sums[index]
            sums[index] = before if gradient is None else gradient if before is None else before + gradient
        self._sizes[number] -= 1
        if self._sizes[number] or number >= self.lists.num_steps:
            return
        size = sum(step == number for step in self.lists.steps.values())
        self._write((self._version, 0))
        for parameter, gradient in zip(self.parameters, self._sums.pop(number), strict=True):
            parameter.grad = None if gradient is None else gradient / size
        if self._optimizer is not None:
            if self._predictor is not None:
                self._predictor.observe()
            self._optimizer.step()
            self._optimizer.zero_grad()
        if not self._left[self._version, 0]:
            del self._copies[self._version, 0]
        self._version += 1
        self._keep()


def recurrence_losses(spec: RunSpec, model: Model | None = None) -> tuple[float, ...] | None:
    """Return the loss of every micro-batch in the first run of the lists of a measured run.

    Args:
        spec: Specification of the run.
        model: The model of the run (default: looked up by name).

    Returns:
        The losses; None if no forward follows a step, or if the lists split backwards, average pipelines, or let a
        micro-batch read weights that a later one has changed.
    """
    assert spec.model is not None, "an emulated run has no losses"
    schedule = spec.measurement.lists
    model, size = model or resolve_model(spec.model), spec.measurement.microbatch_size
    lists = [_StageReads.of(schedule, stage) for stage in range(schedule.num_stages)]
    reads = {(phase, version) for its in lists for (phase, _), (version, _) in its.reads.items()}
    is_split = any(phase in (Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT) for phase, _ in reads)
    is_later = any(phase is Phase.FORWARD and version for phase, version in reads)
    if is_split or schedule.averagers or not is_later:
        return None
    stages = [_PlainStage(spec, model, schedule, stage, its) for stage, its in enumerate(lists)]
    batch = make_batch(
        model,
        schedule.num_microbatches,
        size,
        seed=spec.seed,
        dtype=torch_dtype(spec.dtype),
        device=torch.device(spec.device),
    )
    losses = []
    for microbatch, (x, y) in enumerate(zip(batch.inputs, batch.targets, strict=True)):
        if not all(stage.has(Phase.FORWARD, microbatch) for stage in stages):
            return None
        losses.append(_train_on(stages, model.loss, microbatch, x, y))
    return tuple(losses)


def _train_on(stages: Sequence[_PlainStage], loss: _Loss, microbatch: int, x: Value, y: Value) -> float:
    """Run one micro-batch through all stages and back, and let stages step; return its loss."""
    passes: list[tuple[Value, Value]] = []  # the input and the output of each stage
    value = x
    for index, stage in enumerate(stages):
        stage.load(Phase.FORWARD, microbatch)
        entered = mapped(partial(_leaf, learns=index > 0), value)
        passes.append((entered, _forward(stage, microbatch, entered, loss if stage is stages[-1] else None, y)))
        value = passes[-1][1]
    result = tensors_of(value)[0].item()
    gradients: Sequence[Tensor | None] = [torch.ones_like(tensor) for tensor in tensors_of(value)]
    for stage, (entered, left) in zip(reversed(stages), reversed(passes), strict=True):
        if (Phase.RECOMPUTE, microbatch) in stage.lists.reads:
            stage.load(Phase.RECOMPUTE, microbatch)
            with in_states(module_states(stage.module.modules(), has_parameters=False)):
                left = _forward(stage, microbatch, entered, loss if stage is stages[-1] else None, y)
        stage.load(Phase.BACKWARD, microbatch)
        gradients = _backward(stage, microbatch, entered, left, gradients)
    return float(result)


def _leaf(tensor: Tensor, *, learns: bool) -> Tensor:
    return tensor.detach().requires_grad_(learns and tensor.is_floating_point() and tensor.requires_grad)


def _forward(stage: _PlainStage, microbatch: int, entered: Value, loss: _Loss | None, target: Value) -> Value:
    with stage.draws.of(microbatch):
        left: Value = stage.module(entered)
        return left if loss is None else loss(left, target)


def _backward(
    stage: _PlainStage, microbatch: int, entered: Value, left: Value, gradients: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Take the gradients of the parameters; return a gradient for each tensor of the input."""
    given = [
        (tensor, gradient)
        for tensor, gradient in zip(tensors_of(left), gradients, strict=True)
        if gradient is not None and tensor.requires_grad
    ]
    inputs = [tensor for tensor in tensors_of(entered) if tensor.requires_grad]
    learned = [parameter for parameter in stage.parameters if parameter.requires_grad]
    taken: Sequence[Tensor | None] = [None] * (len(inputs) + len(learned))
    if given and taken:
        outputs, starts = zip(*given, strict=True)
        taken = torch.autograd.grad(outputs, [*inputs, *learned], starts, allow_unused=True)
    of_inputs, of_learned = iter(taken[: len(inputs)]), iter(taken[len(inputs) :])
    stage.add(microbatch, [next(of_learned) if p.requires_grad else None for p in stage.parameters])
    return [next(of_inputs) if tensor.requires_grad else None for tensor in tensors_of(entered)]
