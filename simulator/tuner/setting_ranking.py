"""The ranking of tuned settings, by an evaluator or a guideline."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum
from functools import partial
from typing import Any, assert_never

from pipesched.simulator.search import Outcome, front_of

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
    return tuple(sorted(outcomes, key=partial(rank_key, evaluator=evaluator, shortest_s=shortest_s)))


def rank_key(outcome: Outcome, evaluator: Evaluator, shortest_s: float) -> tuple[Any, ...]:
    """Return the sort key of `ranked`; with more seconds, the key stays equal or rises.

    Args:
        outcome: The setting.
        evaluator: The ranking.
        shortest_s: Shortest seconds of all that fit.
    """
    seconds, guideline = number_of(outcome.seconds), (0, 0)
    setting = outcome.setting
    match evaluator:
        case _ if not outcome.fits:
            return True, guideline, 0.0, number_of(outcome.held_bytes), seconds
        case Evaluator.SIMULATE | Evaluator.AVGPIPE | Evaluator.MEASURE:
            pass
        case Evaluator.MAX_NUM:
            guideline = -setting.num_each, -setting.num_pipelines
        case Evaluator.MAX_SIZE:
            guideline = setting.num_each, -setting.num_pipelines
        case _:
            assert_never(evaluator)
    return False, guideline, (seconds / shortest_s - 1) // _SAME, number_of(outcome.held_bytes), seconds


def best_plain(outcomes: Iterable[Outcome]) -> Outcome | None:
    """Return the fastest plain 1F1B that fits, with any M, or None."""
    return next((o for o in ranked(outcomes, Evaluator.SIMULATE) if o.fits and o.setting.is_plain), None)


def pareto(outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """Return the fitting outcomes that no other outcome beats in both time and memory, sorted by time."""
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
        "recompute_when": setting.recompute_when,
        "microbatches_per_pipeline": setting.num_each,
        "microbatches": setting.num_microbatches,
        "training": setting.training.value,
        "seconds_per_batch": outcome.seconds,
        "held_bytes": outcome.held_bytes,
        "reason": outcome.reason,
    }


def number_of(value: float | None) -> float:
    """Return a number, or inf if it is unknown."""
    return math.inf if value is None else value
