"""How long a micro-batch takes when a schedule goes on: the batch repeated, or the run without a flush made longer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from pipesched.cli.flows.planned_run import plan_of_options
from pipesched.cli.options.schedule_options import ScheduleOptions
from pipesched.cli.options.traffic_options import TrafficOptions

if TYPE_CHECKING:
    from pipesched.profiles.clusters import Cluster
    from pipesched.profiles.costs import StageCosts
    from pipesched.schedules import Schedule, Timeline

_MOST_CELLS = 20_000
"""Stages times micro-batches of the longest run that is looked at, which takes about a second."""


def steady_s_per_microbatch(
    options: ScheduleOptions,
    schedule: Schedule,
    timeline: Timeline,
    costs: StageCosts,
    cluster: Cluster,
    traffic: TrafficOptions,
) -> float | None:
    """Return the seconds of a micro-batch in the long run; None where they are not known.

    Args:
        options: Say how `schedule` goes on. Lists from a file are repeated, each stage stepping once between.
        schedule: Of one batch, or of a run without a flush.
        timeline: Of `schedule`.
        costs: As it was simulated with.
        cluster: Without what is slow of it.
        traffic: How messages go, and what is slow. With jitter nothing repeats itself.
    """
    from pipesched.schedules import ScheduleError, repeat
    from pipesched.schedules.lowering import lower
    from pipesched.schedules.transforms import with_steps
    from pipesched.simulator import NetworkOptions, SimulationError
    from pipesched.simulator.engine import simulate
    from pipesched.simulator.fast import batch_period_s, repeated_pace_s, unflushed_pace_s

    rules, cluster = traffic.rules(), traffic.on(cluster)
    if traffic.jitter:
        return None

    def run(lists: Schedule) -> tuple[Schedule, Timeline]:
        return lists, simulate(lower(lists), costs, cluster, rules=rules)

    def runs(longer: Callable[[int], Schedule]) -> Iterator[tuple[Schedule, Timeline]]:
        times, cells = 2, 2 * schedule.num_stages * schedule.num_microbatches
        while times == 2 or times // 2 * cells <= _MOST_CELLS:
            yield run(longer(times))
            times *= 2

    longer = _longer(options)
    try:
        if longer is not None:
            return unflushed_pace_s(chain([(schedule, timeline)], runs(longer)))
        batch = with_steps(schedule)
        first = timeline if batch is schedule else run(batch)[1]
        period_s = batch_period_s(batch, first, cluster) if rules == NetworkOptions() else None
        if period_s is not None:
            return period_s / batch.num_microbatches
        return repeated_pace_s(runs(lambda times: repeat(batch, times).held()), batch.num_microbatches)
    except (ScheduleError, SimulationError):  # lists that cannot go on, whether they should
        return None


def _longer(options: ScheduleOptions) -> Callable[[int], Schedule] | None:
    """Return what makes a run without a flush so many times as long; None of a batch."""
    from pipesched.cli.flows.planned_run import planned_schedule
    from pipesched.schedules.builders import lookup

    plan = plan_of_options(options)
    name = options.schedule if plan is None else plan.recipe.name
    entry = None if name is None else lookup(name)
    if name is None or entry is None or not entry.traits.is_asynchronous:
        return None
    if plan is not None:
        return lambda times: planned_schedule(plan, times)
    microbatches = options.microbatches
    assert microbatches is not None, "it was built with so many"
    return lambda times: replace(options, microbatches=times * microbatches).build(name)
