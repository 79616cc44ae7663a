"""The steady state of a long run: seconds per micro-batch when warm-up and cool-down no longer count.

A batch that is repeated is mostly settled by its own Timeline. Let the ranks that begin first all end at L, and no
other rank or channel end later than L after its own beginning:

    rank 0  F0 F1 .. .. .. B0 .. B1 | F2 F3 ..        begins at 0, ends at L
    rank 1  .. F0 F1 B0 .. B1 .. ..   .. F2 ..        begins at s, ends before L + s

Every time is the longest way to it from some rank's beginning, so from that of the ranks that begin first: all others
wait for them. The next batch finds these ready at L, and the others no later than they begin to work; so it is the same
batch L later, and so are all that follow.

Else a longer run is looked at. What comes next depends on as many micro-batches as the lists have under way, and on
nothing before. So once all ops of that many come just as long after the same ops of some periods before, all later
ones do. One period may not do: where k micro-batches go round, every k-th may find the same gap.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise

from pipesched.profiles.clusters import Cluster
from pipesched.schedules import Recv, Schedule, ScheduleError, Send, Timeline, computes, repeat
from pipesched.schedules.transforms import microbatches_per_step
from pipesched.simulator import USUAL_NETWORK, NetworkOptions, is_usual
from pipesched.simulator.fast.contention import is_unshared

_SAME = 1e-9
"""How far, relatively, two times differ that are the same but for rounding."""


def batch_period_s(
    schedule: Schedule, timeline: Timeline, cluster: Cluster, network: NetworkOptions = USUAL_NETWORK
) -> float | None:
    """Return how long after a batch the next one is the same; None where its Timeline alone does not show it.

    Args:
        schedule: Of one batch, lowered.
        timeline: Of `schedule`, without jitter.
        cluster: As it was simulated with.
        network: So too.
    """
    if not is_usual(network) or not is_unshared(schedule, cluster):
        return None
    begins_s, ends_s = [math.inf] * schedule.num_ranks, [0.0] * schedule.num_ranks
    channels: dict[tuple[int, int], tuple[float, float]] = {}
    for span in timeline.spans:
        begins_s[span.rank] = min(begins_s[span.rank], span.start_s)
        if isinstance(span.op, Send):
            first_s, last_s = channels.get((span.rank, span.op.peer), (span.start_s, span.end_s))
            channels[span.rank, span.op.peer] = min(first_s, span.start_s), max(last_s, span.end_s)
        elif not isinstance(span.op, Recv):
            ends_s[span.rank] = max(ends_s[span.rank], span.end_s)
    first_s = min(begins_s)
    ready_s = [end_s for begin_s, end_s in zip(begins_s, ends_s, strict=True) if begin_s == first_s]
    period_s = max(ready_s) - first_s
    longest_s = max(end_s - begin_s for begin_s, end_s in (*zip(begins_s, ends_s, strict=True), *channels.values()))
    is_same = max(longest_s, period_s) - period_s + max(ready_s) - min(ready_s) <= _SAME * period_s
    return period_s if is_same else None


def repeated_pace_s(runs: Iterable[tuple[Schedule, Timeline]], batch: int) -> float | None:
    """Return the seconds per micro-batch of a batch that is repeated ever more often; None if it does not settle.

    Args:
        runs: From the shortest to the longest, which are simulated only as far as they are needed.
        batch: Micro-batches of the batch.
    """
    for schedule, timeline in runs:
        count = schedule.num_microbatches
        pace_s = _pace_s(timeline, range(count - batch, count), range(batch, count // 2 + 1, batch))
        if pace_s is not None:
            return pace_s
    return None


def unflushed_pace_s(runs: Iterable[tuple[Schedule, Timeline]]) -> float | None:
    """Return the seconds per micro-batch of ever longer runs without a flush; None if they do not settle.

    The beginning, while the pipeline fills, and the end, while it empties, do not count. Lists that do not go on alike
    (`hybrid`, which stops pipelining half way) have the pace at which a run gets longer.
    """
    before: tuple[int, float] | None = None
    last_pace_s = None
    for schedule, timeline in runs:
        count, period, reach = schedule.num_microbatches, _period(schedule), _reach(schedule)
        is_long = period is not None and count >= 3 * reach + period
        is_regular = period is not None and is_long and _goes_on_alike(schedule, period, reach)
        if period is not None and is_regular:
            lags = range(period, count - 3 * reach + 1, period)[: 2 * schedule.num_stages]
            pace_s = _pace_s(timeline, range(count - 2 * reach, count - reach), lags)
            if pace_s is not None:
                return pace_s
        if before is not None:
            pace_s = (timeline.makespan_s - before[1]) / (count - before[0])
            if is_long and not is_regular and last_pace_s is not None and _is_same(pace_s, last_pace_s):
                return pace_s
            last_pace_s = pace_s
        before = count, timeline.makespan_s
    return None


def _pace_s(timeline: Timeline, microbatches: range, lags: Iterable[int]) -> float | None:
    """Return the seconds per micro-batch at which the ops of some micro-batches follow those of a lag before.

    Returns:
        That of the first lag after which all do alike; None if there is none.
    """
    ends_s = {
        (span.rank, part.phase, part.stage, part.microbatch): span.end_s
        for span in timeline.spans
        for part in computes(span.op)
    }
    late = [(key, end_s) for key, end_s in ends_s.items() if key[3] in microbatches]
    for lag in lags:
        gains_s = [
            end_s - ends_s.get((rank, phase, stage, microbatch - lag), math.inf)
            for (rank, phase, stage, microbatch), end_s in late
        ]
        if _is_same(min(gains_s), max(gains_s)):
            return math.fsum(gains_s) / len(gains_s) / lag
    return None


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


def _goes_on_alike(schedule: Schedule, period: int, reach: int) -> bool:
    """Whether what follows an op on its rank is the same a period later, but at the beginning and the end."""
    for row in schedule.ops:
        parts = [part for op in row for part in computes(op)]
        follows = {
            (part.phase, part.stage, part.microbatch): (later.phase, later.stage, later.microbatch - part.microbatch)
            for part, later in pairwise(parts)
        }
        for (phase, stage, microbatch), later in follows.items():
            is_between = reach <= microbatch < schedule.num_microbatches - reach - period
            if is_between and follows.get((phase, stage, microbatch + period)) != later:
                return False
    return True


def _is_same(first_s: float, second_s: float) -> bool:
    return math.isclose(first_s, second_s, rel_tol=_SAME)
