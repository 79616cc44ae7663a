"""Search for the fastest cut of layers into stages, starting near cuts that balance the ranks.

    cost     5   6*   7        * simulated
             ↓
             5*  6    6   7

The cheapest cut comes next. It is simulated unless its bound is above the best known cost. A simulated cut queues its
neighbours, in which one layer is moved. The expected cost of a neighbour is its bound plus the excess of the simulated
cut over its own bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate, combinations, pairwise
from typing import TypeAlias, final

from pipesched.profiles.partitioning import Layers, RankWork

CutCost: TypeAlias = Callable[[Layers], tuple[float, ...]]
"""Returns the cost of a cut as a tuple to compare: bytes over memory, seconds, and tie-breakers."""

_SAME = 1e-9
"""Relative; less is no gain."""
_BRIDGE = 0.1
"""Cuts whose bound is above the best by up to this share are passed on the way to others, without being simulated."""
_PASSED = 2
"""Cuts whose neighbours are looked at, for each one that may be simulated."""
_PATIENCE = 40
"""Cuts that are simulated in a row without a gain before the search ends, unless all cuts are few."""
_FEW_CUTS = 1_000
"""Number of cuts up to which all are looked at, if there is room."""


@dataclass(frozen=True, slots=True)
class CutBounds:
    """Lower bounds of the seconds of cuts: the work of a rank or channel, plus the way to it if there is a flush.

    Attributes:
        work: Work of each rank and channel.
        there_s: Seconds of the way of a forward through all layers before layer 0, 1, ..
        back_s: Seconds of the way of a backward likewise; 0 where a rank does not wait for the way back.
        steps_s: Upper bound on the seconds of the Steps of these layers, which a rank runs during the way back.
        hops_s: For each stage, the seconds of its activation if layer 0, 1, .. were the first of the next stage; empty
            if no message is sent, or no way counts.
        returns_s: Seconds of its gradient likewise.
        hidden: Share of the shorter direction's work that may hide behind the other's.
    """

    work: RankWork
    there_s: Sequence[float]
    back_s: Sequence[float]
    steps_s: Sequence[float]
    hops_s: Sequence[Sequence[float]]
    returns_s: Sequence[Sequence[float]]
    hidden: float = 0.0

    def of_all(self, layers: Layers) -> list[float]:
        """Return the least seconds of each rank, and then of each channel."""
        ends, shown, hop_s, return_s = (0, *accumulate(layers)), 1 - self.hidden, 0.0, 0.0
        bounds_s, ways_s, is_back, steps_s = [], [], self.back_s[-1] > 0, self.steps_s
        for end, next_end, hops_s, returns_s in zip(ends, ends[1:], self.hops_s, self.returns_s, strict=False):
            ways_s.append((hop_s + self.there_s[end], return_s * is_back + self.back_s[end]))
            hop_s += hops_s[next_end] if hops_s else 0.0
            return_s += returns_s[next_end] if returns_s else 0.0
        for stages in self.work.ranks:  # written out, as it is asked most
            seconds = stepped_s = 0.0
            for stage, sums in stages:
                begin, end = ends[stage], ends[stage + 1]
                seconds += sums[end] - sums[begin]
                stepped_s += steps_s[end] - steps_s[begin]
            there_s, back_s = ways_s[stages[0][0]] if stages else (0.0, 0.0)
            bounds_s.append(seconds * shown + there_s + max(0.0, back_s - stepped_s))
        for channel in self.work.channels:
            begin, end = ends[channel[0][0]], ends[channel[0][0] + 1]
            seconds = self.there_s[end] - self.there_s[begin] + self.back_s[end] - self.back_s[begin]
            seconds += sum(ways_s[channel[0][0]])
            for stage, messages_s in channel:
                seconds += messages_s[ends[stage + 1]]
            bounds_s.append(seconds)
        return bounds_s


@final
class CutSearch:
    """A search of the cheapest cut.

    Args:
        bounds: Lower bounds of the seconds of cuts.
        measure: Returns the cost of a cut: (bytes over memory, seconds, ..).
        most: Most cuts to simulate, besides the starting cuts.
    """

    def __init__(self, bounds: CutBounds, measure: CutCost, most: int) -> None:
        self._bounds, self._measure, self._most = bounds, measure, most
        self._best: tuple[float, ...] = (math.inf,)
        self._layers: Layers | None = None
        self._gained = 0  # the number of the cut that was the last gain
        self._seen: set[Layers] = set()
        self._waiting: list[tuple[float, float, float, Layers, float]] = []  # as `_expand` puts them

    def fastest(self, starts: Sequence[Layers]) -> Layers:
        """Return the cheapest cut found; no start is cheaper."""
        num_measured = 0
        self._seen.update(starts)
        for layers in sorted(starts, key=self._bound_s):
            if self._may_win(bound_s := self._bound_s(layers)):
                self._expand(layers, bound_s, *self._tried(layers, bound_s))
        passed = 0
        rest, patience = self._all(starts[0]), _PATIENCE if _num_cuts(starts[0]) > _FEW_CUTS else self._most
        while num_measured < (self._most if self._best[0] else min(self._most, self._gained + patience)):
            if self._waiting and passed < _PASSED * self._most:
                over_bytes, _, bound_s, layers, lost_s = heappop(self._waiting)
            else:
                layers = next(rest, ())
                if not layers:
                    break
                over_bytes, bound_s, lost_s = 0.0, self._bound_s(layers), math.inf
            if self._may_win(bound_s):
                num_measured, before = num_measured + 1, self._layers
                over_bytes, lost_s = self._tried(layers, bound_s)
                self._gained = self._gained if before is self._layers else num_measured
            elif lost_s == math.inf:
                continue
            passed += 1
            if passed < _PASSED * self._most:
                self._expand(layers, bound_s, over_bytes, lost_s)
        assert self._layers is not None, "the first start may win"
        return self._layers

    def _tried(self, layers: Layers, bound_s: float) -> tuple[float, float]:
        """Simulate a cut, which may become the best; return its bytes over memory, and its seconds over its bound."""
        cost = self._measure(layers)
        if self._layers is None or _is_less(cost, self._best):
            self._best, self._layers = cost, layers
        return cost[0], cost[1] - bound_s

    def _bound_s(self, layers: Layers) -> float:
        return max(self._bounds.of_all(layers))

    def _may_win(self, bound_s: float) -> bool:
        """Whether a cut of this bound may be cheaper than the best."""
        if self._layers is None or self._best[0]:
            return True
        return bound_s < self._best[1] * (1 - _SAME)

    def _expand(self, layers: Layers, bound_s: float, over_bytes: float, lost_s: float) -> None:
        """Queue the neighbours of a cut by the bytes of the cut over memory, then by their expected cost."""
        limit_s = math.inf if self._best[0] else self._best[1] * (1 + _BRIDGE)
        for moved in self._bounds.work.moves(layers, self._bounds.of_all(layers)):
            if moved not in self._seen:
                self._seen.add(moved)
                least_s = self._bound_s(moved)
                if least_s < limit_s:
                    cost_s = max(least_s, bound_s if not self._may_win(bound_s) else 0.0) + lost_s
                    heappush(self._waiting, (over_bytes, cost_s, least_s, moved, lost_s))

    def _all(self, layers: Layers) -> Iterator[Layers]:
        """Yield all remaining cuts by their bounds, if they are few."""
        if _num_cuts(layers) > _FEW_CUTS:
            return
        num_layers, num_stages = sum(layers), len(layers)
        cuts: Iterable[Layers] = (
            tuple(end - begin for begin, end in pairwise((0, *ends, num_layers)))
            for ends in combinations(range(1, num_layers), num_stages - 1)
        )
        yield from sorted(set(cuts) - self._seen, key=lambda cut: (self._bound_s(cut), cut))


def _num_cuts(layers: Layers) -> int:
    """Return the number of all cuts of as many layers into as many stages."""
    return math.comb(sum(layers) - 1, len(layers) - 1)


def _is_less(cost: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether a cost is less than another by more than roundings."""
    pairs = zip(cost, other, strict=False)
    unlike = ((own, its) for own, its in pairs if not math.isclose(own, its, rel_tol=_SAME))
    own, its = next(unlike, (0.0, 0.0))
    return own < its
