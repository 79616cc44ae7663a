"""The choice of the step to read from traces: the requested step, or the last complete step of all ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, starmap

from pipesched.profiles import ProfileError
from pipesched.profiles.traces.range_patterns import microbatch_of, renumbered
from pipesched.profiles.traces.rank_trace import Interval, NamedRange, RankTrace
from pipesched.profiles.traces.step_cuts import passes_of, step_cuts
from pipesched.schedules.ops import Op, Recv

RankWindows = Sequence[Interval]
"""The same step on each rank."""

EVER = Interval(-(2**63), 2**63 - 1)
_SHOWN_STEPS = 6


def step_windows(
    traces: Sequence[RankTrace], step: int | None, lists: Sequence[Sequence[Op] | None], *, has_one_clock: bool
) -> Mapping[int, RankWindows]:
    """Return the steps that all traces have, by number, the last one first.

    These are the profiler's own steps (``ProfilerStep#7``), if there are any; else the steps of `step_cuts`, numbered
    from 0.

    Raises:
        ProfileError: The traces have no step in common, or lack the requested one.
    """
    if any(trace.steps for trace in traces):
        windows = [trace.steps for trace in traces]
    else:
        cuts = step_cuts(traces, lists, is_chosen=step is not None)
        windows = _numbered(traces, list(map(_windows, traces, cuts)), has_one_clock=has_one_clock)
    common = set.intersection(*map(set, windows))
    if step is not None:
        for trace, own in zip(traces, windows, strict=True):
            if step not in own:
                raise ProfileError(f"{trace.file}: step: got {step}, expected a step that it has: {_list(own)}")
        common = {step}
    if not common:
        other = min(range(len(traces)), key=lambda place: windows[place].keys() >= windows[0].keys())
        got = f"step {_list(windows[other])}" if windows[other] else "no step of the profiler"
        raise ProfileError(
            f"{traces[other].file}: got {got}, expected one that all traces have: "
            f"{traces[0].file} has {_list(windows[0])}; try traces of the same steps"
        )
    return {number: [own[number] for own in windows] for number in sorted(common, reverse=True)}


def from_zero(
    traces: Sequence[RankTrace], windows: RankWindows, ranges: Sequence[Sequence[NamedRange]]
) -> list[Sequence[NamedRange]]:
    """Return the ranges of a step with micro-batches from 0, if their numbers continue from the step before."""
    first = min(_microbatches(ranges), default=0)
    before = [
        [named for named in trace.ranges if named.time.start_ns < window.start_ns]
        for trace, window in zip(traces, windows, strict=True)
    ]
    if max(_microbatches(before), default=-1) != first - 1:
        return list(ranges)
    return [[replace(named, meaning=renumbered(named.meaning, first)) for named in own] for own in ranges]


def _microbatches(ranges: Sequence[Sequence[NamedRange]]) -> set[int]:
    return {number for own in ranges for named in own if (number := microbatch_of(named.meaning)) is not None}


def _windows(trace: RankTrace, cuts: Sequence[int]) -> list[Interval]:
    """Return the time of each step: it begins with the first pass, or with receiving the input of that pass."""
    passes = passes_of(trace) if cuts else []
    recvs_ns = [*trace.recv_posts.starts_ns, *(r.time.start_ns for r in trace.ranges if isinstance(r.meaning, Recv))]
    starts_ns = []
    for place in cuts:
        last_ns, first_ns = passes[place - 1].range.time.end_ns, passes[place].range.time.start_ns
        starts_ns.append(min((at_ns for at_ns in recvs_ns if last_ns <= at_ns < first_ns), default=first_ns))
    return list(starmap(Interval, pairwise([EVER.start_ns, *starts_ns, EVER.end_ns])))


def _numbered(
    traces: Sequence[RankTrace], windows: Sequence[Sequence[Interval]], *, has_one_clock: bool
) -> list[dict[int, Interval]]:
    """Return the steps by number; if ranks have different numbers of steps, the steps that ran at the same time.

    Raises:
        ProfileError: The clocks do not show which steps are the same.
    """
    shifts = [0] * len(windows)
    if has_one_clock or len(set(map(len, windows))) > 1:
        times = list(map(_step_times, traces, windows))
        for place, own in enumerate(times):
            overlaps_ns = _overlaps_ns(times[0], own)
            best, *others = sorted(overlaps_ns, key=lambda shift, known=overlaps_ns: -known[shift])  # type: ignore[misc]
            if overlaps_ns[best] > 2 * max((overlaps_ns[shift] for shift in others), default=0):
                shifts[place] = best
            elif len(own) != len(times[0]):
                raise ProfileError(
                    f"{traces[place].file}: got {len(own)} steps, and {len(times[0])} in {traces[0].file}, expected as "
                    "many, or clocks that tell which are the same; try traces with profiler.step() after each step"
                )
    return [
        {number - shift: window for number, window in enumerate(own)}
        for own, shift in zip(windows, shifts, strict=True)
    ]


def _step_times(trace: RankTrace, windows: Sequence[Interval]) -> list[Interval]:
    """Return the interval of the passes of each step [ns since 1970]."""
    passes = [work.range.time for work in passes_of(trace)]
    inside = [[time for time in passes if window.start_ns <= time.start_ns < window.end_ns] for window in windows]
    return [
        Interval(trace.base_ns + min(time.start_ns for time in own), trace.base_ns + max(time.end_ns for time in own))
        if own
        else Interval(0, 0)
        for own in inside
    ]


def _overlaps_ns(first: Sequence[Interval], second: Sequence[Interval]) -> dict[int, int]:
    """Return the overlap of steps on two ranks [ns], by the difference of their numbers."""
    return {
        shift: sum(
            time.overlap_ns(second[at + shift]) for at, time in enumerate(first) if 0 <= at + shift < len(second)
        )
        for shift in range(1 - len(first), len(second))
    }


def _list(steps: Collection[int]) -> str:
    """Return the first few, the newest first, for a message."""
    shown = sorted(steps, reverse=True)
    text = ", ".join(map(str, shown[:_SHOWN_STEPS])) or "none"
    return f"{text} and {len(shown) - _SHOWN_STEPS} more" if len(shown) > _SHOWN_STEPS else text
