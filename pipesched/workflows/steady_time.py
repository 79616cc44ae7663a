"""How long a micro-batch takes when a schedule goes on: the batch repeated, or the run without a flush made longer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Schedule, ScheduleError, Timeline, repeat
from pipesched.schedules.lowering import lower
from pipesched.schedules.transforms import with_steps
from pipesched.simulator import NetworkOptions, SimulationError
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.fast import batch_period_s, repeated_pace_s, unflushed_pace_s
from pipesched.workflows.arguments import ScheduleSource

_MOST_CELLS = 20_000
"""Stages times micro-batches of the longest run that is looked at, which takes about a second."""


def steady_s_per_microbatch(
    source: ScheduleSource, timeline: Timeline, costs: StageCosts, cluster: Cluster, network: NetworkOptions
) -> float | None:
    """Return the seconds of a micro-batch in the long run; None where they are not known.

    Args:
        source: A batch, which is repeated, each stage stepping once between; or a run without a flush.
        timeline: Of its lists, simulated without jitter.
        costs: The costs that it was simulated with.
        cluster: The machines that it was simulated on.
        network: The network options that it was simulated with.
    """
    schedule = source.schedule

    def run(lists: Schedule) -> tuple[Schedule, Timeline]:
        return lists, simulate_lists(lower(lists), costs, cluster, rules=network)

    def runs(longer: Callable[[int], Schedule]) -> Iterator[tuple[Schedule, Timeline]]:
        times, cells = 2, 2 * schedule.num_stages * schedule.num_microbatches
        while times == 2 or times // 2 * cells <= _MOST_CELLS:
            yield run(longer(times))
            times *= 2

    try:
        if source.longer is not None:
            return unflushed_pace_s(chain([(schedule, timeline)], runs(source.longer)))
        batch = with_steps(schedule)
        first = timeline if batch is schedule else run(batch)[1]
        period_s = batch_period_s(batch, first, cluster, network)
        if period_s is not None:
            return period_s / batch.num_microbatches
        return repeated_pace_s(runs(lambda times: repeat(batch, times).held()), batch.num_microbatches)
    except (ScheduleError, SimulationError):  # lists that cannot go on, whether they should
        return None
