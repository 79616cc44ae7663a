"""The steady time of a plan: seconds per micro-batch when its batches follow one another, or its run continues.

A batch mostly shows it by itself, and so does a long enough run without a flush. Otherwise the batch or run is
repeated, but only for ranked plans, and only if that is soon done.
"""

from __future__ import annotations

from functools import partial

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Schedule, Timeline
from pipesched.simulator import Inexact, NetworkOptions, Scenario, SteadyPace
from pipesched.simulator.fast import batch_pace, steady_pace, unflushed_pace
from pipesched.simulator.planner.plan_candidate import Candidate
from pipesched.simulator.search import UNPREDICTABLE

MOST_CELLS = 2_000
"""Stages times micro-batches, of all copies, of the run that longer ones are simulated of."""


def shown_pace(
    candidate: Candidate, lists: Schedule, timeline: Timeline, cluster: Cluster, network: NetworkOptions
) -> SteadyPace | None:
    """Return the pace in the long run, if the run that a candidate is predicted by shows it.

    Args:
        candidate: The candidate.
        lists: Lists of that run, lowered.
        timeline: Its Timeline.
        cluster: Devices and links.
        network: How messages go.
    """
    if candidate.is_asynchronous:
        return unflushed_pace([(lists, timeline)])
    return batch_pace(lists, timeline, cluster, network)


def settled_pace(
    candidate: Candidate, num_steps: int, costs: StageCosts, cluster: Cluster, network: NetworkOptions
) -> SteadyPace | None:
    """Return the pace in the long run, of longer runs; None where they take long or do not settle.

    Args:
        candidate: The candidate.
        num_steps: Steps of the run that it is predicted by.
        costs: Costs of its stages, for one micro-batch.
        cluster: Devices and links.
        network: How messages go.
    """
    try:
        if not is_repeatable(candidate, num_steps):
            return None
        lists = _lists(candidate, num_steps, 1)
        scenario = Scenario(lists, costs, cluster, network)
        longer = partial(_lists, candidate, num_steps) if candidate.is_asynchronous else None
        answer = steady_pace(scenario, longer=longer)
    except UNPREDICTABLE:
        return None
    return None if isinstance(answer, Inexact) else answer


def is_repeatable(candidate: Candidate, num_steps: int) -> bool:
    """Whether a candidate's predicted run of `num_steps` steps is short enough to simulate longer ones."""
    num_microbatches = num_steps * candidate.width * candidate.num_microbatches
    return len(candidate.partition) * num_microbatches <= MOST_CELLS


def _lists(candidate: Candidate, num_steps: int, times: int) -> Schedule:
    return candidate.schedule_spec().run(times * num_steps).lists(times * num_steps).held()
