"""The steady-state time per micro-batch of any schedule.

Pipelines that slow each other drift apart (`predict_drifting`). A batch is repeated (`RepeatedRuns`). A run without a
flush is made longer (`UnflushedRuns`):

The next op depends only on the micro-batches that are under way. Compare the ops of that many micro-batches with the
same ops some periods before. Once all of them end later by the same time, so do all later ops. One period may not
suffice: if k micro-batches circulate, the gap may repeat only every k periods.

The times in which the pipeline fills and drains do not count. A run of several stretches (`hybrid`, which stops
pipelining half way) has the joint pace of the stretches that a longer run repeats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import final

from pipesched.schedules import Schedule, ScheduleError, Timeline, repeat
from pipesched.schedules.ops import computes
from pipesched.schedules.transforms import Continuation, continuation, microbatches_per_step, runs_without_flush
from pipesched.simulator import Estimate, Inexact, Scenario, SimulationError, SteadyPace
from pipesched.simulator.engine import equal_pipelines
from pipesched.simulator.fast.array_engine import ScenarioLists
from pipesched.simulator.fast.equal_pipelines import EqualPipelines, is_slowed, predict_drifting
from pipesched.simulator.fast.steady_state import LateOps, RepeatedRuns, longer_times, paced, several


def steady_pace(
    scenario: Scenario,
    timeline: Timeline | None = None,
    longer: Callable[[int], Schedule] | None = None,
    runs: RepeatedRuns | UnflushedRuns | None = None,
) -> SteadyPace | Inexact:
    """Return the steady-state time per micro-batch of a schedule, or the reason why it is unknown.

    Args:
        scenario: Scenario of a batch, or of a run without a flush.
        timeline: Timeline of the scenario, simulated without jitter, or None to simulate it here.
        longer: Makes a run without a flush a number of times as long, or None to continue its lists.
        runs: Earlier runs of the schedule with this `longer`, or None to make them here on demand.
    """
    answer: Estimate | Inexact
    try:
        drifting = drifting_scenario(scenario)
        if drifting is None:
            answer = (runs or longer_runs(scenario.schedule, longer)).predict(scenario, timeline)
        else:
            answer = drifting if isinstance(drifting, Inexact) else predict_drifting(drifting)
    except (ScheduleError, SimulationError) as error:  # lists that cannot continue
        return Inexact(str(error))
    if isinstance(answer, Inexact):
        return answer
    return answer.pace(scenario.num_pipelines * scenario.schedule.num_microbatches)


def longer_runs(schedule: Schedule, longer: Callable[[int], Schedule] | None = None) -> RepeatedRuns | UnflushedRuns:
    """Return the longer runs that show the pace of a schedule under any costs: with a flush, or without.

    Args:
        schedule: Lists of a batch, or of a run without a flush.
        longer: Makes a run without a flush the given number of times as long; None: its lists are continued.

    Raises:
        ScheduleError: The lists of a run without a flush do not repeat.
    """
    if longer is None and not runs_without_flush(schedule):
        return RepeatedRuns(schedule)
    return UnflushedRuns(schedule, longer)


def drifting_scenario(scenario: Scenario) -> Scenario | Inexact | None:
    """Describe equal pipelines that slow each other by the op lists of one pipeline.

    Returns:
        The scenario of one pipeline's lists, an Inexact if the pipelines are unequal, or None if no pipeline slows
        another.
    """
    number = scenario.num_pipelines * scenario.schedule.pipelines
    if number == 1:
        return None
    single = scenario.schedule if scenario.num_pipelines > 1 else equal_pipelines(scenario.schedule)
    if single is None and not is_slowed(scenario.costs, number):
        return None
    if single is None:
        return Inexact(
            f"{scenario.schedule.name}: got {number} unequal pipelines on the same devices, expected equal ones, whose "
            "drift is known; try simulate"
        )
    pipelines = EqualPipelines(single, scenario.costs, scenario.cluster, scenario.network)
    return replace(scenario, schedule=single, num_pipelines=number) if pipelines.slow_each_other(number) else None


@final
class UnflushedRuns:
    """A run without a flush and longer ones, each compiled once for any costs and links.

    Args:
        schedule: Lists of the run.
        longer: Makes the lists of a run that is `times` as long; None to continue the given lists.

    Raises:
        ScheduleError: The lists do not repeat.
    """

    def __init__(self, schedule: Schedule, longer: Callable[[int], Schedule] | None = None) -> None:
        self._going_on = continuation(schedule) if longer is None else Continuation(longer)
        self._runs = [_Run(schedule, self._going_on.period)]

    def predict(self, scenario: Scenario, timeline: Timeline | None = None) -> Estimate | Inexact:
        """Predict the pace of the run.

        Args:
            scenario: Scenario of the run.
            timeline: Timeline of the scenario, simulated without jitter, or None to simulate it here.

        Returns:
            The seconds of as many micro-batches as the run has, in the steady state, and its bubble, without memory; or
            the reason why they are unknown.

        Raises:
            ScheduleError, SimulationError, ProfileError: As `simulate_lists` does.
        """
        if scenario.num_pipelines > 1:
            return several(scenario)
        paces = (
            run.pace(timeline if timeline and run is self._runs[0] else run.lists.under(scenario).timeline())
            for run in self._each()
        )
        return paced(scenario, next((pace for pace in paces if pace is not None), None))

    def _each(self) -> Iterator[_Run]:
        """Yield the run, then at least one longer run: two, four, eight times as long, and so on."""
        yield self._runs[0]
        for number, times in enumerate(longer_times(self._runs[0].schedule), 1):
            if number == len(self._runs):
                self._runs.append(_Run(self._going_on.longer(times), self._going_on.period, self._runs[-1]))
            yield self._runs[number]


def unflushed_pace(runs: Iterable[tuple[Schedule, Timeline]]) -> SteadyPace | None:
    """Return the pace of ever longer runs without a flush, or None if they do not settle."""
    before = None
    for schedule, timeline in runs:
        before = _Run(schedule, None, before)
        pace = before.pace(timeline)
        if pace is not None:
            return pace
    return None


@final
class _Run:
    """One of several runs.

    Args:
        schedule: Its lists.
        period: Micro-batches after which the lists repeat; None for the micro-batches of a step.
        before: A shorter run.
    """

    def __init__(self, schedule: Schedule, period: int | None, before: _Run | None = None) -> None:
        self.schedule = schedule
        count, self._reach, self._period = schedule.num_microbatches, _reach(schedule), period or _period(schedule)
        self.stretches = [] if self._period is None else _stretches(schedule, self._period, self._reach)
        self._weights = [len(alike) for alike in self.stretches]
        self._is_settled = self.stretches == [range(self._reach, count - self._reach)]
        if before is not None and not self._is_settled and len(before.stretches) == len(self.stretches):
            self._weights = [len(now) - len(then) for now, then in zip(self.stretches, before.stretches, strict=True)]
            self._is_settled = sum(self._weights) == count - before.schedule.num_microbatches
        self._late: list[LateOps] = []
        self.lists = ScenarioLists(schedule)

    def pace(self, timeline: Timeline) -> SteadyPace | None:
        """Return the pace of the run; None if it does not settle."""
        if not self._is_settled or self._period is None:
            return None
        if not self._late or self._late[0].ops is not timeline.columns.ops:
            self._late = [LateOps(timeline.columns.ops, alike[-self._reach :]) for alike in self.stretches]
        paces = []
        for late, alike in zip(self._late, self.stretches, strict=True):
            lags = range(self._period, len(alike) - self._reach + 1, self._period)
            paces.append(late.pace(timeline, lags[: 2 * self.schedule.num_stages]))
        known = [pace for pace in paces if pace is not None]
        return _mean_pace(known, self._weights) if len(known) == len(paces) else None


def _mean_pace(paces: Sequence[SteadyPace], counts: Sequence[int]) -> SteadyPace:
    """Return the joint pace of stretches with these numbers of micro-batches and paces."""
    seconds = [pace.s_per_microbatch * count for pace, count in zip(paces, counts, strict=True)]
    idle_s = [(pace.bubble_fraction or 0.0) * its_s for pace, its_s in zip(paces, seconds, strict=True)]
    all_s = math.fsum(seconds)
    return SteadyPace(all_s / sum(counts), math.fsum(idle_s) / all_s if all_s else 0.0)


def _period(schedule: Schedule) -> int | None:
    """Return the number of micro-batches after which a list without a flush repeats; None if it is too short."""
    try:
        return microbatches_per_step(repeat(schedule, 1))
    except ScheduleError:
        return None


def _reach(schedule: Schedule) -> int:
    """Return how many micro-batches, at most, lie between two ops that follow one another on a rank."""
    rows = ([part.microbatch for op in row for part in computes(op)] for row in schedule.ops)
    return max((abs(later - first) for row in rows for first, later in pairwise(row)), default=0) + 1


def _stretches(schedule: Schedule, period: int, reach: int) -> list[range]:
    """Return long stretches of micro-batches in which each op has the same successor on its rank a period later.

    The beginning and the end of the run are left out, and stretches too short to show a pace.
    """
    last, unlike = schedule.num_microbatches - reach - period, set[int]()
    for row in schedule.ops:
        parts = [part for op in row for part in computes(op)]
        follows = {
            (part.phase, part.stage, part.microbatch): (later.phase, later.stage, later.microbatch - part.microbatch)
            for part, later in pairwise(parts)
        }
        for (phase, stage, microbatch), later in follows.items():
            is_between = reach <= microbatch < last
            if is_between and follows.get((phase, stage, microbatch + period)) != later:
                unlike.add(microbatch)
    stretches: list[range] = []
    first = reach
    for stop in (*sorted(unlike), last):
        if stop - first >= reach:
            stretches.append(range(first, stop + period))
        first = stop + 1
    return stretches
