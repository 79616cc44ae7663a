"""Search all settings of a space in parallel processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias, assert_never

from pipesched.profiles.processes import rare_collections
from pipesched.simulator import SimulationError
from pipesched.simulator.search import Journal, Outcome, Runner, Setting, search_all
from pipesched.simulator.tuner.predictor import Accounting, SettingProfile
from pipesched.simulator.tuner.setting_evaluation import (
    bound_setting,
    evaluate_by_equations,
    evaluate_setting,
    measure,
    settled,
)
from pipesched.simulator.tuner.setting_ranking import Evaluator, LeadingSettings, leading_settings
from pipesched.simulator.tuner.space import AVGPIPE, tuned
from pipesched.simulator.tuner.tuning_problem import Problem

Judge: TypeAlias = Callable[[Setting], Outcome]
"""Evaluates one setting; can be sent to another process."""


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
        runner: Another way to go through them, or None for processes of this machine.
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
) -> LeadingSettings:
    """Evaluate the leading `settings` by our model; the others get lower bounds of time and memory.

    Args:
        problem: Model, batch and devices.
        settings: The settings.
        evaluator: The ranking: our model, or a guideline.
        count: Number of leading settings to evaluate, of either training and of the rejected ones.
        workers: Processes; 1 is this process.
        tick: Callback with the fraction done.
    """
    least = search_settings(problem, settings, workers=workers, tick=tick, judge=partial(bound_setting, problem))
    with rare_collections():
        return leading_settings(least, partial(settled, problem), evaluator, count)


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


def _alike(setting: Setting) -> tuple[int, str, int, int, bool]:
    """Return a sort key: the longest lists first, equal lists together."""
    return -setting.num_each, setting.schedule, setting.num_chunks or 0, setting.advance or 0, setting.recomputes


def _judge(problem: Problem, settings: Sequence[Setting], evaluator: Evaluator, accounting: Accounting) -> Judge:
    match evaluator:
        case Evaluator.SIMULATE | Evaluator.MAX_NUM | Evaluator.MAX_SIZE:
            return partial(evaluate_setting, problem)
        case Evaluator.AVGPIPE:
            return _equations(problem, settings, accounting)
        case Evaluator.MEASURE:
            raise SimulationError("search: got measure without a judge, expected one that runs the settings; pass it")
        case _:
            assert_never(evaluator)


@dataclass(frozen=True, slots=True)
class _Equations:
    """AvgPipe's equations as a judge."""

    problem: Problem
    profiles: dict[bool, SettingProfile]  # without recompute, and with it
    accounting: Accounting

    def __call__(self, setting: Setting) -> Outcome:
        return evaluate_by_equations(self.problem, self.profiles[setting.recomputes], self.accounting, setting)


def _equations(problem: Problem, settings: Sequence[Setting], accounting: Accounting) -> _Equations:
    """Profile the setting that the paper advises, many micro-batches and one pipeline, without and with recompute."""
    profiles = {
        recomputes: _profiled(problem, [setting for setting in settings if setting.recomputes == recomputes])
        for recomputes in {setting.recomputes for setting in settings}
    }
    return _Equations(problem, profiles, accounting)


def _profiled(problem: Problem, settings: Sequence[Setting]) -> SettingProfile:
    """Return the profile with the most micro-batches that the model's profile covers, up to the needed number."""
    advance, counts = max(setting.advance or 0 for setting in settings), {setting.num_each for setting in settings}
    most = max([count for count in counts if problem.covers(count)] or counts)
    first = settings[0]
    return measure(problem, tuned(AVGPIPE, first.num_ranks, most, 1, advance, recomputes=first.recomputes))
