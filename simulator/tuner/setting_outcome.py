"""The tuner's outcome of a setting, and the choice of the best."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from typing import Any, assert_never

from pipesched.profiles.io import STRICT
from pipesched.schedules import Yardstick
from pipesched.simulator.search import SearchOutcome, front_of
from pipesched.simulator.tuner.setting import Setting


@dataclass(frozen=True, slots=True)
class SettingOutcome(SearchOutcome):
    """A setting, with the time and memory that the evaluator gave it, or why it is rejected.

    Attributes:
        setting: The setting.
        seconds: Seconds of one batch: N pipelines do N of them in an iteration; None where nothing could be predicted.
        held_bytes: Most that a device holds.
        reason: Why it is rejected; None if it is not.
        yardstick: How fast the machine was where it was run; None where it was not.
        error: Relative error of `seconds`, or None unless pipelines drift.
    """

    setting: Setting
    seconds: float | None = None
    held_bytes: int | None = None
    reason: str | None = None
    yardstick: Yardstick | None = None
    error: float | None = None

    __pydantic_config__ = STRICT

    @property
    def most_bytes(self) -> int | None:
        return self.held_bytes

    def to_row(self) -> dict[str, Any]:
        """Return plain data, with the micro-batches of one pipeline's batch, and of all pipelines together."""
        setting = self.setting
        return {
            **asdict(setting),
            "schedule": setting.name,
            "microbatches_per_pipeline": setting.num_microbatches,
            "microbatches": setting.num_microbatches * setting.num_pipelines,
            "training": setting.training.value,
            "seconds_per_batch": self.seconds,
            "held_bytes": self.held_bytes,
            "reason": self.reason,
        }


_SAME = 0.005
"""Relative: times nearer to each other than this are no reason to take more memory."""


class Evaluator(StrEnum):
    """The ranking of the settings: our model, AvgPipe's equations, runs, or a guideline."""

    SIMULATE = "simulate"
    AVGPIPE = "avgpipe"
    MEASURE = "measure"
    MAX_NUM = "max_num"
    MAX_SIZE = "max_size"


def ranked(outcomes: Iterable[SettingOutcome], evaluator: Evaluator) -> tuple[SettingOutcome, ...]:
    """Return the fitting outcomes, the best first, then the rejected ones, the nearest to fitting first.

    The guidelines of the paper (section 7.3) know no times: ``max_num`` takes the most micro-batches, and then the
    most pipelines; ``max_size`` the fewest micro-batches, and then the most pipelines. Times within half a per cent of
    the shortest count as equal; among them the one of less memory comes first.
    """
    outcomes = tuple(outcomes)
    shortest_s = min((outcome.seconds for outcome in outcomes if outcome.fits and outcome.seconds), default=1.0)
    return tuple(sorted(outcomes, key=partial(rank_key, evaluator=evaluator, shortest_s=shortest_s)))


def rank_key(outcome: SettingOutcome, evaluator: Evaluator, shortest_s: float) -> tuple[Any, ...]:
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
            guideline = -setting.num_microbatches, -setting.num_pipelines
        case Evaluator.MAX_SIZE:
            guideline = setting.num_microbatches, -setting.num_pipelines
        case _:
            assert_never(evaluator)
    return False, guideline, (seconds / shortest_s - 1) // _SAME, _number(outcome.held_bytes), seconds


def best_plain(outcomes: Iterable[SettingOutcome]) -> SettingOutcome | None:
    """Return the fastest plain 1F1B that fits, with any M, or None."""
    return next((o for o in ranked(outcomes, Evaluator.SIMULATE) if o.fits and o.setting.is_plain), None)


def pareto(outcomes: Iterable[SettingOutcome]) -> tuple[SettingOutcome, ...]:
    """Return the fitting outcomes that no other one beats in time and memory at once, by rising time."""
    return front_of(ranked(outcomes, Evaluator.SIMULATE))


def _number(value: float | None) -> float:
    return float("inf") if value is None else value
