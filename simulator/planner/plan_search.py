"""Search the best candidates of a request, most of them by their bound alone.

Every candidate gets a bound: seconds per sample that it surely needs, under which `search.BestFirst` takes it; most
are never worked through.

A candidate that surely does not fit into memory is not predicted, unless nothing fits: then the one that needs the
least is looked for in the same way, by bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic
from typing import TypeAlias, final

from pipesched.profiles.costs import StageCosts
from pipesched.profiles.processes import rare_collections
from pipesched.simulator.planner.bound import Bounds
from pipesched.simulator.planner.candidate_evaluation import evaluate_candidate
from pipesched.simulator.planner.plan_candidate import Candidate
from pipesched.simulator.planner.plan_outcome import PlanOutcome
from pipesched.simulator.planner.request import Request, candidates, nothing_possible, require_plannable
from pipesched.simulator.planner.single_copy import bound_single_copy
from pipesched.simulator.search import UNPREDICTABLE, BestFirst, BoundedCandidate, over_memory_reason

_Bounded: TypeAlias = BoundedCandidate[Candidate, PlanOutcome]
_Queue: TypeAlias = BestFirst[Candidate, PlanOutcome]


@dataclass(frozen=True, slots=True)
class PlanRanking:
    """What a search came to.

    Attributes:
        ranked: The plans that fit, the fastest first; as many as were asked for are surely the best of all.
        rejected: The plans that were predicted, or whose bound was enough, and do not fit.
        considered: Every candidate, with the seconds per sample that it surely needs.
        num_predicted: Candidates that were predicted in full.
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
        time_limit_s: Seconds after which it stops with the best so far, as soon as there is one that fits; None: no
            limit.
        tick: Told how far it is.

    Raises:
        ProfileError, ScheduleError: There is nothing to try.
    """
    run = _Search(request, top, None if time_limit_s is None else monotonic() + time_limit_s, tick)
    with rare_collections():
        return run.ranking()


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
        self._queue: _Queue = BestFirst([], self._refined)  # by seconds per sample
        self._too_large: list[_Bounded] = []  # by bytes
        self._rejected: list[PlanOutcome] = []
        self._num_predicted = 0
        self._considered: list[tuple[float, Candidate]] = []
        self._best = 0.0

    def ranking(self) -> PlanRanking:
        """Search until enough are ranked, or there is no time left."""
        ranked: list[PlanOutcome] = []
        is_complete = True
        try:
            self._begin()
            while self._queue and len(ranked) < self._top:
                outcome = self._queue.take()
                if outcome is not None:
                    ranked.append(outcome)
                elif self._is_late():
                    is_complete = False
                    break
                else:
                    self._queue.advance()
                    self._tell()
            if not ranked and is_complete:
                self._find_smallest()
        except KeyboardInterrupt:
            is_complete = False
        return self._summary(ranked, is_complete=is_complete)

    def _begin(self) -> None:
        """Bound every candidate."""
        require_plannable(self._request)
        possible = []
        for candidate in candidates(self._request, self._cuts):
            least = self._bounds.of(candidate, self._costs(candidate))
            bounded: _Bounded = BoundedCandidate(
                least.seconds / candidate.samples_per_step, len(self._considered), candidate
            )
            self._considered.append((bounded.cost, candidate))
            if least.over_memory is None:
                possible.append(bounded)
            else:
                self._reject(bounded, max(least.peak_bytes.values()), least.over_memory)
        if not self._considered:
            raise nothing_possible(self._request)
        self._queue = BestFirst(possible, self._refined)

    def _refined(self, bounded: _Bounded) -> _Bounded | None:
        """Return the candidate with more known of it, first one copy of it, then all; None if that does not fit."""
        needs_copy = bounded.candidate.width > 1 and not bounded.num_refined
        return self._with_copy(bounded) if needs_copy else self._in_full(bounded)

    def _tell(self) -> None:
        ahead = sum(bounded.outcome is None and bounded.cost * self._best < 1 for bounded in self._queue)
        self._tick(SearchProgress(1 - ahead / len(self._considered), self._best))

    def _with_copy(self, bounded: _Bounded) -> _Bounded | None:
        """Return the candidate under what a copy of it takes; None if that does not fit."""
        candidate = bounded.candidate
        try:
            request = self._request
            copy = bound_single_copy(candidate, self._costs(candidate), request.cluster, self._bounds, request.network)
        except UNPREDICTABLE as error:
            self._rejected.append(PlanOutcome(candidate=candidate, reason=str(error)))
            return None
        if copy.over_memory is not None:
            self._reject(bounded, max(copy.peak_bytes.values()), copy.over_memory)
            return None
        return replace(bounded, cost=max(bounded.cost, copy.seconds / candidate.samples_per_step), num_refined=1)

    def _in_full(self, bounded: _Bounded) -> _Bounded | None:
        """Return the candidate under what it takes; None if it does not fit."""
        outcome = self._predict(bounded.candidate)
        if not outcome.fits:
            self._rejected.append(outcome)
            return None
        assert outcome.seconds is not None, "what fits was predicted"
        self._best = max(self._best, outcome.throughput)
        return replace(bounded, cost=outcome.seconds / outcome.samples, outcome=outcome)

    def _reject(self, bounded: _Bounded, num_bytes: int, over_memory: str) -> None:
        """Leave out what surely does not fit.

        Args:
            bounded: The candidate.
            num_bytes: The device that must hold most holds at least so many.
            over_memory: Which device holds more than it can.
        """
        candidate = bounded.candidate
        self._too_large.append(replace(bounded, cost=num_bytes))
        self._rejected.append(
            PlanOutcome(
                candidate=candidate,
                samples=candidate.samples_per_step,
                held_bytes=(num_bytes,),
                reason=over_memory_reason(over_memory),
            )
        )

    def _find_smallest(self) -> None:
        """Predict, of those that do not fit, the one that needs the least memory."""
        known = [
            BoundedCandidate(outcome.most_bytes, -1, outcome.candidate, outcome)
            for outcome in self._rejected
            if outcome.seconds is not None
        ]
        next(BestFirst([*self._too_large, *known], self._with_bytes).ranked(), None)

    def _with_bytes(self, bounded: _Bounded) -> _Bounded | None:
        """Return the candidate under what it holds; None if it cannot be predicted."""
        outcome = self._predict(bounded.candidate)
        if outcome.seconds is None:
            return None
        others = [rejected for rejected in self._rejected if rejected.candidate != outcome.candidate]
        self._rejected = [*others, outcome]
        return replace(bounded, cost=outcome.most_bytes, outcome=outcome)

    def _predict(self, candidate: Candidate) -> PlanOutcome:
        self._num_predicted += 1
        request = self._request
        return evaluate_candidate(candidate, self._costs(candidate), request.cluster, request.network)

    def _costs(self, candidate: Candidate) -> StageCosts:
        return self._cuts.costs_of(candidate)

    def _is_late(self) -> bool:
        return self._deadline_s is not None and monotonic() > self._deadline_s and self._best > 0

    def _summary(self, ranked: list[PlanOutcome], *, is_complete: bool) -> PlanRanking:
        ahead = min((bounded.cost for bounded in self._queue if bounded.outcome is None), default=math.inf)
        later = [bounded.outcome for bounded in sorted(self._queue) if bounded.outcome is not None]
        shown = (*ranked, *later)
        return PlanRanking(
            ranked=shown[: self._top],
            rejected=tuple(self._rejected),
            considered=tuple(self._considered),
            num_predicted=self._num_predicted,
            is_complete=is_complete,
            headroom=max(0.0, 1 / (ahead * shown[0].throughput) - 1) if shown else math.inf,
        )
