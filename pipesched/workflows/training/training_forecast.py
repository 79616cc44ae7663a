"""The forecast of a training run: its staleness, its copies of the weights, its wall time."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipesched.executor import RunSettings
from pipesched.profiles import element_bytes
from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import Compression, CostSource, StageCosts
from pipesched.schedules import Schedule
from pipesched.schedules.lowering import lower
from pipesched.schedules.transforms import ScheduleSpec, TrainingRun
from pipesched.schedules.weights import staleness
from pipesched.simulator import Inexact, Scenario, SimulationError
from pipesched.simulator.fast import RunTime, run_time, simulate_arrays
from pipesched.simulator.memory import OverCapacity, over_capacity, with_memory
from pipesched.workflows.simulating import split_costs

_SHOWN_STEPS = 64
"""Simulated steps for the staleness, beside the term for stages: enough for every measurement to settle."""


@dataclass(frozen=True, slots=True)
class TrainingForecast:
    """The forecast of one training run: seconds and memory.

    Attributes:
        run: The run that the specification makes.
        staleness: Most steps by which the weights of a forward are older than the weights that its gradient changes.
        weight_versions: Versions of a stage's weights that a rank holds at most.
        predicts: Whether there is also a predicted copy while an op reads it.
        time: Predicted times of the run.
        rank_to_device: The device of every rank.
        costs: Costs of a micro-batch on each stage, of the prediction.
        cluster: The machines.
        over: The predicted excess over the memory of a device, or None without an excess or a limit.
    """

    run: TrainingRun
    staleness: int
    weight_versions: int
    predicts: bool
    time: RunTime
    rank_to_device: tuple[int, ...]
    costs: StageCosts
    cluster: Cluster
    over: OverCapacity | None


def forecast_training(
    schedule_spec: ScheduleSpec,
    bounds: tuple[tuple[int, int], ...],
    num_steps: int,
    costs: StageCosts,
    cluster: Cluster,
) -> TrainingForecast:
    """Predict a training run.

    Args:
        schedule_spec: Specification of its lists.
        bounds: Half-open range of layers of every stage.
        num_steps: Optimizer steps.
        costs: Costs of a micro-batch on each stage, with compressed messages if compression is on.
        cluster: The machines.

    Raises:
        ScheduleError: Lists that cannot have `num_steps` steps.
        SimulationError: A run whose time cannot be predicted.
    """
    run = schedule_spec.run(num_steps)
    num_shown = min(num_steps, _SHOWN_STEPS + 4 * len(bounds) // run.microbatches_per_step)
    beginning = run.beginning(num_shown)
    stages = staleness(beginning).stages
    time = run_time(lambda steps: Scenario(run.lists(steps), costs, cluster), num_steps, run.microbatches_per_step)
    if isinstance(time, Inexact):
        raise SimulationError(time.reason)
    return TrainingForecast(
        run,
        staleness=max(stage.forward.staleness for stage in stages),
        weight_versions=max(stage.live_versions for stage in stages),
        predicts=any(stage.predicts for stage in stages),
        time=time,
        rank_to_device=beginning.rank_to_device,
        costs=costs,
        cluster=cluster,
        over=_over_memory(beginning, costs, cluster),
    )


def _over_memory(lists: Schedule, costs: StageCosts, cluster: Cluster) -> OverCapacity | None:
    """Return the excess over the memory of a device in a run that is long enough to settle, or None."""
    if all(device.memory_bytes is None for device in cluster.devices) or not costs.has_bytes:
        return None
    held = lists.held()
    timeline = with_memory(simulate_arrays(lower(held), costs, cluster), costs, held)
    return over_capacity(timeline.memory, cluster, timeline)


def costs_of_training(
    costs: CostSource,
    run: TrainingRun,
    bounds: tuple[tuple[int, int], ...],
    batch_size: int,
    settings: RunSettings,
    input_share: float | None = None,
) -> StageCosts:
    """Return the costs of a micro-batch on each stage.

    Args:
        costs: Costs of the layers, of a device with a whole batch, or of a micro-batch on each layer or stage.
        run: Gives the micro-batches of a step and the ops of a stage.
        bounds: Half-open range of layers of every stage.
        batch_size: Samples of a step, of each pipeline.
        settings: Gives the compression of messages.
        input_share: Share of B that I takes in costs with B alone; None: no split is assumed.

    Raises:
        ProfileError: The profile does not cover these micro-batches, or the costs lack I and W.
    """
    size = run.microbatch_size(batch_size) if costs.microbatch_sizes else None
    lists = run.beginning(1).held()
    stage_costs = costs.stage_costs(lists, bounds, size)
    if costs.device_seconds:
        stage_costs = stage_costs.of_share(run.pipelines / run.microbatches_per_step)
    stage_costs = split_costs(stage_costs, lists, input_share, is_measured=costs.is_measured)
    if settings.compression is None:
        return stage_costs
    return replace(stage_costs, compression=Compression(element_bytes(settings.dtype)))
