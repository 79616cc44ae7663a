"""Cuts of layers for many links: a few sample links are cut for themselves, each other one takes the best of the cuts.

bandwidth    1e9   2e9   3e9   4e9   5e9      the cuts of the samples, the uniform one and the one of fastest slowest
cut of       1e9   best  3e9   best  5e9      stage are evaluated for all links
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise

from pipesched.simulator.sweep import OutcomeBlock, SettingBlock

_FIRST, _MOST = 5, 12
"""Links that are cut for themselves at first, and at most."""


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


def best_of_cuts(outcomes: Mapping[str, OutcomeBlock], own: Mapping[int, str], *, by_pace: bool) -> OutcomeBlock:
    """Return what settings amount to under the best cut of each, or under its own.

    Args:
        outcomes: What the same settings amount to under each cut.
        own: The cut of a setting that was cut for itself, by its number.
        by_pace: Whether the steady pace counts, where it is known, in place of the makespan.
    """
    places = {cut: {number: place for place, number in enumerate(block.numbers)} for cut, block in outcomes.items()}
    numbers = sorted(next(iter(places.values())))
    reasons, columns = dict[int, str](), dict[str, list[object]]()
    chosen: list[tuple[OutcomeBlock, int]] = []
    for number in numbers:
        cuts = [own[number]] if number in own else [*outcomes]
        under = [(outcomes[cut], places[cut][number]) for cut in cuts]
        chosen.append(min(under, key=lambda pair: _cost(*pair, by_pace=by_pace)))
    for name in OutcomeBlock._fields[1:-1]:
        columns[name] = [getattr(block, name)[place] for block, place in chosen]
    for index, (block, place) in enumerate(chosen):
        if place in block.reasons:
            reasons[index] = block.reasons[place]
    return OutcomeBlock(numbers, **columns, reasons=reasons)


def _cost(block: OutcomeBlock, place: int, *, by_pace: bool) -> tuple[float, float]:
    """Return the cost to minimise: bytes over memory, then seconds; an infeasible cut costs most."""
    seconds, pace_s = float(block.seconds[place]), float(block.steady_s_per_microbatch[place])
    if math.isnan(seconds):
        return math.inf, math.inf
    held = float(block.held_bytes[place]) if place in block.reasons else 0.0
    return held, pace_s if by_pace and not math.isnan(pace_s) else seconds
