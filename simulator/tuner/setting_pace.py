"""The steady pace of a setting: what a micro-batch takes when its batches follow one another."""

from __future__ import annotations

from typing import NamedTuple

from pipesched.schedules.lowering import lower
from pipesched.simulator import Inexact, Scenario
from pipesched.simulator.analysis import metrics, steady_bubble_fraction
from pipesched.simulator.fast import predict_repeated, simulate_arrays
from pipesched.simulator.search import UNPREDICTABLE
from pipesched.simulator.tuner.setting_evaluation import Problem, costs_of, is_slowed
from pipesched.simulator.tuner.setting_outcome import SettingOutcome

_MOST_CELLS = 5_000
"""Stages times micro-batches, of all pipelines, of a batch that is looked at, which takes about a tenth of a second."""


class SteadyPace(NamedTuple):
    """The pace of batches that follow one another.

    Attributes:
        s_per_microbatch: Seconds of a micro-batch, of all pipelines together.
        bubble_fraction: Idle share of all device time; None of pipelines that slow each other, whose works drift.
    """

    s_per_microbatch: float
    bubble_fraction: float | None


def pace_of_setting(problem: Problem, outcome: SettingOutcome) -> SteadyPace | None:
    """Return the steady pace of a setting that our model has predicted; None where that is not known.

    Several pipelines that slow each other were predicted by their pace in the long run; a batch of others is repeated,
    unless it is so long that this takes a while, or does not settle.
    """
    setting = outcome.setting
    try:
        costs = costs_of(problem, setting)
        if is_slowed(costs, setting.num_pipelines):
            return None if outcome.seconds is None else SteadyPace(outcome.seconds / setting.num_microbatches, None)
        lists = setting.build(len(problem.cluster.devices))
        if lists.num_stages * lists.num_microbatches > _MOST_CELLS:
            return None
        timeline = simulate_arrays(lower(lists), costs, problem.cluster, network=problem.network)
        answer = predict_repeated(Scenario(lists, costs, problem.cluster, problem.network), timeline)
    except UNPREDICTABLE:  # a batch that cannot go on, whether it should
        return None
    if isinstance(answer, Inexact):
        return None
    s_per_microbatch = answer.seconds / lists.num_microbatches
    busy_s = metrics(timeline).busy_s
    return SteadyPace(s_per_microbatch, steady_bubble_fraction(busy_s, lists, costs, problem.cluster, s_per_microbatch))
