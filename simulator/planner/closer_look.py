"""A closer look at a candidate: first its bound, then one copy of it, then all of it.

Each step is closer than the one before, and takes longer. Any of them can prove that a candidate does not fit.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import final

from pipesched.profiles.costs import StageCosts
from pipesched.simulator import Estimate
from pipesched.simulator.planner.bound import Bounds
from pipesched.simulator.planner.candidate_evaluation import (
    detailed,
    weigh_candidate,
    with_steady_pace,
)
from pipesched.simulator.planner.request import Request
from pipesched.simulator.planner.single_copy import bound_single_copy, lists_of_copy
from pipesched.simulator.planner.stage_layout import refusal_of
from pipesched.simulator.search import UNPREDICTABLE, BoundedSetting, Outcome, Setting, over_memory_reason


@final
class CloserLook:
    """Bounds and predictions of the candidates of a request; a copy in another process recomputes them there."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.cuts = request.cuts()
        self._bounds = Bounds(request.cluster)

    def __reduce__(self) -> tuple[type[CloserLook], tuple[Request]]:
        return CloserLook, (self._request,)

    def first(self, candidate: Setting, number: int) -> BoundedSetting:
        """Return a candidate under its bound, or refused if the bound does not fit, or the schedule is impossible.

        Args:
            candidate: The candidate.
            number: Its number among all candidates.
        """
        reason = refusal_of(candidate)
        if reason is not None:
            return BoundedSetting(math.inf, number, candidate, Outcome(candidate, reason=reason))
        least = self._bounds.of(candidate, self._costs(candidate))
        bounded = BoundedSetting(least.seconds / candidate.samples_per_step, number, candidate)
        if least.over_memory is None:
            return bounded
        return replace(bounded, outcome=_too_large(candidate, least))

    def __call__(self, bounded: BoundedSetting) -> BoundedSetting:
        """Return the candidate with more known of it: one copy of it, then all; under inf if that does not fit."""
        needs_copy = bounded.setting.width > 1 and not bounded.num_refined
        return self._with_copy(bounded) if needs_copy else self._in_full(bounded)

    def in_bytes(self, bounded: BoundedSetting) -> BoundedSetting:
        """Return the candidate ranked by its peak bytes, for a `bounded` ranked by bytes; inf if nothing is known."""
        outcome = self._outcome(bounded.setting)
        return replace(bounded, cost=math.inf if outcome.seconds is None else outcome.held_bytes or 0, outcome=outcome)

    def in_detail(self, bounded: BoundedSetting) -> BoundedSetting:
        """Return a ranked candidate with the parts of its time."""
        assert bounded.outcome is not None, "it is ranked"
        request = self._request
        costs = self._costs(bounded.setting)
        return replace(bounded, outcome=detailed(bounded.outcome, costs, request.cluster, request.network))

    def at_pace(self, bounded: BoundedSetting) -> BoundedSetting:
        """Return a candidate that is ranked, with its steady pace where longer runs soon show that."""
        assert bounded.outcome is not None, "it is ranked"
        request = self._request
        costs = self._costs(bounded.setting)
        outcome = with_steady_pace(bounded.outcome, costs, request.cluster, request.network)
        return replace(bounded, outcome=outcome)

    def with_fastest_cut(self, bounded: BoundedSetting) -> BoundedSetting:
        """Return a candidate that is ranked with the fastest cut that a short search finds, if it is faster."""
        candidate, request = bounded.setting, self._request
        assert bounded.outcome is not None, "it is ranked"
        try:
            lists = lists_of_copy(candidate)
            partition = self.cuts.fastest(candidate, lists, request.cluster, request.network)
        except UNPREDICTABLE:
            return bounded
        cut = replace(candidate, partition=partition)
        if cut == candidate or (request.refusal is not None and request.refusal(cut) is not None):
            return bounded
        outcome = self._outcome(cut)
        is_faster = outcome.fits and outcome.throughput > bounded.outcome.throughput
        return replace(bounded, outcome=outcome) if is_faster else bounded

    def _with_copy(self, bounded: BoundedSetting) -> BoundedSetting:
        candidate, request = bounded.setting, self._request
        try:
            copy = bound_single_copy(candidate, self._costs(candidate), request.cluster, self._bounds, request.network)
        except UNPREDICTABLE as error:
            return replace(bounded, cost=math.inf, outcome=Outcome(candidate, reason=str(error)))
        if copy.over_memory is not None:
            return replace(bounded, cost=math.inf, outcome=_too_large(candidate, copy))
        return replace(bounded, cost=max(bounded.cost, copy.seconds / candidate.samples_per_step), num_refined=1)

    def _in_full(self, bounded: BoundedSetting) -> BoundedSetting:
        outcome = self._outcome(bounded.setting)
        cost = outcome.seconds / outcome.samples if outcome.fits and outcome.seconds is not None else math.inf
        return replace(bounded, cost=cost, outcome=outcome)

    def _outcome(self, candidate: Setting) -> Outcome:
        return weigh_candidate(candidate, self._costs(candidate), self._request.cluster, self._request.network)

    def _costs(self, candidate: Setting) -> StageCosts:
        return self.cuts.costs_of(candidate)


def _too_large(candidate: Setting, least: Estimate) -> Outcome:
    """Refuse a candidate that exceeds memory even by a lower bound."""
    num_bytes = max(least.peak_bytes.values())
    return Outcome(candidate, None, num_bytes, over_memory_reason(least.over_memory), device_bytes=(num_bytes,))
