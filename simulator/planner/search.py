"""Search the best candidates of a request, most of them by their bound alone.

Every candidate gets a bound: seconds per sample that it surely needs. The one of the least bound is predicted in full
and put back under what it really needs; what is at the top with its real figure is better than all others can be.
So the ranking is that of an exhaustive search as far as it goes, and most candidates are never worked through.

A candidate that surely does not fit into memory is not predicted, unless nothing fits: then the one that needs the
least is looked for in the same way, by bytes.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heapreplace
from time import monotonic
from typing import final

from pipesched.profiles.costs import StageCosts
from pipesched.simulator.planner.bound import Bounds
from pipesched.simulator.planner.candidate import Candidate
from pipesched.simulator.planner.evaluate import evaluate_candidate
from pipesched.simulator.planner.one_copy import alone
from pipesched.simulator.planner.outcome import PlanOutcome
from pipesched.simulator.planner.request import Request, candidates, nothing_possible, require_plannable
from pipesched.simulator.search import UNPREDICTABLE, over_memory_reason

_GARBAGE = 200_000
"""Objects between collections: predictions leave many behind, and few in circles."""


@dataclass(frozen=True, slots=True)
class PlanRanking:
    """What a search came to.

    Attributes:
        ranked: Those that fit, the fastest first; as many as were asked for are surely the best of all.
        rejected: Those that were predicted, or whose bound was enough, and do not fit.
        considered: Every candidate, with the seconds per sample that it surely needs.
        num_predicted: Of them in full.
        is_complete: Whether the search came to its end.
        headroom: How much faster, relatively, than the best one something might still be; 0 if it is the best.
    """

    ranked: tuple[PlanOutcome, ...]
    rejected: tuple[PlanOutcome, ...]
    considered: tuple[tuple[float, Candidate], ...]
    num_predicted: int
    is_complete: bool
    headroom: float


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """How far a search is: shares of the candidates that are settled, and samples/s of the best one so far."""

    settled: float
    best: float


def search_plans(
    request: Request,
    *,
    top: int = 10,
    time_limit_s: float | None = None,
    tick: Callable[[SearchProgress], None] = lambda progress: None,  # noqa: ARG005
) -> PlanRanking:
    """Find the `top` best plans.

    A KeyboardInterrupt ends the search with what there is.

    Args:
        request: Model, machines, batch.
        top: How many to rank.
        time_limit_s: After which it stops with the best so far, as soon as there is one that fits; None: none.
        tick: Told how far it is.

    Raises:
        ProfileError, ScheduleError: There is nothing to try.
    """
    run = _Search(request, top, None if time_limit_s is None else monotonic() + time_limit_s, tick)
    before = gc.get_threshold()
    gc.set_threshold(_GARBAGE)
    try:
        return run.found()
    finally:
        gc.set_threshold(*before)


@dataclass(order=True, slots=True)
class _Entry:
    """A candidate under what it takes at least, or with an outcome what it takes."""

    cost: float
    number: int
    candidate: Candidate = field(compare=False)
    outcome: PlanOutcome | None = field(compare=False, default=None)
    has_copy: bool = field(compare=False, default=False)


@final
class _Search:
    def __init__(
        self, request: Request, top: int, deadline_s: float | None, tick: Callable[[SearchProgress], None]
    ) -> None:
        self._request = request
        self._top = top
        self._deadline_s = deadline_s
        self._tick = tick
        self._cuts = request.cuts()
        self._bounds = Bounds(request.cluster)
        self._heap: list[_Entry] = []
        self._too_large: list[_Entry] = []  # by bytes
        self._rejected: list[PlanOutcome] = []
        self._num_predicted = 0
        self._considered: list[tuple[float, Candidate]] = []
        self._best = 0.0

    def found(self) -> PlanRanking:
        """Search until enough are ranked, or there is no time left."""
        ranked: list[PlanOutcome] = []
        is_complete = True
        try:
            self._begin()
            while self._heap and len(ranked) < self._top:
                entry = self._heap[0]  # it stays there while it is predicted: the search may be stopped meanwhile
                if entry.outcome is not None:
                    ranked.append(entry.outcome)
                    heappop(self._heap)
                elif self._is_late():
                    is_complete = False
                    break
                else:
                    self._refine(entry)
            if not ranked and is_complete:
                self._find_smallest()
        except KeyboardInterrupt:
            is_complete = False
        return self._summary(ranked, is_complete=is_complete)

    def _begin(self) -> None:
        """Bound every candidate."""
        require_plannable(self._request)
        for candidate in candidates(self._request, self._cuts):
            least = self._bounds.of(candidate, self._costs(candidate))
            entry = _Entry(least.seconds / candidate.samples_per_step, len(self._considered), candidate)
            self._considered.append((entry.cost, candidate))
            if least.over is None:
                self._heap.append(entry)
            else:
                self._reject(entry, least.over, least.held_bytes)
        if not self._considered:
            raise nothing_possible(self._request)
        heapify(self._heap)

    def _refine(self, entry: _Entry) -> None:
        """Know more of the candidate at the top, and put it where it belongs: first one copy of it, then all."""
        needs_copy = entry.candidate.width > 1 and not entry.has_copy
        refined = self._with_copy(entry) if needs_copy else self._in_full(entry)
        if refined is None:
            heappop(self._heap)
        else:
            heapreplace(self._heap, refined)
        ahead = sum(each.outcome is None and each.cost * self._best < 1 for each in self._heap)
        self._tick(SearchProgress(1 - ahead / len(self._considered), self._best))

    def _with_copy(self, entry: _Entry) -> _Entry | None:
        """Return the candidate under what a copy of it takes; None if that does not fit."""
        candidate = entry.candidate
        try:
            request = self._request
            found = alone(candidate, self._costs(candidate), request.cluster, self._bounds, request.network)
        except UNPREDICTABLE as error:
            self._rejected.append(PlanOutcome(candidate=candidate, reason=str(error)))
            return None
        for device, num_bytes in found.held_bytes:
            limit = self._request.cluster.devices[device].memory_bytes
            if limit is not None and num_bytes > limit:
                self._reject(entry, device, num_bytes)
                return None
        return replace(entry, cost=max(entry.cost, found.seconds / candidate.samples_per_step), has_copy=True)

    def _in_full(self, entry: _Entry) -> _Entry | None:
        """Return the candidate under what it takes; None if it does not fit."""
        outcome = self._predict(entry.candidate)
        if not outcome.fits:
            self._rejected.append(outcome)
            return None
        assert outcome.seconds is not None, "what fits was predicted"
        self._best = max(self._best, outcome.throughput)
        return replace(entry, cost=outcome.seconds / outcome.samples, outcome=outcome)

    def _reject(self, entry: _Entry, device: int, num_bytes: int) -> None:
        """Leave out what surely does not fit."""
        candidate = entry.candidate
        self._too_large.append(replace(entry, cost=num_bytes))
        limit = self._request.cluster.devices[device].memory_bytes
        reason = over_memory_reason(f"device {device} holds at least {num_bytes} bytes of {limit}")
        samples = candidate.samples_per_step
        self._rejected.append(PlanOutcome(candidate=candidate, samples=samples, held_bytes=(num_bytes,), reason=reason))

    def _find_smallest(self) -> None:
        """Predict, of those that do not fit, the one that needs the least memory."""
        known = [
            _Entry(each.most_bytes, -1, each.candidate, each) for each in self._rejected if each.seconds is not None
        ]
        heap = [*self._too_large, *known]
        heapify(heap)
        while heap and heap[0].outcome is None:
            entry = heap[0]
            outcome = self._predict(entry.candidate)
            if outcome.seconds is None:
                heappop(heap)
                continue
            heapreplace(heap, replace(entry, cost=outcome.most_bytes, outcome=outcome))
            self._rejected = [each for each in self._rejected if each.candidate != outcome.candidate] + [outcome]

    def _predict(self, candidate: Candidate) -> PlanOutcome:
        self._num_predicted += 1
        request = self._request
        return evaluate_candidate(candidate, self._costs(candidate), request.cluster, request.network)

    def _costs(self, candidate: Candidate) -> StageCosts:
        return self._cuts.costs_of(candidate)

    def _is_late(self) -> bool:
        return self._deadline_s is not None and monotonic() > self._deadline_s and self._best > 0

    def _summary(self, ranked: list[PlanOutcome], *, is_complete: bool) -> PlanRanking:
        ahead = min((entry.cost for entry in self._heap if entry.outcome is None), default=math.inf)
        later = [entry.outcome for entry in sorted(self._heap) if entry.outcome is not None]
        shown = (*ranked, *later)
        return PlanRanking(
            ranked=shown[: self._top],
            rejected=tuple(self._rejected),
            considered=tuple(self._considered),
            num_predicted=self._num_predicted,
            is_complete=is_complete,
            headroom=max(0.0, 1 / (ahead * shown[0].throughput) - 1) if shown else math.inf,
        )
