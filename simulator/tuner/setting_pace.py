"""The steady pace of a setting: the time of a micro-batch when its batches follow one another."""

from __future__ import annotations

from pipesched.schedules.lowering import lower
from pipesched.simulator import Inexact, Scenario, SteadyPace
from pipesched.simulator.fast import is_slowed, simulate_arrays, steady_pace
from pipesched.simulator.search import UNPREDICTABLE
from pipesched.simulator.tuner.setting_outcome import SettingOutcome
from pipesched.simulator.tuner.tuning_problem import Problem

_MOST_CELLS = 5_000
"""Stages times micro-batches, of all pipelines, of a batch that is looked at, which takes about a tenth of a second."""


def pace_of_setting(problem: Problem, outcome: SettingOutcome) -> SteadyPace | Inexact:
    """Return the steady pace of a setting that our model has predicted, or why it is not known.

    Several pipelines that slow each other were predicted by their pace in the long run; a batch of others is repeated,
    unless it is so long that this takes a while, or does not settle.
    """
    setting = outcome.setting
    try:
        costs = problem.costs(setting)
        if is_slowed(costs, setting.num_pipelines):
            assert outcome.seconds is not None, "it is predicted"
            return SteadyPace(outcome.seconds / setting.num_microbatches, None, outcome.error)
        lists = setting.build(len(problem.cluster.devices))
        if lists.num_stages * lists.num_microbatches > _MOST_CELLS:
            return Inexact(f"lists of more than {_MOST_CELLS:,} stages x micro-batches are not tried")
        timeline = simulate_arrays(lower(lists), costs, problem.cluster, network=problem.network)
        return steady_pace(Scenario(lists, costs, problem.cluster, problem.network), timeline)
    except UNPREDICTABLE as error:
        return Inexact(str(error))
