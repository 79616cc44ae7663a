"""The ranking of tuned settings, and the leading ones of many of which most have only a lower bound of their time.

    least     3   4   5   5   7   9       seconds that a setting takes at least; whether it fits is known
              ↓
              .   4*  5   5   6*  9       a full evaluation (*) can only put it further behind

So the front of the order is the same as after a full evaluation of all settings: a setting at the front with its own
seconds comes before all others.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple, assert_never

from pipesched.simulator.search import BestFirst, BoundedSetting, Outcome, Setting, evaluate_in_turn, front_of

_SAME = 0.005
"""Relative: times nearer to each other than this are no reason to take more memory."""


class Evaluator(StrEnum):
    """The ranking of the settings: our model, AvgPipe's equations, runs, or a guideline."""

    SIMULATE = "simulate"
    AVGPIPE = "avgpipe"
    MEASURE = "measure"
    MAX_NUM = "max_num"
    MAX_SIZE = "max_size"


def ranked(outcomes: Iterable[Outcome], evaluator: Evaluator) -> tuple[Outcome, ...]:
    """Return the fitting outcomes, the best first, then the rejected ones, the nearest to fitting first.

    The guidelines of the paper (section 7.3) know no times: ``max_num`` takes the most micro-batches, and then the
    most pipelines; ``max_size`` the fewest micro-batches, and then the most pipelines. Times within half a per cent of
    the shortest count as equal; among them the one of less memory comes first.
    """
    outcomes = tuple(outcomes)
    shortest_s = min((outcome.seconds for outcome in outcomes if outcome.fits and outcome.seconds), default=1.0)
    return tuple(sorted(outcomes, key=partial(_rank_key, evaluator=evaluator, shortest_s=shortest_s)))


def _rank_key(outcome: Outcome, evaluator: Evaluator, shortest_s: float) -> tuple[Any, ...]:
    """Return the sort key of `ranked`, which never falls for more seconds.

    Args:
        outcome: The setting.
        evaluator: The ranking.
        shortest_s: Shortest seconds of all that fit.
    """
    seconds, guideline = _number(outcome.seconds), (0, 0)
    setting = outcome.setting
    match evaluator:
        case _ if not outcome.fits:
            return True, guideline, 0.0, _number(outcome.held_bytes), seconds
        case Evaluator.SIMULATE | Evaluator.AVGPIPE | Evaluator.MEASURE:
            pass
        case Evaluator.MAX_NUM:
            guideline = -setting.num_each, -setting.num_pipelines
        case Evaluator.MAX_SIZE:
            guideline = setting.num_each, -setting.num_pipelines
        case _:
            assert_never(evaluator)
    return False, guideline, (seconds / shortest_s - 1) // _SAME, _number(outcome.held_bytes), seconds


def best_plain(outcomes: Iterable[Outcome]) -> Outcome | None:
    """Return the fastest plain 1F1B that fits, with any M, or None."""
    return next((o for o in ranked(outcomes, Evaluator.SIMULATE) if o.fits and o.setting.is_plain), None)


def pareto(outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """Return the fitting outcomes that no other one beats in time and memory at once, by rising time."""
    return front_of(ranked(outcomes, Evaluator.SIMULATE))


def tuned_row(outcome: Outcome) -> dict[str, Any]:
    """Return plain data of a setting, with the micro-batches of one pipeline's batch, and of all pipelines together."""
    setting = outcome.setting
    return {
        "schedule": setting.simplest.schedule,
        "num_microbatches": setting.num_each,
        "num_pipelines": setting.num_pipelines,
        "advance": setting.advance,
        "num_chunks": setting.num_chunks,
        "recomputes": setting.recomputes,
        "microbatches_per_pipeline": setting.num_each,
        "microbatches": setting.num_microbatches,
        "training": setting.training.value,
        "seconds_per_batch": outcome.seconds,
        "held_bytes": outcome.held_bytes,
        "reason": outcome.reason,
    }


class LeadingSettings(NamedTuple):
    """Settings of which the leading ones are evaluated.

    Attributes:
        outcomes: Every setting, in the order that it was given in.
        evaluated: Settings with their own seconds and bytes; the others have lower bounds.
    """

    outcomes: tuple[Outcome, ...]
    evaluated: frozenset[Setting]


def leading_settings(
    least: Sequence[Outcome], evaluate: Callable[[Outcome], Outcome], evaluator: Evaluator, count: int
) -> LeadingSettings:
    """Evaluate settings until the leading ones are known: of either training, and of the rejected settings.

    Args:
        least: Every setting, with lower bounds of its seconds and bytes, and the reason if it is rejected.
        evaluate: Returns the exact seconds and bytes of a setting, which are not below its bounds.
        evaluator: The ranking.
        count: Number of leading settings of each kind.
    """
    outcomes, evaluated = [*least], set[int]()

    def settle(number: int) -> Outcome:
        outcomes[number] = evaluate(outcomes[number])
        evaluated.add(number)
        return outcomes[number]

    def timed(bounded: BoundedSetting[float]) -> BoundedSetting[float]:
        outcome = settle(bounded.number)
        return replace(bounded, cost=_number(outcome.seconds) if outcome.fits else math.inf, outcome=outcome)

    def placed(bounded: BoundedSetting[tuple[object, ...]]) -> BoundedSetting[tuple[object, ...]]:
        outcome = settle(bounded.number)
        return replace(bounded, cost=_rank_key(outcome, evaluator, shortest_s), outcome=outcome)

    fitting = [(number, outcome) for number, outcome in enumerate(least) if outcome.fits and outcome.seconds]
    fastest = BestFirst((BoundedSetting(_number(o.seconds), number, o.setting) for number, o in fitting), 1)
    deque(fastest.refine(timed, evaluate_in_turn), 0)
    shortest_s = next((outcome.seconds for outcome in fastest.ranked if outcome.seconds), 1.0)
    kinds = defaultdict[object, list[BoundedSetting[tuple[object, ...]]]](list)
    for number, outcome in enumerate(outcomes):
        key, known = _rank_key(outcome, evaluator, shortest_s), outcome if number in evaluated else None
        kinds[outcome.setting.training if outcome.fits else None].append(
            BoundedSetting(key, number, outcome.setting, known)
        )
    for candidates in kinds.values():
        deque(BestFirst(candidates, count).refine(placed, evaluate_in_turn), 0)
    return LeadingSettings(tuple(outcomes), frozenset(outcomes[number].setting for number in evaluated))


def _number(value: float | None) -> float:
    return float("inf") if value is None else value
