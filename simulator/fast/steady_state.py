"""The steady state of a long run: seconds per micro-batch when warm-up and cool-down no longer count.

A batch that is repeated is mostly settled by its own Timeline. Let the ranks that begin first all end at L, and no
other rank or channel end later than L after its own beginning:

    rank 0  F0 F1 .. .. .. B0 .. B1 | F2 F3 ..        begins at 0, ends at L
    rank 1  .. F0 F1 B0 .. B1 .. ..   .. F2 ..        begins at s, ends before L + s

Every time is the longest way to it from some rank's beginning, so from that of the ranks that begin first: all others
wait for them. The next batch finds these ready at L, and the others no later than they begin to work; so it is the same
batch L later, and so are all that follow. Where ranks share devices, links or NICs, what one does slows another, and
times are no longest paths; then nothing at all may be left at L, so that the next batch begins as the first did.

Else a longer run is looked at. What comes next depends on as many micro-batches as the lists have under way, and on
nothing before. So once all ops of that many come just as long after the same ops of some periods before, all later
ones do. One period may not do: where k micro-batches go round, every k-th may find the same gap.

What devices work is that of one period, too: the last Steps of a run need not keep a copy of the weights, and its first
ops have no weights to predict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise

from pipesched.profiles.clusters import Cluster
from pipesched.schedules import (
    Schedule,
    ScheduleError,
    Timeline,
    computes,
    machine_code,
    op_cells,
    repeat,
)
from pipesched.schedules.lowering import lower
from pipesched.schedules.transforms import microbatches_per_step, with_steps
from pipesched.simulator import (
    SAME,
    USUAL_NETWORK,
    Estimate,
    Inexact,
    Meaning,
    NetworkOptions,
    Scenario,
    SteadyPace,
    is_usual,
)
from pipesched.simulator.engine import lists_of_all
from pipesched.simulator.fast.array_engine import simulate_arrays
from pipesched.simulator.fast.contention import is_unshared
from pipesched.simulator.fast.timeline_extents import busy_s, timeline_extents

_MOST_REPEATED_CELLS = 1_000_000
"""Stages times micro-batches of the longest batch that is looked at twice or more, one after the other."""
_MOST_CELLS = 20_000
"""Stages times micro-batches of the longest run that is looked at, which takes about a second."""


def predict_repeated(scenario: Scenario, timeline: Timeline | None = None) -> Estimate | Inexact:
    """Predict the pace at which batches follow one another, each stage stepping once between.

    Args:
        scenario: Scenario of one batch of a schedule with a flush.
        timeline: What SimPy says of it, without jitter; None: it is simulated here.

    Returns:
        The seconds of a batch in the long run and its bubble, without memory; or why they are not known.

    Raises:
        ScheduleError, SimulationError, ProfileError: As `simulate_lists` does.
    """
    if scenario.num_pipelines > 1:
        return _several(scenario)
    schedule = scenario.schedule
    is_alone = schedule.averagers and schedule.pipelines == 1  # so it has no reference to average with
    batch = with_steps(lists_of_all(schedule, 1) if is_alone else schedule)
    if timeline is None or batch is not schedule:
        timeline = _simulated(scenario, batch)
    pace = batch_pace(batch, timeline, scenario.cluster, scenario.network)
    if pace is None and schedule.num_stages * schedule.num_microbatches <= _MOST_REPEATED_CELLS:
        runs = _longer_runs(scenario, lambda times: repeat(batch, times).held())
        pace = repeated_pace(runs, batch.num_microbatches)
    return _paced(scenario, pace)


def predict_unflushed(
    scenario: Scenario,
    longer: Callable[[int], Schedule],
    timeline: Timeline | None = None,
    period: int | None = None,
) -> Estimate | Inexact:
    """Predict the pace of a run without a flush.

    Args:
        scenario: Scenario of the run.
        longer: Makes the lists of a run so many times as long.
        timeline: What SimPy says of the scenario, without jitter; None: it is simulated here.
        period: Micro-batches after which the lists do the same again; None: those of a step.

    Returns:
        The seconds of as many micro-batches as the run has, in the long run, and its bubble, without memory; or why
        they are not known.

    Raises:
        ScheduleError, SimulationError, ProfileError: As `simulate_lists` does.
    """
    if scenario.num_pipelines > 1:
        return _several(scenario)
    if timeline is None:
        timeline = _simulated(scenario, scenario.schedule)
    runs = chain([(scenario.schedule, timeline)], _longer_runs(scenario, longer))
    return _paced(scenario, unflushed_pace(runs, period))


def _several(scenario: Scenario) -> Inexact:
    return Inexact(
        f"{scenario.schedule.name}: got {scenario.num_pipelines} pipelines, expected one, as several drift apart; "
        "try predict_drifting"
    )


def _simulated(scenario: Scenario, lists: Schedule) -> Timeline:
    return simulate_arrays(lower(lists), scenario.costs, scenario.cluster, network=scenario.network)


def _longer_runs(scenario: Scenario, longer: Callable[[int], Schedule]) -> Iterator[tuple[Schedule, Timeline]]:
    """Yield runs twice, four times, eight times as long, at least one."""
    for times in longer_times(scenario.schedule):
        lists = longer(times)
        yield lists, _simulated(scenario, lists)


def longer_times(schedule: Schedule) -> Iterator[int]:
    """Yield how many times as long the runs are that are looked at: twice, four times, at least one."""
    times, cells = 2, 2 * schedule.num_stages * schedule.num_microbatches
    while times == 2 or times // 2 * cells <= _MOST_CELLS:
        yield times
        times *= 2


def _paced(scenario: Scenario, pace: SteadyPace | None) -> Estimate | Inexact:
    schedule = scenario.schedule
    if pace is None:
        return Inexact(f"{schedule.name}: got runs that do not settle to one pace, expected some that do; try simulate")
    seconds = pace.s_per_microbatch * schedule.num_microbatches
    return Estimate(Meaning.PACE, seconds, {}, bubble_fraction=pace.bubble_fraction)


def batch_pace(
    schedule: Schedule, timeline: Timeline, cluster: Cluster, network: NetworkOptions = USUAL_NETWORK
) -> SteadyPace | None:
    """Return the pace of a batch that is repeated; None where its Timeline alone does not show it.

    Args:
        schedule: Schedule of one batch, lowered.
        timeline: Timeline of `schedule`, without jitter.
        cluster: The machines that it was simulated with.
        network: How messages went in that simulation.
    """
    if not shows_period(schedule, cluster, network):
        return None
    extents = timeline_extents(timeline)
    period_s = shown_period_s(extents.ranks, extents.channels, is_shared=not is_unshared(schedule, cluster))
    if period_s is None:
        return None
    bubble_fraction = idle_share(busy_s(timeline), len(timeline.devices), period_s)
    return SteadyPace(period_s / schedule.num_microbatches, bubble_fraction)


def shows_period(schedule: Schedule, cluster: Cluster, network: NetworkOptions = USUAL_NETWORK) -> bool:
    """Whether the Timeline of a batch, lowered, may show by itself when the next one is the same."""
    if not is_usual(network) or _predicts_weights(schedule):
        return False
    return not cluster.has_hand_over  # a rank that hands over is not free when its last work is over


def shown_period_s(
    ranks: Sequence[tuple[float, float]], channels: Sequence[tuple[float, float]], *, is_shared: bool = False
) -> float | None:
    """Return how long after a batch the next one is the same; None where the batch does not show it.

    Args:
        ranks: When each rank begins, and when its last op that is no message is over [s].
        channels: When the first message of each channel begins, and when the last is there [s].
        is_shared: Whether ranks share a device, a link or a NIC.
    """
    first_s = min(begin_s for begin_s, _ in ranks)
    ready_s = [end_s for begin_s, end_s in ranks if begin_s == first_s]
    period_s = max(ready_s) - first_s
    longest_s = max(end_s - (first_s if is_shared else begin_s) for begin_s, end_s in (*ranks, *channels))
    is_same = max(longest_s, period_s) - period_s + max(ready_s) - min(ready_s) <= SAME * period_s
    return period_s if is_same else None


def _predicts_weights(schedule: Schedule) -> bool:
    """Whether ops look ahead, which takes time in every batch but the first: there is nothing to predict from yet."""
    lookaheads = schedule.columns.lookaheads
    return lookaheads is not None and machine_code.num_above(lookaheads, 0) > 0


def repeated_pace(runs: Iterable[tuple[Schedule, Timeline]], batch: int) -> SteadyPace | None:
    """Return the pace of a batch that is repeated ever more often; None if it does not settle.

    Args:
        runs: The runs from the shortest to the longest, which are simulated only as far as they are needed.
        batch: Micro-batches of the batch.
    """
    for schedule, timeline in runs:
        count = schedule.num_microbatches
        pace = _pace(timeline, range(count - batch, count), range(batch, count // 2 + 1, batch))
        if pace is not None:
            return pace
    return None


def unflushed_pace(runs: Iterable[tuple[Schedule, Timeline]], given_period: int | None = None) -> SteadyPace | None:
    """Return the pace of ever longer runs without a flush; None if they do not settle.

    The beginning, while the pipeline fills, and the end, while it empties, do not count. A run of several stretches
    (`hybrid`, which stops pipelining half way) has the paces of those by which it gets longer.
    """
    before: tuple[int, list[range]] | None = None
    for schedule, timeline in runs:
        count, period, reach = schedule.num_microbatches, given_period or _period(schedule), _reach(schedule)
        if period is None:  # too short
            continue
        stretches, most_lags = _stretches(schedule, period, reach), 2 * schedule.num_stages
        paces = [_pace_within(timeline, alike, period, reach, most_lags) for alike in stretches]
        known = [pace for pace in paces if pace is not None]
        more = [len(alike) for alike in stretches]
        is_all = stretches == [range(reach, count - reach)]
        if before is not None and not is_all and len(before[1]) == len(stretches):
            more = [now - len(then) for now, then in zip(more, before[1], strict=True)]
            is_all = sum(more) == count - before[0]
        if is_all and len(known) == len(stretches):
            return _mean_pace(known, more)
        before = count, stretches
    return None


def _pace_within(timeline: Timeline, alike: range, period: int, reach: int, most_lags: int) -> SteadyPace | None:
    """Return the pace at the end of a stretch of micro-batches; None if it has none yet."""
    lags = range(period, len(alike) - reach + 1, period)[:most_lags]
    return _pace(timeline, alike[-reach:], lags)


def _mean_pace(paces: Sequence[SteadyPace], counts: Sequence[int]) -> SteadyPace:
    """Return the pace of so many micro-batches at each of some paces."""
    seconds = [pace.s_per_microbatch * count for pace, count in zip(paces, counts, strict=True)]
    idle_s = [(pace.bubble_fraction or 0.0) * its_s for pace, its_s in zip(paces, seconds, strict=True)]
    all_s = math.fsum(seconds)
    return SteadyPace(all_s / sum(counts), math.fsum(idle_s) / all_s if all_s else 0.0)


def _pace(timeline: Timeline, microbatches: range, lags: Iterable[int]) -> SteadyPace | None:
    """Return the pace at which the ops of some micro-batches follow those of a lag before.

    Returns:
        That of the first lag after which all do alike; None if there is none.
    """
    ends_s = _ends_s(timeline)
    late = [(key, end_s) for key, end_s in ends_s.items() if key[3] in microbatches]
    for lag in lags:
        gains_s = [
            end_s - ends_s.get((rank, code, stage, microbatch - lag), math.inf)
            for (rank, code, stage, microbatch), end_s in late
        ]
        if _is_same(min(gains_s), max(gains_s)):
            gain_s = math.fsum(gains_s) / len(gains_s)
            last_s = max(end_s for _, end_s in late)
            until_s: dict[int, float] = {}
            for (rank, *_), end_s in late:
                device = timeline.rank_to_device[rank]
                until_s[device] = max(until_s.get(device, 0.0), end_s)
            ends_of = {device: until_s.get(device, last_s) for device in timeline.devices}
            windows = {device: (end_s - gain_s, end_s) for device, end_s in ends_of.items()}
            return SteadyPace(gain_s / lag, idle_share(busy_s(timeline, windows), len(windows), gain_s))
    return None


def _ends_s(timeline: Timeline) -> dict[tuple[int, int, int, int], float]:
    """Return when each computation is over [s], under its rank, code, stage and micro-batch."""
    spans = timeline.columns
    begins, codes, stages, microbatches, *_ = spans.ops.in_form(in_arrays=False)
    *_, ends_s = spans.in_form(in_arrays=False)
    ranks = chain.from_iterable([rank] * (end - begin) for rank, (begin, end) in enumerate(pairwise(begins)))
    return {
        (rank, code % op_cells.OVERLAPPED, stage, microbatch): end_s
        for rank, code, stage, microbatch, end_s in zip(ranks, codes, stages, microbatches, ends_s, strict=True)
        if code < op_cells.SEND_F or code >= op_cells.OVERLAPPED
    }


def idle_share(busy_s: float, num_devices: int, seconds: float) -> float:
    """Return the share of some seconds in which devices idle.

    Args:
        busy_s: Seconds in which they compute, all of them together.
        num_devices: How many there are.
        seconds: Seconds that are looked at.
    """
    return max(0.0, 1 - busy_s / (num_devices * seconds)) if seconds else 0.0


def _period(schedule: Schedule) -> int | None:
    """Return after how many micro-batches a list without a flush does the same again; None if it is too short."""
    try:
        return microbatches_per_step(repeat(schedule, 1))
    except ScheduleError:
        return None


def _reach(schedule: Schedule) -> int:
    """Return how many micro-batches, at most, lie between two ops that follow one another on a rank."""
    rows = ([part.microbatch for op in row for part in computes(op)] for row in schedule.ops)
    return max((abs(later - first) for row in rows for first, later in pairwise(row)), default=0) + 1


def _stretches(schedule: Schedule, period: int, reach: int) -> list[range]:
    """Return the micro-batches, in long stretches, in which what follows an op on its rank is the same a period later.

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


def _is_same(first_s: float, second_s: float) -> bool:
    return math.isclose(first_s, second_s, rel_tol=SAME)
