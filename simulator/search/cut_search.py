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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import combinations, pairwise
from typing import NamedTuple, TypeAlias, final

import numpy as np

from pipesched.profiles.partitioning import CutTable, Layers, RankWork, bounds_of
from pipesched.schedules.columns import Float64s

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


class CutBound(NamedTuple):
    """The least seconds of a cut, and the number of the rank, or channel behind the ranks, that takes them."""

    seconds: float
    costliest: int


@dataclass(frozen=True, slots=True, eq=False)
class CutBounds:
    """Lower bounds of the seconds of cuts: the work of a rank or channel, plus the way to it if there is a flush.

    Attributes:
        work: Work of each rank and channel.
        there_s: Seconds of the way of a forward through all layers before layer 0, 1, ..
        back_s: Seconds of the way of a backward likewise; 0 where a rank does not wait for the way back.
        steps_s: Upper bound on the seconds of the Steps of these layers, which a rank runs during the way back.
        hops_s: For each stage, the seconds of its activation if layer 0, 1, .. were the first of the next stage; 0 if
            no message is sent, or no way counts: stages x (layers + 1).
        returns_s: Seconds of its gradient likewise.
        hidden: Share of the shorter direction's work that may hide behind the other's.
    """

    work: RankWork
    there_s: Float64s
    back_s: Float64s
    steps_s: Float64s
    hops_s: Float64s
    returns_s: Float64s
    hidden: float = 0.0

    def of_all(self, cuts: CutTable) -> Float64s:
        """Return the least seconds of each rank, and then of each channel: cuts x (ranks and channels)."""
        begins, ends = bounds_of(cuts)
        is_back, work = self.back_s[-1] > 0, self.work
        ahead_s = work.at_first_stage(self.there_s[begins] + _before(self.hops_s, ends))
        behind_s = work.at_first_stage(self.back_s[begins] + _before(self.returns_s, ends) * is_back)
        stepped_s = work.over_stages(self.steps_s[ends] - self.steps_s[begins])
        loads_s = work.loads_s(cuts)
        of_ranks_s: Float64s = loads_s * (1 - self.hidden) + ahead_s + np.maximum(0.0, behind_s - stepped_s)
        if not work.channels:
            return of_ranks_s
        inside_s = self.there_s[ends] - self.there_s[begins] + self.back_s[ends] - self.back_s[begins]
        of_channels_s = work.at_first_stage(inside_s) + ahead_s + behind_s + loads_s
        return np.where(np.arange(loads_s.shape[1]) < len(work.ranks), of_ranks_s, of_channels_s)

    def of(self, cuts: Sequence[Layers]) -> list[CutBound]:
        """Return the bound of each cut."""
        if not cuts:
            return []
        bounds_s = self.of_all(np.array(cuts))
        return [*map(CutBound, bounds_s.max(axis=1).tolist(), bounds_s.argmax(axis=1).tolist())]


def _before(messages_s: Float64s, ends: CutTable) -> Float64s:
    """Return the seconds of the messages of all stages before each stage: cuts x stages."""
    seconds = messages_s[range(ends.shape[1]), ends]
    before_s = np.zeros_like(seconds)
    seconds[:, :-1].cumsum(axis=1, out=before_s[:, 1:])
    return before_s


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
        self._waiting: list[tuple[float, float, CutBound, Layers, float]] = []  # as `_expand` puts them

    def fastest(self, starts: Sequence[Layers]) -> Layers:
        """Return the cheapest cut found; no start is cheaper."""
        num_measured = 0
        self._seen.update(starts)
        for bound, layers in sorted(zip(self._bounds.of(starts), starts, strict=True), key=lambda cut: cut[0].seconds):
            if self._may_win(bound.seconds):
                self._expand(layers, bound, *self._tried(layers, bound.seconds))
        passed = 0
        rest, patience = self._all(starts[0]), _PATIENCE if _num_cuts(starts[0]) > _FEW_CUTS else self._most
        while num_measured < (self._most if self._best[0] else min(self._most, self._gained + patience)):
            if self._waiting and passed < _PASSED * self._most:
                over_bytes, _, bound, layers, lost_s = heappop(self._waiting)
            else:
                bound, layers = next(rest, (CutBound(0.0, 0), ()))
                if not layers:
                    break
                over_bytes, lost_s = 0.0, math.inf
            if self._may_win(bound.seconds):
                num_measured, before = num_measured + 1, self._layers
                over_bytes, lost_s = self._tried(layers, bound.seconds)
                self._gained = self._gained if before is self._layers else num_measured
            elif lost_s == math.inf:
                continue
            passed += 1
            if passed < _PASSED * self._most:
                self._expand(layers, bound, over_bytes, lost_s)
        assert self._layers is not None, "the first start may win"
        return self._layers

    def _tried(self, layers: Layers, bound_s: float) -> tuple[float, float]:
        """Simulate a cut, which may become the best; return its bytes over memory, and its seconds over its bound."""
        cost = self._measure(layers)
        if self._layers is None or _is_less(cost, self._best):
            self._best, self._layers = cost, layers
        return cost[0], cost[1] - bound_s

    def _may_win(self, bound_s: float) -> bool:
        """Whether a cut of this bound may be cheaper than the best."""
        if self._layers is None or self._best[0]:
            return True
        return bound_s < self._best[1] * (1 - _SAME)

    def _expand(self, layers: Layers, bound: CutBound, over_bytes: float, lost_s: float) -> None:
        """Queue the neighbours of a cut by the bytes of the cut over memory, then by their expected cost."""
        limit_s = math.inf if self._best[0] else self._best[1] * (1 + _BRIDGE)
        floor_s = 0.0 if self._may_win(bound.seconds) else bound.seconds
        moves = map(tuple, self._bounds.work.moves(layers, bound.costliest).tolist())
        unseen = [moved for moved in moves if moved not in self._seen]
        self._seen.update(unseen)
        for least, moved in zip(self._bounds.of(unseen), unseen, strict=True):
            if least.seconds < limit_s:
                cost_s = max(least.seconds, floor_s) + lost_s
                heappush(self._waiting, (over_bytes, cost_s, least, moved, lost_s))

    def _all(self, layers: Layers) -> Iterator[tuple[CutBound, Layers]]:
        """Yield all remaining cuts by their bounds, if they are few."""
        if _num_cuts(layers) > _FEW_CUTS:
            return
        num_layers, num_stages = sum(layers), len(layers)
        cuts = {
            tuple(end - begin for begin, end in pairwise((0, *ends, num_layers)))
            for ends in combinations(range(1, num_layers), num_stages - 1)
        }
        rest = [*(cuts - self._seen)]
        yield from sorted(zip(self._bounds.of(rest), rest, strict=True))


def _num_cuts(layers: Layers) -> int:
    """Return the number of all cuts of as many layers into as many stages."""
    return math.comb(sum(layers) - 1, len(layers) - 1)


def _is_less(cost: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether a cost is less than another by more than roundings."""
    pairs = zip(cost, other, strict=False)
    unlike = ((own, its) for own, its in pairs if not math.isclose(own, its, rel_tol=_SAME))
    own, its = next(unlike, (0.0, 0.0))
    return own < its
