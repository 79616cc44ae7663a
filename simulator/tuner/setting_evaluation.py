"""Predict the time, memory and steady state of one setting, with our model or with AvgPipe's equations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pipesched.profiles import ProfileError
from pipesched.profiles.costs import StageCosts, price_among
from pipesched.schedules import Timeline
from pipesched.schedules.transforms import RecomputeWhen
from pipesched.simulator import SAME, Estimate, Inexact, Scenario, SteadyPace
from pipesched.simulator.fast import contention_of, predict_scenario
from pipesched.simulator.search import (
    UNPREDICTABLE,
    Outcome,
    Setting,
    memory_excess,
    over_memory_reason,
    settled_pace,
)
from pipesched.simulator.tuner.predictor import Accounting, SettingProfile, predict_setting, profile_setting
from pipesched.simulator.tuner.space import AVGPIPE, tuned
from pipesched.simulator.tuner.tuning_problem import Problem

_MOST_CELLS = 5_000
"""Stages times micro-batches, of all pipelines, of the longest batch that is repeated for its steady-state time."""
_SAME_DRIFTING = 0.01
"""Relative; times of several pipelines, which drift, differ by more than roundings."""


def evaluate_setting(problem: Problem, setting: Setting) -> Outcome:
    """Predict a setting with our model, from one of its pipelines if it represents all.

    Several pipelines that slow each other drift apart, so their time is the steady-state time; the memory is the sum of
    their peaks.
    """
    return settled(problem, bound_setting(problem, setting))


def bound_setting(problem: Problem, setting: Setting) -> Outcome:
    """Predict a setting, without a simulation of the drift of its pipelines.

    If pipelines drift apart, the seconds are a lower bound. The bytes are a lower bound if the setting certainly fits,
    and exact otherwise.
    """
    number = setting.num_pipelines
    try:
        costs = problem.costs(setting)
        if problem.pipelines(setting, costs).slow_each_other(number):
            return _least_of_drifting(problem, costs, setting)
        begun_together = _one_iteration(problem, costs, setting)
    except UNPREDICTABLE as error:
        return Outcome(setting, reason=str(error))
    return _outcome(setting, begun_together.seconds, begun_together)


def settled(problem: Problem, outcome: Outcome) -> Outcome:
    """Return a setting that `bound_setting` bounds, with the seconds and the bytes that it takes."""
    setting = outcome.setting
    if outcome.seconds is None:
        return outcome
    try:
        costs = problem.costs(setting)
        pipelines = problem.pipelines(setting, costs)
        if not pipelines.slow_each_other(setting.num_pipelines):
            return outcome
        pace = pipelines.pace(setting.num_pipelines)
        exact = _outcome(setting, pace.seconds, _one_iteration(problem, costs, setting))
        return replace(exact, error=pace.error)
    except UNPREDICTABLE as error:
        return Outcome(setting, reason=str(error))


def _least_of_drifting(problem: Problem, costs: StageCosts, setting: Setting) -> Outcome:
    """Return a lower bound of the time of pipelines that slow each other, and of their memory if they surely fit."""
    number, cluster = setting.num_pipelines, problem.cluster
    pipelines = problem.pipelines(setting, costs)
    seconds = pipelines.least_s(number)
    if _is_alone(problem, costs, setting):
        ranges = pipelines.held_ranges(number)
        limits = (cluster.devices[device].memory_bytes for device in ranges)
        if all(limit is None or most <= limit for limit, (_, most) in zip(limits, ranges.values(), strict=True)):
            return Outcome(setting, seconds / number, max((least for least, _ in ranges.values()), default=0))
    return _outcome(setting, seconds, _one_iteration(problem, costs, setting))


def _outcome(setting: Setting, seconds: float, begun_together: Estimate) -> Outcome:
    """Return the outcome of a setting whose iterations take `seconds` seconds."""
    held_bytes = max(begun_together.peak_bytes.values(), default=0)
    reason = over_memory_reason(begun_together.over_memory)
    return Outcome(setting, seconds / setting.num_pipelines, held_bytes, reason)


def _one_iteration(problem: Problem, costs: StageCosts, setting: Setting) -> Estimate:
    """Return time and memory of an iteration that all pipelines begin together."""
    if not _is_alone(problem, costs, setting):
        return _of_all(problem, costs, setting)
    return problem.pipelines(setting, costs).together(setting.num_pipelines)


def _is_alone(problem: Problem, costs: StageCosts, setting: Setting) -> bool:
    """Return whether one pipeline of a setting represents all pipelines that begin together."""
    schedule = problem.lists(setting)
    return contention_of(Scenario(schedule, costs, problem.cluster, problem.network, setting.num_pipelines)) is None


def _of_all(problem: Problem, costs: StageCosts, setting: Setting) -> Estimate:
    """Return an iteration of all pipelines, from the lists of each."""
    return predict_scenario(Scenario(problem.all_lists(setting, costs), costs, problem.cluster, problem.network))


def pace_of_setting(problem: Problem, outcome: Outcome) -> SteadyPace | Inexact:
    """Return the steady-state time of a setting that our model has predicted, or the reason why it is unknown.

    Several pipelines that slow each other are predicted by this time; other settings need longer runs.
    """
    setting = outcome.setting
    costs = problem.costs(setting)
    if problem.pipelines(setting, costs).slow_each_other(setting.num_pipelines):
        assert outcome.seconds is not None, "it is predicted"
        return SteadyPace(outcome.seconds / setting.num_each, None, outcome.error)
    num_cells = problem.lists(setting).num_stages * setting.num_microbatches

    def scenario() -> Scenario:
        return Scenario(problem.all_lists(setting, costs), costs, problem.cluster, problem.network)

    return settled_pace(scenario, num_cells, _MOST_CELLS)


def smallest_advance(judge: Callable[[Setting], Outcome], setting: Setting) -> Outcome | None:
    """Return the setting with the smallest `advance` that takes AFAB's time, as AvgPipe's Algorithm 1 would find it.

    The algorithm (PPoPP 2023, section 4.2) raises `advance` by one after every batch until a batch is no faster, or
    memory runs out. It gains at most as much as all forwards before all backwards (AFAB), which waits least for
    messages.

    Args:
        judge: Evaluates a setting.
        setting: A setting of AvgPipe's schedule, with any advance.

    Returns:
        The outcome, or None if all fitting settings are slower, or the time of AFAB is unknown.
    """
    number, most = setting.num_pipelines, setting.num_each - 1  # further ahead the last rank but one cannot be
    afab = judge(setting.in_pipelines(number, most))
    if afab.seconds is None:
        return None
    same = SAME if number == 1 else _SAME_DRIFTING
    for advance in range(most + 1):
        outcome = judge(setting.in_pipelines(number, advance))
        if not outcome.fits:
            return None
        if outcome.seconds is not None and outcome.seconds <= afab.seconds * (1 + same):
            return outcome
    return None


def measure(problem: Problem, setting: Setting) -> SettingProfile:
    """Return the profile of the setting that the equations start from, as our model predicts it.

    Raises:
        ScheduleError, ProfileError, SimulationError: The setting is impossible.
    """
    return profile_setting(timeline_of_setting(problem, setting), problem.costs(setting), setting.num_pipelines)


def timeline_of_setting(problem: Problem, setting: Setting) -> Timeline:
    """Return the Timeline of one iteration of all pipelines, begun together, with its memory.

    Raises:
        ScheduleError, ProfileError, SimulationError: The setting is impossible.
    """
    timeline = _of_all(problem, problem.costs(setting), setting).timeline
    assert timeline is not None, "the lists of all have one"
    return timeline


@dataclass(frozen=True, slots=True)
class EquationJudge:
    """AvgPipe's equations as a judge of settings.

    Attributes:
        problem: Model, batch and devices.
        profiles: Profile of the simulated setting, by whether and when it recomputes.
        accounting: Which accounting the equations use.
    """

    problem: Problem
    profiles: dict[RecomputeWhen | None, SettingProfile]
    accounting: Accounting

    @staticmethod
    def of(problem: Problem, settings: Sequence[Setting], accounting: Accounting) -> EquationJudge:
        """Return the judge of settings, from profiles of the most micro-batches and one pipeline, as the paper advises.

        Raises:
            ScheduleError, ProfileError, SimulationError: The profile covers none of the settings, or a list cannot run.
        """
        profiles = {
            when: _profiled(problem, [setting for setting in settings if setting.recompute_when == when])
            for when in dict.fromkeys(setting.recompute_when for setting in settings)
        }
        return EquationJudge(problem, profiles, accounting)

    def __call__(self, setting: Setting) -> Outcome:
        """Predict a setting; the equations speak of AvgPipe's own schedule only."""
        if setting.advance is None:
            return Outcome(
                setting, reason=f"AvgPipe's equations do not cover {setting.schedule}; try the evaluator simulate"
            )
        problem, count = self.problem, setting.num_pipelines
        try:
            problem.costs(setting)
        except ProfileError as error:
            return Outcome(setting, reason=str(error))
        profile = self.profiles[setting.recompute_when].slowed(price_among(problem.profile.sharing, count))
        prediction = predict_setting(profile, setting.num_each, count, self.accounting)
        held_bytes = {device: answer.held_bytes for device, answer in enumerate(prediction.devices)}
        reason = over_memory_reason(memory_excess(held_bytes, problem.cluster))
        return Outcome(setting, prediction.seconds, round(prediction.held_bytes), reason)


def _profiled(problem: Problem, settings: Sequence[Setting]) -> SettingProfile:
    """Return the profile with the most micro-batches that the model's profile covers, up to the needed number."""
    advance, counts = max(setting.advance or 0 for setting in settings), {setting.num_each for setting in settings}
    most = max([count for count in counts if problem.covers(count)] or counts)
    first = settings[0]
    return measure(problem, tuned(AVGPIPE, first.num_ranks, most, 1, advance, recompute_when=first.recompute_when))
