"""The choice of the step that is read from traces: the one asked for, or the last that all ranks have whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise, starmap

from pipesched.profiles import ProfileError
from pipesched.profiles.traces.passes import without_nested
from pipesched.profiles.traces.range_patterns import PassName
from pipesched.profiles.traces.rank_trace import Interval, NamedRange, RankTrace
from pipesched.schedules import Op

RankWindows = Sequence[Interval]
"""The same step on each rank."""

_EVER = Interval(-(2**63), 2**63 - 1)
_SHOWN_STEPS = 6


def step_windows(traces: Sequence[RankTrace], step: int | None) -> Mapping[int, RankWindows]:
    """Return the steps that all traces have, by number, the last one first.

    The profiler's own steps (``ProfilerStep#7``), where there are any; else a step ends where a pass comes again, and
    they are numbered from 0. Where passes have no names a trace is one step.

    Raises:
        ProfileError: The traces have no step in common, or not the one that is asked for.
    """
    if any(trace.steps for trace in traces):
        windows = [trace.steps for trace in traces]
    else:
        windows = [dict(enumerate(_repeated(trace.ranges))) for trace in traces]
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


def _repeated(ranges: Sequence[NamedRange]) -> list[Interval]:
    """Return from the first pass of each step to that of the next."""
    if any(isinstance(named.meaning, PassName) and named.meaning.microbatch is None for named in ranges):
        return [_EVER]
    counts: Counter[PassName | Op] = Counter()
    starts_ns: list[int] = []
    for named in without_nested(ranges):
        if counts[named.meaning] == len(starts_ns):
            starts_ns.append(named.time.start_ns)
        counts[named.meaning] += 1
    bounds_ns = [_EVER.start_ns, *starts_ns[1:], _EVER.end_ns]
    return list(starmap(Interval, pairwise(bounds_ns)))


def _list(steps: Collection[int]) -> str:
    """Return the first few, the newest first, for a message."""
    shown = sorted(steps, reverse=True)
    text = ", ".join(map(str, shown[:_SHOWN_STEPS])) or "none"
    return f"{text} and {len(shown) - _SHOWN_STEPS} more" if len(shown) > _SHOWN_STEPS else text
