"""Cuts of layers for many links: a few sample links are cut for themselves, each other one takes the best of the cuts.

bandwidth    1e9   2e9   3e9   4e9   5e9      the cuts of the samples, the uniform one and the one of fastest slowest
cut of       1e9   best  3e9   best  5e9      stage are evaluated for all samples

seconds  |        __/ cut a       The time of a cut is a convex function of the seconds of a byte, and of the latency:
of a cut |  __---/.. cut b        the longest path of many, each of which is a straight line. So between two samples the
         |_/....                  time lies below the chord, and above the lines through the samples on either side. A
         s    s       s           cut whose line is above the chord of another one is not evaluated there.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter

from pipesched.simulator.search import SweptOutcome, SweptSetting

_FIRST, _MOST = 5, 12
"""Links that are cut for themselves at first, and at most."""
_SAME = 1e-9
"""Relative; less is no gain."""


def has_many_links(settings: Sequence[SweptSetting]) -> bool:
    """Whether there are more links than are cut for themselves."""
    return len(settings) > _MOST


def sampled_cuts(
    settings: Sequence[SweptSetting], cut_of: Callable[[SweptSetting], str | None]
) -> dict[SweptSetting, str | None]:
    """Return the cuts of sample settings: more samples between links of unlike cuts.

    Args:
        settings: Settings of the same op lists, each with its own link.
        cut_of: Returns the cut of a setting.
    """
    order = sorted(settings, key=attrgetter("link"))
    cuts = {rank: cut_of(order[rank]) for rank in (step * (len(order) - 1) // (_FIRST - 1) for step in range(_FIRST))}
    while len(cuts) < _MOST:
        gaps = [(last - first, first) for first, last in pairwise(sorted(cuts)) if cuts[first] != cuts[last]]
        width, first = max(gaps, default=(0, 0))
        if width < 2:
            break
        cuts[first + width // 2] = cut_of(order[first + width // 2])
    return {order[rank]: cut for rank, cut in cuts.items()}


def contenders(
    settings: Sequence[SweptSetting], samples: Mapping[str, Sequence[SweptOutcome]], *, by_pace: bool
) -> dict[str, list[SweptSetting]]:
    """Return the settings for which each cut may be the fastest.

    Args:
        settings: Settings of the same op lists as the sampled ones.
        samples: Outcomes of the sampled settings under each cut.
        by_pace: Whether the steady-state time counts, where it is known, in place of the makespan.
    """
    lines = {
        cut: sorted((_place(outcome.setting), _cost(outcome, by_pace=by_pace)) for outcome in outcomes)
        for cut, outcomes in samples.items()
    }
    has_one_axis = all(len(setting.link) == 1 for setting in settings)
    if not has_one_axis or any(over_bytes for line in lines.values() for _, (over_bytes, _) in line):
        return {cut: [*settings] for cut in samples}
    points = {cut: [(at, seconds) for at, (_, seconds) in line] for cut, line in lines.items()}
    known = [at for at, _ in points[next(iter(points))]]
    settings_of: dict[str, list[SweptSetting]] = {cut: [] for cut in samples}
    for setting in settings:
        at = _place(setting)
        after = min(max(1, bisect_right(known, at)), len(known) - 1)
        most_s = min(_line(at, *line[after - 1 : after + 1]) for line in points.values())
        for cut, line in points.items():
            if _least_s(line, after, at) <= most_s * (1 + _SAME):
                settings_of[cut].append(setting)
    return settings_of


def _place(setting: SweptSetting) -> float:
    """Return the varied value of a link as a coordinate in which times are convex: 1 / bandwidth, or latency."""
    name, value = setting.link[0]
    return 1 / value if name == "bandwidth_bytes_per_s" else value


def _line(at: float, first: tuple[float, float], second: tuple[float, float]) -> float:
    """Return the value at a point of the line through two others."""
    share = (at - first[0]) / (second[0] - first[0]) if first[0] != second[0] else 0.0
    return first[1] + share * (second[1] - first[1])


def _least_s(line: Sequence[tuple[float, float]], after: int, at: float) -> float:
    """Return a lower bound of a convex, rising function, given some of its points and the number of the next one."""
    least_s = line[after - 1][1]
    if after > 1:
        least_s = max(least_s, _line(at, *line[after - 2 : after]))
    if after + 1 < len(line):
        least_s = max(least_s, _line(at, *line[after : after + 2]))
    return least_s


def best_of_cuts(
    outcomes: Mapping[str, Sequence[SweptOutcome]], own: Mapping[SweptSetting, str], *, by_pace: bool
) -> dict[SweptSetting, tuple[str, SweptOutcome]]:
    """Return the best cut of each setting, or its own cut, with the outcome under it.

    Args:
        outcomes: Outcomes of settings under each cut.
        own: The cut of a setting that was cut for itself.
        by_pace: Whether the steady-state time counts, where it is known, in place of the makespan.
    """
    under: defaultdict[SweptSetting, list[tuple[str, SweptOutcome]]] = defaultdict(list)
    for cut, of_cut in outcomes.items():
        for outcome in of_cut:
            if own.get(outcome.setting, cut) == cut:
                under[outcome.setting].append((cut, outcome))
    return {setting: min(cases, key=lambda case: _cost(case[1], by_pace=by_pace)) for setting, cases in under.items()}


def _cost(outcome: SweptOutcome, *, by_pace: bool) -> tuple[float, float]:
    """Return the cost to minimise: bytes over memory, then seconds; an infeasible cut costs most."""
    seconds, pace_s = outcome.seconds, outcome.steady_s_per_microbatch
    if seconds is None:
        return math.inf, math.inf
    held = 0.0 if outcome.fits else float(outcome.held_bytes or 0)
    return held, pace_s if by_pace and pace_s is not None else seconds
