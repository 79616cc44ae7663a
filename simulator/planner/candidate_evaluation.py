"""Predict a candidate in full, from its own lists.

A run with a flush is one batch. A run without a flush has enough steps for every micro-batch of the pipeline to come
back a few times. Its pace is the pace at which its ops repeat, or if they do not yet, the pace of the later half of its
losses.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Schedule, Timeline
from pipesched.schedules.columns import op_cells
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Op, Reduce
from pipesched.schedules.transforms import place_copies, replicate, with_tied_sum
from pipesched.schedules.weights import staleness
from pipesched.simulator import (
    USUAL_NETWORK,
    Estimate,
    Meaning,
    NetworkOptions,
    Precision,
    Scenario,
    SimulationError,
    SteadyPace,
)
from pipesched.simulator.analysis import CAUSES, Usage
from pipesched.simulator.fast import (
    batch_pace,
    loss_times_s,
    predict_scenario,
    unflushed_pace,
)
from pipesched.simulator.planner.bound import Bounds
from pipesched.simulator.planner.request import Request
from pipesched.simulator.planner.stage_layout import layout_of
from pipesched.simulator.search import Setting, TimeParts

_ROUNDS, _FEWEST = 8, 8
"""Times that as many micro-batches as a copy has stages go through a run without a flush, and its fewest steps."""

_MOST_OPS = 3_000_000
"""The most ops of all lists together, which take about a minute."""


def num_cells(candidate: Setting) -> int:
    """Return the stages times micro-batches of the run that a candidate is predicted by, of all copies."""
    return len(candidate.partition) * steps_of(candidate) * candidate.width * candidate.num_microbatches


def shown_pace(
    candidate: Setting, lists: Schedule, timeline: Timeline, cluster: Cluster, network: NetworkOptions
) -> SteadyPace | None:
    """Return the steady-state time that a candidate's lowered lists show by their own Timeline, or None."""
    if candidate.is_asynchronous:
        return unflushed_pace([(lists, timeline)])
    return batch_pace(lists, timeline, cluster, network)


def predict_candidate(
    candidate: Setting, costs: StageCosts, cluster: Cluster, network: NetworkOptions = USUAL_NETWORK
) -> Estimate:
    """Return the prediction of a candidate.

    Args:
        candidate: A schedule, its depth, width and micro-batches.
        costs: Costs of the stages that the candidate cuts the model into, for one micro-batch.
        cluster: Devices and links.
        network: How messages go.

    Returns:
        The seconds of a step (of an iteration, or at the pace of a run without a flush); the peak bytes of each
        device; and the Timeline of the simulated run of `steps_of` steps.

    Raises:
        ScheduleError: The schedule cannot have such counts.
        ProfileError: The costs lack something that the schedule needs.
        SimulationError: The simulation would take too long.
    """
    lists = lists_of_candidate(candidate, costs)
    run = predict_scenario(Scenario(lists, costs, cluster, network))
    if not candidate.is_asynchronous:
        return run
    assert run.timeline is not None, "of one pipeline there always is one"
    steps = steps_of(candidate)
    pace = shown_pace(candidate, lists, run.timeline, cluster, network)
    if pace is not None:
        seconds = pace.s_per_microbatch * lists.num_microbatches / steps
        return replace(run, meaning=Meaning.PACE, seconds=seconds, bubble_fraction=pace.bubble_fraction)
    pace_s = _pace_s(run.timeline, lists, steps)  # not faster than the busiest device goes for long
    seconds = max(pace_s, Bounds(cluster).of(candidate, costs).seconds)
    return replace(run, meaning=Meaning.PACE, seconds=seconds, precision=Precision.APPROXIMATE)


def timeline_of(candidate: Setting, request: Request) -> Timeline:
    """Return the Timeline of the `steps_of` steps that predict a candidate; raises as `predict_candidate`."""
    costs = request.cuts().costs_of(candidate)
    timeline = predict_candidate(candidate, costs, request.cluster, request.network).timeline
    assert timeline is not None, "of one pipeline there always is one"
    return timeline


def lists_of_candidate(candidate: Setting, costs: StageCosts) -> Schedule:
    """Return the lowered lists of the run of `steps_of` steps that a candidate is predicted by, with tied sums.

    Raises:
        ScheduleError: The schedule cannot have such counts.
        SimulationError: The lists would be too long.
    """
    order, steps = candidate.order, steps_of(candidate)
    lists = _lowered_tied(order, steps, costs.tied_stages) if costs.tied_bytes else lowered(order, steps)
    return place_copies(lists, candidate.placement, candidate.width)


