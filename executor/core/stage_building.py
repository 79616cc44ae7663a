"""Build the stages of a rank, with their weights and optimizers, from a schedule and a model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pipesched.executor import Averaging, ExecutionError, LearningSettings, RunSettings, cut_fault, epsilon_fault
from pipesched.executor.core.elastic_averager import ElasticAverager, Pool
from pipesched.executor.core.gradients import GradientMean, StageSums, loss_scales, step_sizes
from pipesched.executor.core.interpreter import Batch
from pipesched.executor.core.layer_rng import LayerGenerators
from pipesched.executor.core.learning_rate import LearningRate
from pipesched.executor.core.schedule_queries import is_flushed, stage_ops
from pipesched.executor.core.stage import ModuleStage, OnLoss, Stage, StageLists
from pipesched.executor.core.weight_predictor import Predictor
from pipesched.executor.core.weight_versions import Weights
from pipesched.executor.core.whole_state import load_whole_state, weight_file
from pipesched.profiles.models import (
    Model,
    OptimizerFactory,
    Value,
    build_layers,
    draw_batch,
    make_optimizer,
    mapped,
    microbatch,
    on_device,
    pinned_for,
    require_known_ties,
    tensors_of,
    tied_stages,
    ties_between,
    torch_dtype,
)
from pipesched.schedules import PredictionRule, Schedule
from pipesched.schedules.ops import Compute, Phase, Step, Summed
from pipesched.schedules.weights import Use, uses


@dataclass(frozen=True, slots=True)
class LearningRun:
    """The optimizer over the steps of a training run.

    Attributes:
        settings: The schedule of the learning rate, the weight decay and the kind of momentum.
        num_steps: Steps of the run.
        microbatches_per_step: Micro-batches of a step, per pipeline if several pipelines are averaged.
    """

    settings: LearningSettings
    num_steps: int
    microbatches_per_step: int

    @property
    def further_arguments(self) -> dict[str, Any]:
        """The arguments of `make_optimizer` other than the learning rate."""
        return {"weight_decay": self.settings.weight_decay, "is_nesterov": self.settings.is_nesterov}

    def rate(self, optimizer: torch.optim.Optimizer, schedule: Schedule, rank: int, stage: int) -> LearningRate | None:
        """Return the learning rate of a stage's optimizer, or None for a constant rate."""
        if self.settings.lr_schedule == "constant" and not self.settings.lr_warmup:
            return None
        size = next(step_sizes(schedule, rank, stage))
        return LearningRate(optimizer, self.settings, self.num_steps, self.microbatches_per_step // size)


def build_stages(
    schedule: Schedule,
    rank: int,
    model: Model,
    bounds: Sequence[tuple[int, int]],
    settings: RunSettings,
    device: torch.device,
    *,
    optimizer: OptimizerFactory | None = None,
    learning: LearningRun | None = None,
    keeps_dtype: bool = False,
    on_loss: OnLoss | None = None,
) -> dict[int, ModuleStage]:
    """Build the stages that `rank` computes, with the weights of the whole model for the seed of the run.

    So the replicas of a stage begin alike.

    Args:
        bounds: ``bounds[s]`` is the half-open range of layers of stage s.
        settings: Give the optimizer, its learning rate, the clipping, the seed, the initial weights, the dtype and the
            rule of weight prediction.
        device: Device of the stages.
        optimizer: Makes the optimizer of a stage from its parameters (default: the optimizer of the settings).
        learning: The steps of a training run (default: a constant learning rate, and the optimizer's default decay).
        keeps_dtype: Whether layers keep the types of their weights, in place of the dtype of the settings.
        on_loss: Called with micro-batch, output, target and loss after each forward of the last stage, which then keeps
            no losses.

    Raises:
        ExecutionError: The stages are not a cut of the model, an op looks ahead without a rule of prediction, the dtype
            cannot hold Adam's epsilon, stages share parameters and do not sum their gradients, or the file of initial
            weights does not fit.
        ProfileError: A layer cannot be built, or two stages share a parameter that is not among the model's ties.
    """
    _require_cut(model, bounds)
    _require_sums(schedule, model, bounds, settings.clip_grad_norm)
    stages = dict[int, ModuleStage]()
    scales, seed, dtype = loss_scales(schedule), settings.seed, None if keeps_dtype else torch_dtype(settings.dtype)
    for index in schedule.stages_on(rank):
        module = build_layers(model, *bounds[index], seed=seed, dtype=dtype, device=device)
        if settings.weights is not None:
            with weight_file(settings.weights) as state:
                load_whole_state(model, bounds, {index: module}, state)
        own_optimizer, rate, predictor = _optimizing(schedule, rank, index, module, settings, optimizer, learning)
        lists = _stage_lists(schedule, rank, index, scales, Weights(module, _uses(schedule, rank, index), predictor))
        num_replicas = len(schedule.reducers.get(index, (rank,)))
        stages[index] = ModuleStage(
            module,
            lists,
            own_optimizer,
            loss=model.loss if index == schedule.num_stages - 1 else None,
            needs_input_gradient=index > 0,
            draws=LayerGenerators(module, bounds[index][0], seed, device, is_repeated=bool(lists.recomputed)),
            on_loss=on_loss,
            sums=StageSums(settings.clip_grad_norm, num_replicas, device, *_ties_in(model, bounds, index, module)),
            learning_rate=rate,
        )
    return stages


def _optimizing(
    schedule: Schedule, rank: int, stage: int, module: nn.Module, settings: RunSettings,
    optimizer: OptimizerFactory | None, learning: LearningRun | None,
) -> tuple[torch.optim.Optimizer | None, LearningRate | None, Predictor | None]:  # fmt: skip
    """Return the optimizer, the learning rate and the predictor of a stage, or None for each that it lacks."""
    parameters = list(module.parameters())
    if not parameters:
        return None, None, None
    if optimizer is not None:
        made = optimizer(parameters)
    else:
        further = {} if learning is None else learning.further_arguments
        made = make_optimizer(settings.optimizer, parameters, settings.lr, **further)
    rate = None if learning is None else learning.rate(made, schedule, rank, stage)
    rule = _rule(schedule, rank, stage, settings.prediction)
    if optimizer is None and (fault := epsilon_fault(settings.dtype, settings.optimizer, rule)):
        raise ExecutionError(f"dtype: {fault}")
    return made, rate, None if rule is None else Predictor(made, rule, None if rate is None else rate.ahead)


def _require_cut(model: Model, bounds: Sequence[tuple[int, int]]) -> None:
    """Refuse stages that do not cut the model, or share parameters that are not among its ties."""
    if (fault := cut_fault(bounds, len(model.layers))) is not None:
        raise ExecutionError(f"bounds: {fault}")
    require_known_ties(model, bounds)


def _require_sums(
    schedule: Schedule, model: Model, bounds: Sequence[tuple[int, int]], clip_grad_norm: float | None
) -> None:
    """Refuse lists without the sums over stages that clipping or shared parameters need."""
    if clip_grad_norm is not None and Summed.NORM not in schedule.summands:
        raise ExecutionError(
            f"clip_grad_norm: got {clip_grad_norm:g} with schedule {schedule.name}, expected steps that wait "
            "for the norm of all stages; try pipesched.schedules.transforms.with_step_barrier"
        )
    tied, summed = tied_stages(model, bounds), schedule.summed_stages(Summed.TIED)
    if not {*tied} <= {*summed}:
        layer, name = ties_between(model, bounds)[0][0]
        raise ExecutionError(
            f"model {model.name}: got stages {', '.join(map(str, tied))} that share parameters (first {name} of layer "
            f"{layer}) with schedule {schedule.name}, expected steps that wait for the sum of their gradients; try "
            "pipesched.schedules.transforms.with_tied_sum, or cut the model so that one stage has all of these layers"
        )


def _ties_in(
    model: Model, bounds: Sequence[tuple[int, int]], stage: int, module: nn.Module
) -> tuple[Sequence[Tensor], Collection[Tensor]]:
    """Return the arguments `tied` and `copies` of the `StageSums` of `stage`; its layers are in `module`.

    Parameters that only other stages share take part with zeros. Their shape comes from building a layer anew.
    """
    first, _ = bounds[stage]
    parameters, copies = list[Tensor](), list[Tensor]()
    own = tied_parameters(model, bounds, stage, module)
    if not own:
        return (), ()
    example = next(module.parameters())
    for number, tie in enumerate(ties_between(model, bounds)):
        if number in own:
            parameters.append(own[number])
            if tie[0][0] < first:
                copies.append(own[number])
        else:
            layer = tie[0][0]
            shape = _parameter(model, build_layers(model, layer, layer + 1, seed=0), tie[0], layer).shape
            parameters.append(example.new_zeros(()).expand(shape))
    return parameters, frozenset(copies)


def tied_parameters(
    model: Model, bounds: Sequence[tuple[int, int]], stage: int, module: nn.Module
) -> dict[int, nn.Parameter]:
    """Return the parameters that `stage`, whose layers are `module`, shares with others, by number of the tie.

    `ties_between` finds the ties.
    """
    first, last = bounds[stage]
    places = [next((place for place in tie if first <= place[0] < last), None) for tie in ties_between(model, bounds)]
    return {number: _parameter(model, module, own, first) for number, own in enumerate(places) if own is not None}


def _parameter(model: Model, module: nn.Module, place: tuple[int, str], first: int) -> nn.Parameter:
    """Return a parameter of layers that begin with layer `first`."""
    layer, name = place
    try:
        return module.get_parameter(f"{layer - first}.{name}")
    except AttributeError:
        raise ExecutionError(
            f"model {model.name}: ties: got {name} of layer {layer}, which has no such parameter, expected names as in "
            "its named_parameters(); correct the name"
        ) from None


def follow(stages: Mapping[int, ModuleStage], schedule: Schedule, rank: int) -> None:
    """Let the `stages` of `rank` continue with other lists of the same run; all other state is unchanged."""
    scales = loss_scales(schedule)
    for index, stage in stages.items():
        weights = Weights(stage.module, _uses(schedule, rank, index), stage.weights.predictor)
        stage.follow(_stage_lists(schedule, rank, index, scales, weights))


def attach_averagers(pool: Pool, stages: Mapping[int, Stage], rank: int, averaging: Averaging) -> list[ElasticAverager]:
    """Give the averaged stages of a rank their averagers, and return the averagers.

    Args:
        pool: Pool of the rank, with the shared tensors of the averaged stages.
        stages: Stages of the rank, with the weights that all pipelines begin with; emulated ones get no averager.
        averaging: Form of averaging.
    """
    averagers = []
    for index, stage in stages.items():
        if isinstance(stage, ModuleStage) and index in pool.shared:
            stage.averager = averager = ElasticAverager(
                index, rank, stage.parameters, pool.shared[index], pool, averaging
            )
            if averager.is_first:
                averager.begin(stage.first_reference)
            averagers.append(averager)
    return averagers


def _known_parts(schedule: Schedule, rank: int, stage: int) -> list[Compute]:
    """Return the computations of `rank` on `stage`; a generated list is read only up to the first Step.

    A generated list repeats, so all kinds of its ops occur before the first Step.
    """
    parts = []
    for op in stage_ops(schedule, rank, stage):
        if isinstance(op, Compute):
            parts.append(op)
        elif not schedule.is_held:
            break
    return parts


def _stage_lists(
    schedule: Schedule, rank: int, stage: int, scales: Mapping[int, float] | None, weights: Weights
) -> StageLists:
    parts = _known_parts(schedule, rank, stage)
    recomputed: Container[int] = frozenset(part.microbatch for part in parts if part.phase is Phase.RECOMPUTE)
    if recomputed and not schedule.is_held:
        recomputed = range(schedule.num_microbatches)
    return StageLists(weights, GradientMean(scales, partial(step_sizes, schedule, rank, stage)), recomputed)


def _uses(schedule: Schedule, rank: int, stage: int) -> Callable[[], Iterator[Use]] | None:
    """Return a function that starts the stage's weight reads anew, or None if no op follows a Step of its batch."""
    if is_flushed(schedule, rank, stage):
        return None
    if not schedule.is_held:
        return lambda: uses(stage_ops(schedule, rank, stage), in_order=True)
    ops = list(stage_ops(schedule, rank, stage))
    first = next((index for index, op in enumerate(ops) if isinstance(op, Step)), len(ops))
    if all(isinstance(op, Step) for op in ops[first:]):
        return None
    return lambda: uses(ops, in_order=False)


def _rule(schedule: Schedule, rank: int, stage: int, prediction: PredictionRule | None) -> PredictionRule | None:
    """Return the rule by which the weights of a stage are predicted, or None if no op of it looks ahead."""
    if not any(part.lookahead for part in _known_parts(schedule, rank, stage)):
        return None
    rule = prediction or schedule.traits.prediction
    if rule is None:
        raise ExecutionError(
            f"schedule {schedule.name}: got ops that look ahead, expected a rule for predicting weights; set "
            f"`prediction` to one of {', '.join(PredictionRule)}"
        )
    return rule


def make_batch(
    model: Model,
    num_microbatches: int,
    microbatch_size: int,
    *,
    seed: int,
    dtype: torch.dtype,
    device: torch.device,
    reads: tuple[bool, bool] = (True, True),
) -> Batch:
    """Draw the data of one run and cut it into micro-batches; floating-point data gets `dtype`.

    Args:
        num_microbatches: Number of micro-batches.
        microbatch_size: Samples per micro-batch.
        seed: Seed of the data.
        dtype: Type of floating-point data.
        device: Device of the data.
        reads: Whether inputs, and whether targets, are read on `device`: on the ranks of the first stage, and of the
            last stage. Unread data stay away from the device, and are empty.

    Raises:
        ExecutionError: A tensor of the model's batch has another number of samples in dimension 0.
    """
    if not any(reads):
        return Batch((), ())
    num_samples = num_microbatches * microbatch_size

    def placed(tensor: Tensor) -> Tensor:
        return on_device(pinned_for(tensor, device), device)

    cut: list[Sequence[Value]] = []
    for samples, is_read in zip(draw_batch(model, num_samples, seed, dtype=dtype), reads, strict=True):
        require_samples(model, samples, num_samples)
        whole = mapped(placed, samples) if is_read else ()
        cut.append([microbatch(whole, i, num_microbatches) for i in range(num_microbatches)] if is_read else ())
    return Batch(*cut)


def require_samples(model: Model, samples: Value, expected: int) -> None:
    """Refuse inputs or targets that cannot be cut into micro-batches.

    Raises:
        ExecutionError: A tensor of `samples` has another number of samples than `expected` in dimension 0.
    """
    for tensor in tensors_of(samples):
        got = len(tensor) if tensor.dim() else "no"
        if got != expected:
            raise ExecutionError(
                f"model {model.name}: its batch has {got} samples in a tensor of {tuple(tensor.shape)}, expected "
                f"{expected} in dimension 0 of each tensor; repeat shared data for each sample"
            )


def check_fits(schedule: Schedule, num_stages: int, what: str) -> None:
    """Refuse a model or costs that were cut into another number of stages than the schedule has.

    Raises:
        ExecutionError: The numbers differ.
    """
    if schedule.num_stages != num_stages:
        raise ExecutionError(
            f"schedule {schedule.name} has {schedule.num_stages} stages, but {what} has {num_stages}; cut the layers "
            f"into {schedule.num_stages} stages"
        )
