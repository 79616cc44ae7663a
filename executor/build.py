"""From a schedule and a model to what a rank works with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from executor.emulated import EmulatedStage
from executor.errors import ExecutionError
from executor.interpreter import Batch
from executor.job import How
from executor.stage import ModuleStage, Stage
from executor.weights import Weights
from profiles.models.model import Model, build_layers
from profiles.models.optimizers import make_optimizer
from profiles.stage_costs import StageCosts
from schedules.op import Op, Phase, Step, computes
from schedules.schedule import Schedule, stages_of


def build_stages(
    ops: Sequence[Op],
    num_stages: int,
    model: Model,
    bounds: Sequence[tuple[int, int]],
    *,
    optimizer: str,
    lr: float,
    seed: int,
    dtype: torch.dtype,
    device: torch.device,
) -> dict[int, Stage]:
    """Build the stages that `ops` computes, with the weights that the whole model has for `seed`.

    Args:
        bounds: ``bounds[s]`` is the half-open range of layers of stage s.
    """
    stages: dict[int, Stage] = {}
    for index in stages_of(tuple(ops)):
        module = build_layers(model, *bounds[index], seed=seed, dtype=dtype, device=device)
        parameters = list(module.parameters())
        reads = Counter(part.version for op in ops for part in computes(op) if part.stage == index)
        stages[index] = ModuleStage(
            module,
            Weights(module, reads, _computes_after_step(ops, index)),
            make_optimizer(optimizer, parameters, lr) if parameters else None,
            loss=model.loss if index == num_stages - 1 else None,
            loss_scale=1 / microbatches_per_step(ops, index),
            needs_input_gradient=index > 0,
        )
    return stages


def emulated_stages(ops: Sequence[Op], costs: StageCosts, how: How) -> dict[int, Stage]:
    """Build stages that only take the time of `costs`."""
    return {index: EmulatedStage(index, costs, how) for index in stages_of(tuple(ops))}


def microbatches_per_step(ops: Sequence[Op], stage: int) -> int:
    """Return how many backwards of `stage` come before its first Step, or at all if it has none."""
    count = 0
    for op in ops:
        if isinstance(op, Step) and op.stage == stage:
            break
        count += sum(
            part.stage == stage and part.phase in (Phase.BACKWARD, Phase.BACKWARD_WEIGHT) for part in computes(op)
        )
    return max(1, count)


def _computes_after_step(ops: Sequence[Op], stage: int) -> bool:
    first = next((index for index, op in enumerate(ops) if op == Step(stage)), len(ops))
    return any(part.stage == stage for op in ops[first:] for part in computes(op))


def make_batch(
    model: Model, num_microbatches: int, microbatch_size: int, *, seed: int, dtype: torch.dtype, device: torch.device
) -> Batch:
    """Draw the data of one run and cut it into micro-batches; floating-point data gets `dtype`."""
    cut = []
    for tensor in model.batch(num_microbatches * microbatch_size, seed):
        if len(tensor) != num_microbatches * microbatch_size:
            raise ExecutionError(
                f"model {model.name}: its batch has {len(tensor)} samples, "
                f"expected {num_microbatches * microbatch_size}"
            )
        cut.append(tensor.to(device, dtype if tensor.is_floating_point() else None).chunk(num_microbatches))
    inputs, targets = cut
    return Batch(inputs, targets)


def check_fits(schedule: Schedule, num_stages: int, what: str) -> None:
    """Refuse a model or costs that were cut into another number of stages than the schedule has.

    Raises:
        ExecutionError: The numbers differ.
    """
    if schedule.num_stages != num_stages:
        raise ExecutionError(
            f"schedule {schedule.name} has {schedule.num_stages} stages, but {what} has {num_stages}; "
            "cut it into as many stages"
        )