def lists_of_copy(candidate: Setting) -> Schedule:
    """Return the lowered lists of the first copy of a candidate on its devices, without the sums of gradients.

    Raises:
        ScheduleError: The schedule cannot have such counts.
        SimulationError: The lists would be too long.
    """
    lists = lowered(replace(candidate, width=1).order, steps_of(candidate))
    devices = tuple(candidate.device(rank, 0) for rank in range(candidate.num_ranks))
    rows: tuple[Iterable[Op], ...] = lists.lists
    if lists.columns.counts[op_cells.REDUCE]:
        rows = tuple(tuple(op for op in row if not isinstance(op, Reduce)) for row in lists.ops)
    return replace(lists, lists=rows, rank_to_device=devices)


def steps_of(candidate: Setting) -> int:
    """Return the number of simulated steps that determine the time of one step."""
    if not candidate.is_asynchronous:
        return 1
    num_stages = len(candidate.partition)
    return max(_FEWEST, math.ceil(_ROUNDS * num_stages / candidate.num_microbatches))


def num_ops(candidate: Setting, steps: int = 1) -> int:
    """Return about how many ops all lists have together."""
    num_stages = layout_of(candidate).num_stages
    return 6 * steps * candidate.num_microbatches * candidate.order.width * num_stages


@lru_cache(maxsize=16)
def lowered(order: Setting, steps: int) -> Schedule:
    """Return the lowered lists, which do not depend on partition, micro-batch size, placement and message precision.

    Raises:
        ScheduleError: The schedule cannot have such counts.
        SimulationError: The lists would be too long.
    """
    if num_ops(order, steps) > _MOST_OPS:
        raise SimulationError(
            f"got about {num_ops(order, steps)} ops, expected at most {_MOST_OPS}; try larger micro-batches, or at "
            f"most {max(1, order.num_microbatches * _MOST_OPS // num_ops(order, steps))} micro-batches per copy"
        )
    if order.width > 1:
        return replicate(lowered(replace(order, width=1), steps), order.width)
    return lower(order.schedule_spec().run(steps).lists(steps).held())


@lru_cache(maxsize=16)
def _lowered_tied(order: Setting, steps: int, stages: tuple[int, ...]) -> Schedule:
    return with_tied_sum(lowered(order, steps), stages)


def _pace_s(timeline: Timeline, lists: Schedule, steps: int) -> float:
    """Return the seconds of a step in the later half of the run, when the pipeline is full."""
    losses_s = loss_times_s(timeline, lists.num_stages, lists.num_microbatches // steps)
    middle = steps // 2
    return (losses_s[-1] - losses_s[middle]) / (steps - 1 - middle)


def time_parts(timeline: Timeline, uses: Sequence[Usage], seconds: float, steps: int) -> TimeParts:
    """Return the parts of the time of a step, averaged over the devices.

    Idle time is split by cause in the proportions of the Timeline; a run without a flush leaves out warm-up and
    cool-down.
    """
    spans = timeline.columns
    is_rebuilt = np.isin(spans.ops.codes, (op_cells.R, op_cells.LATE_R))
    begun_s, over_s = (times_s[is_rebuilt].tolist() for times_s in (spans.starts_s, spans.ends_s))
    again_s = math.fsum(end_s - start_s for start_s, end_s in zip(begun_s, over_s, strict=True))
    busy_s = math.fsum(use.busy_s for use in uses) / len(uses) / steps
    recompute_s = again_s / len(uses) / steps
    idle_s = {cause: math.fsum(dict(use.idle_by_cause_s)[cause] for use in uses) for cause in CAUSES}
    if steps > 1:
        del idle_s["warmup"], idle_s["cooldown"]
    all_s = math.fsum(idle_s.values())
    share = (seconds - busy_s) / all_s if all_s else 0.0
    transfer_s = (idle_s["transfer"] + idle_s["busy_link"] + idle_s["hand_over"]) * share
    reduce_s = idle_s["collective"] * share
    return TimeParts(
        work_s=busy_s - recompute_s,
        recompute_s=recompute_s,
        transfer_s=transfer_s,
        reduce_s=reduce_s,
        bubble_s=seconds - busy_s - transfer_s - reduce_s,
    )


def staleness_of(candidate: Setting) -> int:
    """Return the staleness of one copy, in steps; all copies share it."""
    single, steps = replace(candidate.order, width=1), 4 + 4 * candidate.num_ranks // candidate.num_microbatches
    return max(stage.forward.staleness for stage in staleness(single.schedule_spec().run(steps).lists(steps)).stages)
