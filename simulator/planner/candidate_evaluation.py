"""Predict a candidate in full, from its own lists.

A run with a flush is one batch. A run without a flush has enough steps for every micro-batch of the pipeline to come
back a few times. Its pace is the pace at which its ops repeat, or if they do not yet, the pace of the later half of its
losses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Schedule, Timeline
from pipesched.schedules.columns import op_cells
from pipesched.schedules.lowering import lower
from pipesched.schedules.transforms import place_copies, replicate
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
from pipesched.simulator.analysis import CAUSES, Usage, communication_volume, usage
from pipesched.simulator.fast import (
    EqualPipelines,
    batch_pace,
    loss_times_s,
    predict_scenario,
    simulate_arrays,
    unflushed_pace,
)
from pipesched.simulator.planner.bound import Bounds
from pipesched.simulator.planner.request import Request
from pipesched.simulator.planner.stage_layout import layout_of
from pipesched.simulator.search import UNPREDICTABLE, Outcome, Setting, TimeParts, over_memory_reason, settled_pace

_ROUNDS, _FEWEST = 8, 8
"""Times that as many micro-batches as a copy has stages go through a run without a flush, and its fewest steps."""

_MOST_OPS = 3_000_000
"""The most ops of all lists together, which take about a minute."""
MOST_CELLS = 2_000
"""Stages times micro-batches, of all copies, of the longest run that is made longer for its steady-state time."""


def weigh_candidate(
    candidate: Setting, costs: StageCosts, cluster: Cluster, network: NetworkOptions = USUAL_NETWORK
) -> Outcome:
    """Predict time and memory of a candidate, or report why it is refused; `detailed` adds the rest."""
    try:
        lists = lists_of_candidate(candidate)
        if candidate.is_asynchronous:
            estimate = predict_candidate(candidate, costs, cluster, network)
            return _with_details(_outcome(candidate, estimate), estimate, lists, costs, cluster, network)
        estimate = _iteration(lists, costs, cluster, network)
        return _outcome(candidate, estimate)
    except UNPREDICTABLE as error:
        return Outcome(candidate, reason=str(error))


def detailed(outcome: Outcome, costs: StageCosts, cluster: Cluster, network: NetworkOptions = USUAL_NETWORK) -> Outcome:
    """Return the outcome with the parts of its time, its sent bytes, and its pace if its own run shows it."""
    if outcome.seconds is None or outcome.parts is not None:
        return outcome
    lists = lists_of_candidate(outcome.setting)
    timeline = simulate_arrays(lists, costs, cluster, network=network)
    estimate = Estimate(Meaning.ITERATION, outcome.seconds, {}, timeline=timeline)
    return _with_details(outcome, estimate, lists, costs, cluster, network)


def _iteration(lists: Schedule, costs: StageCosts, cluster: Cluster, network: NetworkOptions) -> Estimate:
    """Return time and memory of an iteration of lowered lists, without their Timeline."""
    try:
        return EqualPipelines(lists, costs, cluster, network).together(1)
    except UNPREDICTABLE:  # SimPy says why
        return predict_scenario(Scenario(lists, costs, cluster, network))


def with_steady_pace(outcome: Outcome, costs: StageCosts, cluster: Cluster, network: NetworkOptions) -> Outcome:
    """Return the outcome with its steady-state time, if short runs show it."""
    if outcome.steady_s_per_microbatch is not None:
        return outcome
    candidate = outcome.setting

    def lists(times: int) -> Schedule:
        steps = times * steps_of(candidate)
        return candidate.schedule_spec().run(steps).lists(steps).held()

    longer = lists if candidate.is_asynchronous else None
    pace = settled_pace(lambda: Scenario(lists(1), costs, cluster, network), num_cells(candidate), MOST_CELLS, longer)
    return outcome.at_pace(pace)


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
        SimulationError: It would take too long.
    """
    lists = lists_of_candidate(candidate)
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
    """Return the Timeline of the `steps_of` steps that a candidate of a request is predicted by; raises as above."""
    costs = request.cuts().costs_of(candidate)
    timeline = predict_candidate(candidate, costs, request.cluster, request.network).timeline
    assert timeline is not None, "of one pipeline there always is one"
    return timeline


