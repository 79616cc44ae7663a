"""Judge plans in three steps: a bound, then a prediction of the whole candidate, then the details of a ranked plan.

Each step is more exact than the step before, and takes longer. The first two steps can prove that a candidate does not
fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import final

from pipesched.profiles import ProfileError
from pipesched.schedules import Schedule
from pipesched.schedules.transforms import with_tied_sum
from pipesched.simulator import Estimate, Meaning, Precision, Scenario
from pipesched.simulator.analysis import communication_volume, usage
from pipesched.simulator.fast import EqualPipelines, predict_scenario, simulate_arrays
from pipesched.simulator.planner.bound import Bounds
from pipesched.simulator.planner.candidate_evaluation import (
    lists_of_candidate,
    lists_of_copy,
    num_cells,
    predict_candidate,
    shown_pace,
    staleness_of,
    steps_of,
    time_parts,
)
from pipesched.simulator.planner.request import Request, candidates, nothing_possible, require_plannable
from pipesched.simulator.planner.stage_layout import refusal_of
from pipesched.simulator.search import (
    UNPREDICTABLE,
    BoundedSetting,
    Outcome,
    Setting,
    over_memory_reason,
    settled_pace,
)

MOST_CELLS = 2_000
"""Stages times micro-batches, of all copies, of the longest run that is made longer for its steady-state time."""


@final
class PlanJudge:
    """Bounds and predictions of the candidates of a request; a copy in another process recomputes them there."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.cuts = request.cuts()
        self._bounds = Bounds(request.cluster)

    def __reduce__(self) -> tuple[type[PlanJudge], tuple[Request]]:
        return PlanJudge, (self._request,)

    def candidates(self) -> Iterator[Setting]:
        """Yield every candidate once; raises ProfileError if the request has none."""
        require_plannable(self._request)
        yield from candidates(self._request, self.cuts)

    def nothing_possible(self) -> ProfileError:
        """Return why the request has no candidate."""
        return nothing_possible(self._request)

    def first(self, candidate: Setting, number: int) -> BoundedSetting[float]:
        """Return a candidate with its bound. It is refused if the schedule is impossible or the bound does not fit.

        Args:
            candidate: The candidate.
            number: Its number among all candidates.
        """
        reason = refusal_of(candidate)
        if reason is not None:
            return BoundedSetting(math.inf, number, candidate, Outcome(candidate, reason=reason))
        least = self._bounds.of(candidate, self.cuts.costs_of(candidate))
        bounded = BoundedSetting(least.seconds / candidate.samples_per_step, number, candidate)
        if least.over_memory is None:
            return bounded
        return replace(bounded, outcome=_too_large(candidate, least))

    def __call__(self, bounded: BoundedSetting[float]) -> BoundedSetting[float]:
        """Return the candidate with its outcome; its cost is infinite if it does not fit."""
        outcome = self.weigh(bounded.setting)
        cost = outcome.seconds / outcome.samples if outcome.fits and outcome.seconds is not None else math.inf
        return replace(bounded, cost=cost, outcome=outcome)

    def weigh(self, candidate: Setting) -> Outcome:
        """Predict time and memory of a candidate, or report why it is refused; `detailed` adds the rest."""
        try:
            lists, scenario = self._scenario(candidate)
            if candidate.is_asynchronous:
                estimate = predict_candidate(candidate, scenario.costs, scenario.cluster, scenario.network)
                return self._with_details(_outcome(candidate, estimate), estimate, lists)
            try:
                estimate = EqualPipelines(lists, scenario.costs, scenario.cluster, scenario.network).together(1)
            except UNPREDICTABLE:  # SimPy says why
                estimate = predict_scenario(scenario)
            return _outcome(candidate, estimate)
        except UNPREDICTABLE as error:
            return Outcome(candidate, reason=str(error))

    def detailed(self, outcome: Outcome) -> Outcome:
        """Return the outcome with the parts of its time, its sent bytes, and its pace if its own run shows it."""
        if outcome.seconds is None or outcome.parts is not None:
            return outcome
        lists, scenario = self._scenario(outcome.setting)
        timeline = simulate_arrays(lists, scenario.costs, scenario.cluster, network=scenario.network)
        return self._with_details(outcome, Estimate(Meaning.ITERATION, outcome.seconds, {}, timeline=timeline), lists)

    def completed(self, outcome: Outcome, *, is_late: bool = False) -> tuple[Setting, Outcome]:
        """Complete the outcome of a ranked candidate: its fastest cut, the parts of its time, and its pace.

        Args:
            outcome: The outcome of the candidate.
            is_late: Whether only the parts of its time are worked out.
        """
        if is_late:
            return outcome.setting, self.detailed(outcome)
        return outcome.setting, self._at_pace(self.detailed(self._with_fastest_cut(outcome)))

    def _at_pace(self, outcome: Outcome) -> Outcome:
        """Return `outcome`, with its steady-state time if short runs show one."""
        candidate, request = outcome.setting, self._request
        if outcome.steady_s_per_microbatch is not None:
            return outcome
        costs = self.cuts.costs_of(candidate)

        def lists(times: int) -> Schedule:
            steps = times * steps_of(candidate)
            return candidate.schedule_spec().run(steps).lists(steps).held()

        def scenario() -> Scenario:
            once = with_tied_sum(lists(1), costs.tied_stages) if costs.tied_bytes else lists(1)
            return Scenario(once, costs, request.cluster, request.network)

        longer = lists if candidate.is_asynchronous else None
        return outcome.at_pace(settled_pace(scenario, num_cells(candidate), MOST_CELLS, longer))

    def _with_fastest_cut(self, outcome: Outcome) -> Outcome:
        """Return the outcome with the fastest cut that a short search finds, if it is faster."""
        candidate, request = outcome.setting, self._request
        if request.is_uniform or candidate.replicas:
            return outcome
        try:
            partition = self.cuts.fastest(candidate, lists_of_copy(candidate), request.cluster, request.network)
        except UNPREDICTABLE:
            return outcome
        cut = replace(candidate, partition=partition)
        if cut == candidate or (request.refusal is not None and request.refusal(cut) is not None):
            return outcome
        faster = self.weigh(cut)
        return faster if faster.fits and faster.throughput > outcome.throughput else outcome

    def _with_details(self, outcome: Outcome, estimate: Estimate, lists: Schedule) -> Outcome:
        candidate, timeline, request = outcome.setting, estimate.timeline, self._request
        assert timeline is not None, "of one pipeline there always is one"
        steps, uses = steps_of(candidate), usage(timeline)
        if candidate.is_asynchronous:
            num_microbatches = candidate.samples_per_step // candidate.size
            pace = estimate.pace(num_microbatches) if estimate.precision is Precision.EXACT else None
        else:
            pace = shown_pace(candidate, lists, timeline, request.cluster, request.network)
        return replace(
            outcome,
            sent_bytes=communication_volume(lists, self.cuts.costs_of(candidate)).num_bytes // steps,
            parts=time_parts(timeline, uses, estimate.seconds, steps),
            bubble_fraction=math.fsum(use.idle_s for use in uses) / (len(uses) * timeline.makespan_s),
        ).at_pace(pace)

    def _scenario(self, candidate: Setting) -> tuple[Schedule, Scenario]:
        """Return the lowered lists of a candidate, and the scenario that predicts it."""
        costs, request = self.cuts.costs_of(candidate), self._request
        lists = lists_of_candidate(candidate, costs)
        return lists, Scenario(lists, costs, request.cluster, request.network)


def _outcome(candidate: Setting, estimate: Estimate) -> Outcome:
    return Outcome(
        candidate,
        estimate.seconds,
        max(estimate.peak_bytes.values(), default=0),
        over_memory_reason(estimate.over_memory),
        device_bytes=tuple(num_bytes for _, num_bytes in sorted(estimate.peak_bytes.items())),
        staleness=staleness_of(candidate) if candidate.is_asynchronous else 0,
    )


def _too_large(candidate: Setting, least: Estimate) -> Outcome:
    """Refuse a candidate that exceeds memory even by a lower bound."""
    num_bytes = max(least.peak_bytes.values())
    return Outcome(candidate, None, num_bytes, over_memory_reason(least.over_memory), device_bytes=(num_bytes,))
