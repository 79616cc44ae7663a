"""Eight schedules on streams of one device, and the same training by a plain loop over the whole model.

The loop uses neither op lists nor streams. For micro-batch i, stage k reads weights of this version, and steps after
this number of micro-batches:

    flush        version 0                        one Step, behind all micro-batches
    pipedream    version max(0, i - (p - 1 - k))  a Step behind each micro-batch
    wpipe        version max(0, i // p - 1)       a Step behind p micro-batches; stages from p on read version i // p
    avgpipe      the newest                       each pipeline trains its own model, then moves it to the reference
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pipesched.executor import RunSettings
from pipesched.executor.core import (
    Batch,
    CudaStreams,
    HostStreams,
    ModuleStage,
    RankStreams,
    Recorder,
    build_stages,
    make_batch,
    make_clock,
)
from pipesched.executor.runs import local_ranks, run_local
from pipesched.profiles import OptimizerName
from pipesched.profiles.models import Model, build_layers, resolve_model
from pipesched.profiles.models.torch_names import make_optimizer
from pipesched.schedules import Schedule
from pipesched.schedules.builders import CATALOGUE, build
from pipesched.schedules.lowering import lower

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb_h1", "zbv", "pipedream", "wpipe", "avgpipe")
SAME_ORDER = frozenset({"gpipe", "1f1b", "interleaved", "zb_h1", "zbv", "pipedream", "wpipe"})
"""Schedules whose sums run in the order of the plain loop, so that every bit agrees."""
TOLERANCE = 1e-5
"""Largest difference, relative to the largest number of the same kind, where sums run in another order."""
MODEL = "gpt:layers=6,width=64,heads=4,context=32"
NUM_MICROBATCHES, MICROBATCH_SIZE, PIPELINES, SEED = 8, 2, 2, 0
OPTIMIZER: OptimizerName = "momentum"
"""Momentum: the buffer is the gradient of the first Step, and a decayed sum from the second Step on."""
LR = 0.05
Values = dict[str, Tensor]
"""The parameters of a stage by name."""


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of a training.

    Attributes:
        losses: Loss of each micro-batch of the first iteration.
        gradients: Momentum of each parameter, a sum of its gradients; in order of pipelines, stages and parameters.
        weights: Weights, in the same order.
    """

    losses: tuple[float, ...]
    gradients: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest differences of two trainings, relative to the largest number of a kind; 0 if all bits agree."""

    losses: float
    gradients: float
    weights: float

    @property
    def largest(self) -> float:
        """The largest of the three."""
        return max(self.losses, self.gradients, self.weights)


def compare(name: str, num_ranks: int, device: torch.device) -> Difference:
    """Train by a schedule on streams of a device, and by the plain loop there; return the largest differences.

    Args:
        name: One of `SCHEDULES`.
        num_ranks: Ranks of the schedule; for AvgPipe, ranks of each of its two pipelines.
        device: Device of all ranks.
    """
    schedule = schedule_of(name, num_ranks)
    model = resolve_model(MODEL)
    batch = make_batch(
        model, NUM_MICROBATCHES, MICROBATCH_SIZE, seed=SEED, dtype=torch.float32, device=torch.device(device)
    )
    bounds = even_bounds(len(model.layers), schedule.num_stages)
    times = 2 if name == "avgpipe" else 1  # the reference counts from the second iteration on
    streamed = _on_streams(schedule, model, bounds, batch, device, times)
    if name == "avgpipe":
        plain = _averaged_plainly(model, bounds, batch, device, times)
    else:
        plain = _trained_plainly(model, bounds, batch, device, *_rule_of(name, num_ranks))
    return Difference(
        _difference(*(list(map(torch.tensor, trained.losses)) for trained in (streamed, plain))),
        _difference(streamed.gradients, plain.gradients),
        _difference(streamed.weights, plain.weights),
    )


def schedule_of(name: str, num_ranks: int) -> Schedule:
    """Return the lowered lists, with two stages per rank if the schedule takes chunks."""
    num_chunks = 2 if CATALOGUE[name].traits.takes_chunks else None
    return lower(build(name, num_ranks, NUM_MICROBATCHES, num_chunks))


def even_bounds(num_layers: int, num_stages: int) -> tuple[tuple[int, int], ...]:
    """Return the layers of each stage, in nearly equal numbers."""
    cuts = [stage * num_layers // num_stages for stage in range(num_stages + 1)]
    return tuple(pairwise(cuts))


def streams_on(device: torch.device, num_ranks: int) -> dict[int, RankStreams]:
    """Return a stream of the device for each rank."""
    return {rank: CudaStreams(device) if device.type == "cuda" else HostStreams() for rank in range(num_ranks)}


def _on_streams(
    schedule: Schedule,
    model: Model,
    bounds: Sequence[tuple[int, int]],
    batch: Batch,
    device: torch.device,
    times: int,
) -> Trained:
    """Run the lists `times` times, each rank on a stream of the device."""

    def stages_of(rank: int) -> dict[int, ModuleStage]:
        settings = RunSettings(optimizer=OPTIMIZER, lr=LR, seed=SEED)
        return build_stages(schedule, rank, model, bounds, settings, device)

    streams = streams_on(device, schedule.num_ranks)
    ranks = local_ranks(schedule, stages_of, streams=streams, recorder=lambda rank: Recorder(make_clock(device)))  # noqa: ARG005
    losses: dict[int, float] = {}
    for iteration in range(times):
        run_local(ranks, batch)
        if iteration == 0:
            losses = {number: loss for rank in ranks for stage in rank.stages.values() for number, loss in
                      stage.losses().items()}  # fmt: skip
    for own in streams.values():
        own.synchronize()
    num_pipelines = PIPELINES if schedule.name == "avgpipe" else 1
    per_pipeline = len(ranks) // num_pipelines
    gradients, weights = list[Tensor](), list[Tensor]()
    for first in range(0, len(ranks), per_pipeline):
        stages = {number: stage for rank in ranks[first : first + per_pipeline] for number, stage in
                  rank.stages.items()}  # fmt: skip
        for number in sorted(stages):
            stage = stages[number]
            assert isinstance(stage, ModuleStage), "it has weights"
            assert stage.optimizer is not None, "its weights learn"
            gradients += _momenta(stage.optimizer, stage.module)
            weights += [parameter.detach() for parameter in stage.module.parameters()]
    return Trained(tuple(losses[number] for number in sorted(losses)), tuple(gradients), tuple(weights))


def _rule_of(name: str, num_ranks: int) -> tuple[Callable[[int, int], int], int]:
    """Return the version that stage k reads for micro-batch i, and the micro-batches of a Step."""
    p = num_ranks
    if name == "pipedream":
        return lambda k, i: max(0, i - (p - 1 - k)), 1
    if name == "wpipe":
        return lambda k, i: max(0, i // p - 1) if k < p else i // p, p
    return lambda k, i: 0, NUM_MICROBATCHES  # noqa: ARG005


def _trained_plainly(
    model: Model,
    bounds: Sequence[tuple[int, int]],
    batch: Batch,
    device: torch.device,
    version_of: Callable[[int, int], int],
    per_step: int,
) -> Trained:
    """Train by the plain loop.

    Args:
        model: The model.
        bounds: Layers of each stage.
        batch: The data.
        device: Device of the model.
        version_of: Returns the version of the weights that stage k reads for micro-batch i.
        per_step: Micro-batches of a Step.
    """
    stages = [_built(model, cut, device) for cut in bounds]
    optimizers = [make_optimizer(OPTIMIZER, list(stage.parameters()), LR) for stage in stages]
    versions = [[_values(stage)] for stage in stages]
    losses = []
    for i, (x, y) in enumerate(zip(batch.inputs, batch.targets, strict=True)):
        read = [versions[k][version_of(k, i)] for k in range(len(stages))]
        for stage, values in zip(stages, read, strict=True):
            x = functional_call(stage, values, (x,))
        loss = model.loss(x, y)
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, [value for values in read for value in values.values()])
        _add(gradients, [parameter for stage in stages for parameter in stage.parameters()])
        if (i + 1) % per_step == 0:
            for stage, optimizer, its_versions in zip(stages, optimizers, versions, strict=True):
                _step(optimizer, stage, per_step)
                its_versions.append(_values(stage))
    momenta = [part for pair in zip(optimizers, stages, strict=True) for part in _momenta(*pair)]
    weights = [parameter.detach() for stage in stages for parameter in stage.parameters()]
    return Trained(tuple(losses), tuple(momenta), tuple(weights))


def _averaged_plainly(
    model: Model, bounds: Sequence[tuple[int, int]], batch: Batch, device: torch.device, times: int
) -> Trained:
    """Train a model for each pipeline, and draw it to the reference of the iteration before."""
    modules = [nn.ModuleList(_built(model, cut, device) for cut in bounds) for _ in range(PIPELINES)]
    optimizers = [make_optimizer(OPTIMIZER, list(module.parameters()), LR) for module in modules]
    reference = [parameter.detach().clone() for parameter in modules[0].parameters()]
    share, size = 1 / PIPELINES, NUM_MICROBATCHES // PIPELINES
    losses = []
    for iteration in range(times):
        updates = []
        for n, (module, optimizer) in enumerate(zip(modules, optimizers, strict=True)):
            before = [parameter.detach().clone() for parameter in module.parameters()]
            for i in range(n * size, (n + 1) * size):
                x = batch.inputs[i]
                for stage in module:
                    x = stage(x)
                loss = model.loss(x, batch.targets[i])
                losses += [loss.item()] if iteration == 0 else []
                _add(torch.autograd.grad(loss, list(module.parameters())), list(module.parameters()))
            _step(optimizer, module, size)
            update = [after.detach() - old for after, old in zip(module.parameters(), before, strict=True)]
            updates.append(update)
            with torch.no_grad():
                for parameter, old, mean, own in zip(module.parameters(), before, reference, update, strict=True):
                    parameter.copy_((1 - share) * old + share * mean + own)
        reference = [old + share * sum(parts) for old, *parts in zip(reference, *updates, strict=True)]
    momenta = [part for pair in zip(optimizers, modules, strict=True) for part in _momenta(*pair)]
    return Trained(tuple(losses), tuple(momenta), tuple(p.detach() for module in modules for p in module.parameters()))


def _built(model: Model, cut: tuple[int, int], device: torch.device) -> nn.Module:
    return build_layers(model, *cut, seed=SEED, dtype=torch.float32, device=device)


def _values(module: nn.Module) -> Values:
    return {name: value.detach().clone().requires_grad_() for name, value in module.named_parameters()}


def _add(gradients: Sequence[Tensor], parameters: Sequence[nn.Parameter]) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


def _step(optimizer: torch.optim.Optimizer, module: nn.Module, num_microbatches: int) -> None:
    for parameter in module.parameters():
        assert parameter.grad is not None, "a gradient was added"
        parameter.grad /= num_microbatches
    optimizer.step()
    optimizer.zero_grad()


def _momenta(optimizer: torch.optim.Optimizer, module: nn.Module) -> list[Tensor]:
    return [optimizer.state[parameter]["momentum_buffer"] for parameter in module.parameters()]


def _difference(some: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    """Return the largest difference, relative to the largest number; infinite if a value is NaN."""
    assert len(some) == len(others) > 0, "both have as many"
    apart = max(float((a - b).abs().max()) for a, b in zip(some, others, strict=True))
    largest = max(float(b.abs().max()) for b in others)
    return math.inf if math.isnan(apart) else apart / largest