def lists_of_candidate(candidate: Setting) -> Schedule:
    """Return the lowered lists of the run of `steps_of` steps that a candidate is predicted by.

    Raises:
        ScheduleError: The schedule cannot have such counts.
        SimulationError: They would be too long.
    """
    return place_copies(lowered(candidate.order, steps_of(candidate)), candidate.placement, candidate.width)


def steps_of(candidate: Setting) -> int:
    """Return the number of simulated steps that determine the time of one step."""
    if not candidate.is_asynchronous:
        return 1
    num_stages = len(candidate.partition)
    return max(_FEWEST, math.ceil(_ROUNDS * num_stages / candidate.num_microbatches))


def num_ops(candidate: Setting, steps: int = 1) -> int:
    """Return about how many ops all lists have together."""
    num_stages = layout_of(candidate).num_stages
    return 6 * steps * candidate.num_microbatches * candidate.width * num_stages


@lru_cache(maxsize=16)
def lowered(order: Setting, steps: int) -> Schedule:
    """Return the lists, which are the same for any partition, size, placement and message.

    Raises:
        ScheduleError: The schedule cannot have such counts.
        SimulationError: They would be too long.
    """
    if num_ops(order, steps) > _MOST_OPS:
        raise SimulationError(
            f"got about {num_ops(order, steps)} ops, expected at most {_MOST_OPS}; try larger micro-batches, or at "
            f"most {max(1, order.num_microbatches * _MOST_OPS // num_ops(order, steps))} of a copy"
        )
    if order.width > 1:
        return replicate(lowered(replace(order, width=1), steps), order.width)
    return lower(order.schedule_spec().run(steps).lists(steps).held())


def _outcome(candidate: Setting, estimate: Estimate) -> Outcome:
    return Outcome(
        candidate,
        estimate.seconds,
        max(estimate.peak_bytes.values(), default=0),
        over_memory_reason(estimate.over_memory),
        device_bytes=tuple(num_bytes for _, num_bytes in sorted(estimate.peak_bytes.items())),
        staleness=_staleness(candidate) if candidate.is_asynchronous else 0,
    )


def _with_details(
    outcome: Outcome,
    estimate: Estimate,
    lists: Schedule,
    costs: StageCosts,
    cluster: Cluster,
    network: NetworkOptions,
) -> Outcome:
    candidate, timeline = outcome.setting, estimate.timeline
    assert timeline is not None, "of one pipeline there always is one"
    steps, uses = steps_of(candidate), usage(timeline)
    if candidate.is_asynchronous:
        num_microbatches = candidate.samples_per_step // candidate.size
        pace = estimate.pace(num_microbatches) if estimate.precision is Precision.EXACT else None
    else:
        pace = shown_pace(candidate, lists, timeline, cluster, network)
    return replace(
        outcome,
        sent_bytes=communication_volume(lists, costs).num_bytes // steps,
        parts=_parts(timeline, uses, estimate.seconds, steps),
        bubble_fraction=math.fsum(use.idle_s for use in uses) / (len(uses) * timeline.makespan_s),
    ).at_pace(pace)


def _pace_s(timeline: Timeline, lists: Schedule, steps: int) -> float:
    """Return the seconds of a step in the later half of the run, which nothing fills any more."""
    losses_s = loss_times_s(timeline, lists.num_stages, lists.num_microbatches // steps)
    middle = steps // 2
    return (losses_s[-1] - losses_s[middle]) / (steps - 1 - middle)


def _parts(timeline: Timeline, uses: Sequence[Usage], seconds: float, steps: int) -> TimeParts:
    """Return the averages over the devices; idle time of a run without a flush is shared out as in its middle."""
    spans = timeline.columns
    begun_s, over_s = (times_s[spans.ops.codes == op_cells.R].tolist() for times_s in (spans.starts_s, spans.ends_s))
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


def _staleness(candidate: Setting) -> int:
    """Return the staleness of one copy, in steps; all copies share it."""
    single, steps = replace(candidate.order, width=1), 4 + 4 * candidate.num_ranks // candidate.num_microbatches
    return max(stage.forward.staleness for stage in staleness(single.schedule_spec().run(steps).lists(steps)).stages)
