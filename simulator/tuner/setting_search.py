"""Search a space of settings in parallel processes: evaluate all settings, or only the leading ones.

The search for the leading settings evaluates few settings in full. Most settings need only a lower bound:

    least     3   4   5   5   7   9       seconds that a setting takes at least; whether it fits is known
              ↓
              .   4*  5   5   6*  9       a full evaluation (*) can only put it further behind

The leading settings are the same as after a full evaluation of all settings: an evaluated setting at the front ranks
before the lower bounds of all others.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias, assert_never

from pipesched.profiles.processes import rare_collections
from pipesched.simulator import SimulationError
from pipesched.simulator.search import (
    BestFirst,
    BoundedSetting,
    Journal,
    Outcome,
    Runner,
    Setting,
    evaluate_in_turn,
    search_all,
)
from pipesched.simulator.tuner.predictor import Accounting
from pipesched.simulator.tuner.setting_evaluation import EquationJudge, bound_setting, evaluate_setting, settled
from pipesched.simulator.tuner.setting_ranking import Evaluator, number_of, rank_key
from pipesched.simulator.tuner.tuning_problem import Problem

Judge: TypeAlias = Callable[[Setting], Outcome]
"""Evaluates one setting; can be sent to another process."""
_Place: TypeAlias = tuple[object, ...]
"""Sort key of a setting in the ranking."""


def search_settings(
    problem: Problem,
    settings: Sequence[Setting],
    evaluator: Evaluator = Evaluator.SIMULATE,
    *,
    accounting: Accounting = Accounting.PAPER,
    workers: int = 1,
    tick: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
    judge: Judge | None = None,
    runner: Runner | None = None,
    journal: Journal | None = None,
) -> tuple[Outcome, ...]:
    """Evaluate `settings`, in their order.

    Args:
        problem: Model, batch and devices.
        settings: The settings.
        evaluator: The ranking; guidelines rank simulated settings.
        accounting: Which accounting AvgPipe's equations use.
        workers: Processes; 1 is this process.
        tick: Callback with the fraction done.
        judge: Evaluates a setting, in place of the evaluator's own function; ``measure`` has none.
        runner: Runner that evaluates the settings, or None for processes of this machine.
        journal: Journal of an earlier search of this problem, to be continued; not for ``avgpipe``, whose equations
            take no time.

    Raises:
        ProfileError: With ``avgpipe``, if the model's profile covers none of the settings.
        SimulationError: ``measure`` without a judge.
    """
    judge = judge or _judge(problem, settings, evaluator, accounting)
    return search_all(settings, judge, alike=_alike, workers=workers, runner=runner, journal=journal, tick=tick)


def search_leading(
    problem: Problem,
    settings: Sequence[Setting],
    evaluator: Evaluator,
    count: int,
    *,
    workers: int = 1,
    tick: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
) -> tuple[tuple[Outcome, ...], frozenset[Setting]]:
    """Evaluate the leading `settings` by our model; the others get lower bounds of time and memory.

    Args:
        problem: Model, batch and devices.
        settings: The settings.
        evaluator: The ranking: our model, or a guideline.
        count: Number of leading settings to evaluate for each training, and of those that do not fit.
        workers: Processes; 1 is this process.
        tick: Callback with the fraction done.

    Returns:
        The outcomes in the order of the settings, and the settings with their own seconds and bytes.
    """
    judge = partial(bound_setting, problem)
    outcomes = [*search_settings(problem, settings, workers=workers, tick=tick, judge=judge)]
    evaluated = set[int]()

    def settle(number: int) -> Outcome:
        outcomes[number] = settled(problem, outcomes[number])
        evaluated.add(number)
        return outcomes[number]

    def timed(bounded: BoundedSetting[float]) -> BoundedSetting[float]:
        outcome = settle(bounded.number)
        return replace(bounded, cost=number_of(outcome.seconds) if outcome.fits else math.inf, outcome=outcome)

    def placed(bounded: BoundedSetting[_Place]) -> BoundedSetting[_Place]:
        outcome = settle(bounded.number)
        return replace(bounded, cost=rank_key(outcome, evaluator, shortest_s), outcome=outcome)

    with rare_collections():
        fitting = [(number, outcome) for number, outcome in enumerate(outcomes) if outcome.fits and outcome.seconds]
        fastest = BestFirst((BoundedSetting(number_of(o.seconds), number, o.setting) for number, o in fitting), 1)
        deque(fastest.refine(timed, evaluate_in_turn), 0)
        shortest_s = next((outcome.seconds for outcome in fastest.ranked if outcome.seconds), 1.0)
        kinds = defaultdict[object, list[BoundedSetting[_Place]]](list)
        for number, outcome in enumerate(outcomes):
            place, known = rank_key(outcome, evaluator, shortest_s), outcome if number in evaluated else None
            kind = outcome.setting.training if outcome.fits else None
            kinds[kind].append(BoundedSetting(place, number, outcome.setting, known))
        for candidates in kinds.values():
            deque(BestFirst(candidates, count).refine(placed, evaluate_in_turn), 0)
    return tuple(outcomes), frozenset(outcomes[number].setting for number in evaluated)


def setting_journal(path: str | Path, problem: Problem, how: str = "simulate") -> Journal:
    """Open the journal of a tuner search, or begin one.

    Args:
        path: Path of the file.
        problem: The problem.
        how: Other inputs of the outcomes.

    Raises:
        SimulationError, ProfileError, ScheduleError: As `Journal` does.
    """
    return Journal(path, (problem, how), "this profile, batch, machines, evaluator and builders")


def _alike(setting: Setting) -> tuple[int, str, int, int, str]:
    """Return a sort key: the longest lists first, equal lists together."""
    return (
        -setting.num_each,
        setting.schedule,
        setting.num_chunks or 0,
        setting.advance or 0,
        setting.recompute_when or "",
    )


def _judge(problem: Problem, settings: Sequence[Setting], evaluator: Evaluator, accounting: Accounting) -> Judge:
    match evaluator:
        case Evaluator.SIMULATE | Evaluator.MAX_NUM | Evaluator.MAX_SIZE:
            return partial(evaluate_setting, problem)
        case Evaluator.AVGPIPE:
            return EquationJudge.of(problem, settings, accounting)
        case Evaluator.MEASURE:
            raise SimulationError(
                "search: got the evaluator measure without a judge, expected a judge that runs the settings; pass one"
            )
        case _:
            assert_never(evaluator)
