"""Search the best candidates of a request, most of them by their bound alone.

Every candidate gets a bound, a lower bound of its seconds per sample. `search.BestFirst` takes candidates by bound;
most are never simulated. The others go through a `search.Runner`, which may have workers.

A candidate that surely does not fit into memory is not predicted, unless nothing fits: then the one that needs the
least is searched in the same way, by bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import nsmallest
from itertools import islice
from operator import itemgetter
from time import monotonic
from typing import final

from pipesched.profiles.processes import num_cores, rare_collections, take_interrupt
from pipesched.schedules.columns import machine_code
from pipesched.simulator.planner.candidate_evaluation import num_cells, num_ops
from pipesched.simulator.planner.layout_judge import LayoutJudge
from pipesched.simulator.planner.layouts import LayoutRequest
from pipesched.simulator.planner.plan_judge import MOST_CELLS, PlanJudge
from pipesched.simulator.planner.request import Request
from pipesched.simulator.search import (
    BestFirst,
    BoundedSetting,
    Outcome,
    Runner,
    Setting,
    evaluate_in_turn,
    make_process_runner,
)

_ANSWER_S, _QUICK_OPS = 0.15, 10_000
"""Time limit of further work after an interrupt [s], and most ops of a candidate in it."""
PROOF = "no other candidate can be faster with balanced layers; the cuts of the plans shown come from a local search"
"""The note of a completed search on the candidates that are not shown."""
_MANY, _TELL_S = 1_000, 0.1
"""Candidates from which on reports of progress, which read all bounds, have a distance, and that distance [s]."""
_FEW_OPS = 2_000_000
"""Ops of the candidates that may be the best; for fewer, starting processes takes longer than the work."""


@dataclass(frozen=True, slots=True)
class PlanRanking:
    """The ranking of a search of plans.

    Attributes:
        ranked: The plans that fit, the fastest first; the first `top` plans are proven to be the best of all.
        rejected: The plans that do not fit, by prediction or by bound.
        considered: Every candidate, with a lower bound of its seconds per sample.
        num_predicted: Candidates that were predicted in full.
        is_complete: Whether the search was completed.
        headroom: Largest possible relative gain of another candidate over the best one; 0 if it is the best.
        is_interrupted: Whether the user ended the search, and waits for its result.
        top: The number of plans that were to be ranked.
    """

    ranked: tuple[Outcome, ...]
    rejected: tuple[Outcome, ...]
    considered: tuple[tuple[float, Setting], ...]
    num_predicted: int
    is_complete: bool
    headroom: float
    is_interrupted: bool = False
    top: int = 1

    @property
    def shortage(self) -> str:
        """The number of plans that a search found until it stopped, if they are fewer than wanted; else nothing."""
        is_short = not self.is_complete and len(self.ranked) < self.top
        return f"; {len(self.ranked)} of {self.top} plans found" if is_short else ""

    @property
    def notes(self) -> list[str]:
        """The unknown measures of the ranked plans, with the reason, a line each."""
        unpaced = [outcome.setting for outcome in self.ranked if outcome.steady_s_per_microbatch is None]
        if all(num_cells(candidate) <= MOST_CELLS for candidate in unpaced):
            return []
        return [f"steady time: lists of more than {MOST_CELLS:,} stages x micro-batches are not tried"]


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """Progress of a search: shares of the candidates that are settled, and samples/s of the best one so far."""

    settled: float
    best: float


def search_plans(
    request: Request | LayoutRequest,
    *,
    top: int = 10,
    time_limit_s: float | None = None,
    workers: int | None = 1,
    tick: Callable[[SearchProgress], None] = lambda progress: None,  # noqa: ARG005
) -> PlanRanking:
    """Find the `top` best plans of a profile or of a transformer; any number of workers finds the same plans.

    A KeyboardInterrupt ends the search with the best plans so far. The parts of their time are included if they are
    quick to compute.

    Args:
        request: Model, machines, batch.
        top: Number of plans to rank.
        time_limit_s: Time limit of the search [s], or None without limit; it ends later if no fitting plan is known,
            and by the time in which this process compiles loops.
        workers: Processes; 1 is this process, None is one per core if that is quicker.
        tick: Callback for progress reports.

    Raises:
        ProfileError, ScheduleError: There is nothing to try.
    """
    late_s = math.inf if time_limit_s is None else _clock_s() + time_limit_s
    judge = LayoutJudge(request) if isinstance(request, LayoutRequest) else PlanJudge(request)
    with rare_collections():
        return _Search(judge, top, workers, late_s, tick).ranking()


def _clock_s() -> float:
    """Return the time of a clock that stops while loops are compiled [s]."""
    return monotonic() - machine_code.compiling_s()


@final
class _Search:
    def __init__(
        self,
        judge: LayoutJudge | PlanJudge,
        top: int,
        workers: int | None,
        late_s: float,
        tick: Callable[[SearchProgress], None],
    ) -> None:
        self._top = top
        self._workers = workers
        self._late_s = late_s
        self._is_interrupted, self._told_s = False, -math.inf
        self._tick = tick
        self._judge = judge
        self._considered: list[tuple[float, Setting]] = []
        self._rejected: dict[int, Outcome] = {}  # by the number of the candidate
        self._queue: BestFirst[float] = BestFirst([], top)  # by seconds per sample
        self._completed: dict[Setting, Outcome] = {}  # by the candidate as it was ranked
        self._smallest: BestFirst[float] = BestFirst([], 1)  # by bytes

    def ranking(self) -> PlanRanking:
        """Search until enough plans are ranked, or the time is over."""
        is_complete = False
        try:
            self._begin()
            run = make_process_runner(self._workers or self._num_workers())
            for _ in self._queue.refine(self._judge, run, self._is_late):
                self._tell()
            if self._queue.is_settled and not self._queue.ranked:
                self._find_smallest(run)
            is_complete = self._queue.is_settled
            self._complete(run, self._ranked, is_late=self._is_late())
        except KeyboardInterrupt:
            take_interrupt()
            self._late_s, self._is_interrupted = _clock_s() + _ANSWER_S, True
            quick = [o for o in self._ranked if o.parts is None and num_ops(o.setting) <= _QUICK_OPS]
            self._complete(evaluate_in_turn, quick, is_late=True)
        return self._summary(is_complete=is_complete)

    def _begin(self) -> None:
        """Compute a lower bound on the cost of each candidate, and queue the candidates that may fit."""
        possible = []
        for number, candidate in enumerate(self._judge.candidates()):
            bounded = self._judge.first(candidate, number)
            self._considered.append((bounded.cost, candidate))
            if bounded.outcome is None:
                possible.append(bounded)
            else:
                self._rejected[number] = bounded.outcome
        if not self._considered:
            raise self._judge.nothing_possible()
        self._queue = BestFirst(possible, self._top)

    def _num_workers(self) -> int:
        """Return the number of cores if the probable winners take longer than the start of processes, else 1."""
        possible = [pair for number, pair in enumerate(self._considered) if number not in self._rejected]
        nearest = nsmallest(self._top, possible, key=itemgetter(0))
        is_quick = sum(num_ops(candidate) for _, candidate in nearest) < _FEW_OPS
        return 1 if is_quick else min(num_cores(), self._top)

    def _find_smallest(self, run: Runner) -> None:
        """Among candidates that do not fit, predict the one that needs the least memory."""
        self._rejected = self._all_rejected()
        by_bytes = [
            BoundedSetting(
                float(outcome.held_bytes), number, outcome.setting, None if outcome.seconds is None else outcome
            )
            for number, outcome in self._rejected.items()
            if outcome.held_bytes
        ]
        self._smallest = BestFirst(by_bytes, 1)
        for _ in self._smallest.refine(partial(_in_bytes, self._judge), run):
            pass

    def _complete(self, run: Runner, outcomes: Sequence[Outcome], *, is_late: bool) -> None:
        """Compute the missing details of ranked plans; the simulation of a layout gives all that is known."""
        if isinstance(self._judge, LayoutJudge):
            return
        left = iter(outcomes)

        def take() -> Sequence[Outcome]:
            return [] if self._is_interrupted and self._is_late() else [*islice(left, 1)]

        for candidate, outcome in run(partial(self._judge.completed, is_late=is_late), take):
            self._completed[candidate] = outcome

    @property
    def _ranked(self) -> tuple[Outcome, ...]:
        known = (self._completed.get(outcome.setting, outcome) for outcome in self._queue.ranked)
        in_order = sorted(known, key=lambda outcome: -outcome.throughput)
        return tuple({outcome.setting: outcome for outcome in in_order}.values())

    def _all_rejected(self) -> dict[int, Outcome]:
        """Return the refused candidates, with all known details, in the order of the candidates."""
        refused = (bounded for bounded in self._queue.refined if bounded.cost == math.inf)
        in_bytes = (bounded for bounded in self._smallest.refined if bounded.cost < math.inf)
        outcomes = {bounded.number: bounded.outcome for bounded in (*refused, *in_bytes) if bounded.outcome is not None}
        return dict(sorted((self._rejected | outcomes).items()))

    def _tell(self) -> None:
        if len(self._considered) > _MANY and monotonic() < self._told_s + _TELL_S:
            return
        self._told_s = monotonic()
        best = self._best_throughput
        ahead = sum(bound * best < 1 for bound in self._queue.open_bounds)
        self._tick(SearchProgress(1 - ahead / len(self._considered), best))

    @property
    def _best_throughput(self) -> float:
        return next((outcome.throughput for outcome in self._ranked), 0.0)

    def _is_late(self) -> bool:
        return _clock_s() > self._late_s and bool(self._queue.ranked)

    def _summary(self, *, is_complete: bool) -> PlanRanking:
        ranked = self._ranked
        ahead = min(self._queue.open_bounds, default=math.inf)
        outcomes = [bounded.outcome for bounded in (*self._queue.refined, *self._smallest.refined)]
        return PlanRanking(
            ranked=ranked,
            rejected=tuple(self._all_rejected().values()),
            considered=tuple(self._considered),
            num_predicted=sum(outcome is not None and outcome.seconds is not None for outcome in outcomes),
            is_complete=is_complete,
            headroom=max(0.0, 1 / (ahead * self._best_throughput) - 1) if ranked else math.inf,
            is_interrupted=self._is_interrupted,
            top=self._top,
        )


def _in_bytes(judge: LayoutJudge | PlanJudge, bounded: BoundedSetting[float]) -> BoundedSetting[float]:
    """Return a candidate ranked by its peak bytes; inf if nothing is known. A layout first gets its bound in bytes."""
    if isinstance(judge, LayoutJudge) and not bounded.num_refined:
        return replace(bounded, cost=max(bounded.cost, judge.least_bytes(bounded.setting)), num_refined=1)
    outcome = judge.weigh(bounded.setting)
    return replace(bounded, cost=math.inf if outcome.seconds is None else outcome.held_bytes or 0, outcome=outcome)
