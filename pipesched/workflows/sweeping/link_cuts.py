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

from pipesched.simulator.sweep import OutcomeBlock, SettingBlock

_FIRST, _MOST = 5, 12
"""Links that are cut for themselves at first, and at most."""
_SAME = 1e-9
"""Relative; less is no gain."""


def has_many_links(block: SettingBlock) -> bool:
    """Whether a block has more links than are cut for themselves."""
    return len(block.numbers) > _MOST


def sampled_cuts(block: SettingBlock, cut_of: Callable[[int], str | None]) -> dict[int, str | None]:
    """Return the cuts of sample links by their places in a block: more samples between links of unlike cuts.

    Args:
        block: The settings of many links.
        cut_of: Returns the cut of the setting at a place.
    """
    links = [*zip(*block.links.values(), strict=True)]
    order = sorted(range(len(links)), key=links.__getitem__)
    cuts = {rank: cut_of(order[rank]) for rank in (step * (len(order) - 1) // (_FIRST - 1) for step in range(_FIRST))}
    while len(cuts) < _MOST:
        gaps = [(last - first, first) for first, last in pairwise(sorted(cuts)) if cuts[first] != cuts[last]]
        width, first = max(gaps, default=(0, 0))
        if width < 2:
            break
        cuts[first + width // 2] = cut_of(order[first + width // 2])
    return {order[rank]: cut for rank, cut in cuts.items()}


def contenders(
    block: SettingBlock, sampled: SettingBlock, samples: Mapping[str, OutcomeBlock], *, by_pace: bool
) -> dict[str, list[int]]:
    """Return the places of a block at which each cut may be the fastest.

    Args:
        block: Settings of the same lists as the sampled ones.
        sampled: The settings of the sample links.
        samples: Outcomes of the sampled settings under each cut.
        by_pace: Whether the steady pace counts, where it is known, in place of the makespan.
    """
    lines = {
        cut: sorted(
            zip(
                _axis(sampled),
                (_cost(outcomes, place, by_pace=by_pace) for place in range(len(sampled.numbers))),
                strict=True,
            )
        )
        for cut, outcomes in samples.items()
    }
    if len(block.links) > 1 or any(over_bytes for line in lines.values() for _, (over_bytes, _) in line):
        return {cut: [*range(len(block.numbers))] for cut in samples}
    points = {cut: [(at, seconds) for at, (_, seconds) in line] for cut, line in lines.items()}
    known = [at for at, _ in points[next(iter(points))]]
    places_of: dict[str, list[int]] = {cut: [] for cut in samples}
    for place, at in enumerate(_axis(block)):
        after = min(max(1, bisect_right(known, at)), len(known) - 1)
        most_s = min(_line(at, *line[after - 1 : after + 1]) for line in points.values())
        for cut, line in points.items():
            if _least_s(line, after, at) <= most_s * (1 + _SAME):
                places_of[cut].append(place)
    return places_of


def _axis(block: SettingBlock) -> list[float]:
    """Return for each link the number in which times are convex, where all links differ in one thing."""
    name, values = next(iter(block.links.items()))
    return [1 / value for value in values] if name == "bandwidth_bytes_per_s" else [*values]


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
    outcomes: Mapping[str, Sequence[OutcomeBlock]], own: Mapping[int, str], *, by_pace: bool
) -> tuple[OutcomeBlock, dict[str, list[int]]]:
    """Return the measures of settings under the best cut of each, or under its own, and the numbers of each cut.

    Args:
        outcomes: Outcomes of settings under each cut.
        own: The cut of a setting that was cut for itself, by its number.
        by_pace: Whether the steady pace counts, where it is known, in place of the makespan.
    """
    under: defaultdict[int, list[tuple[str, OutcomeBlock, int]]] = defaultdict(list)
    for cut, blocks in outcomes.items():
        for block in blocks:
            for place, number in enumerate(block.numbers):
                if own.get(number, cut) == cut:
                    under[number].append((cut, block, place))
    numbers, cuts, reasons = sorted(under), defaultdict[str, list[int]](list), dict[int, str]()
    chosen: list[tuple[OutcomeBlock, int]] = []
    for number in numbers:
        cut, block, place = min(under[number], key=lambda case: _cost(*case[1:], by_pace=by_pace))
        if place in block.reasons:
            reasons[len(chosen)] = block.reasons[place]
        chosen.append((block, place))
        cuts[cut].append(number)
    columns = {name: [getattr(block, name)[place] for block, place in chosen] for name in OutcomeBlock._fields[1:-1]}
    return OutcomeBlock(numbers, **columns, reasons=reasons), cuts


def _cost(block: OutcomeBlock, place: int, *, by_pace: bool) -> tuple[float, float]:
    """Return the cost to minimise: bytes over memory, then seconds; an infeasible cut costs most."""
    seconds, pace_s = float(block.seconds[place]), float(block.steady_s_per_microbatch[place])
    if math.isnan(seconds):
        return math.inf, math.inf
    held = float(block.held_bytes[place]) if place in block.reasons else 0.0
    return held, pace_s if by_pace and not math.isnan(pace_s) else seconds
