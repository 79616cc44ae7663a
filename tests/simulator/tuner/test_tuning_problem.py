"""What settings have in common is made once for a problem, and anew for another, or in another process."""

import pickle
from dataclasses import replace

import pytest

from pipesched.profiles import ProfileError
from pipesched.profiles.costs import LayerTie
from pipesched.simulator.tuner import tuned
from tests.simulator.tuner.problems import problem

SETTING = tuned("avgpipe", 3, 4, 2, 1)


def test_costs_and_pipelines_are_made_once_and_no_other_problem_has_them():
    asked = problem()
    costs = asked.costs(SETTING)
    pipelines = asked.pipelines(SETTING, costs)
    assert asked.costs(SETTING) is costs
    assert asked.pipelines(SETTING.in_pipelines(3, 1), costs) is pipelines  # which stand for any number
    assert asked.pipelines(SETTING, replace(costs, overlap=0.5)) is not pipelines

    for other in (replace(asked, partition="uniform"), pickle.loads(pickle.dumps(asked))):
        assert len(asked.cuts) == len(asked.made) - 1 == 1
        assert not other.cuts
        assert not other.made
    assert pickle.loads(pickle.dumps(asked)) == asked


def test_only_the_last_pipelines_are_kept():
    asked = problem()
    costs = asked.costs(SETTING)
    for num_microbatches in range(1, 20):
        asked.pipelines(tuned("avgpipe", 3, num_microbatches, 2, 1), costs)
    assert len(asked.made) == 8


def test_averaged_pipelines_of_tied_stages_are_refused():
    asked = problem()
    tied = replace(asked, profile=replace(asked.profile, ties=(LayerTie((0, 5), 4),)))
    assert tied.costs(SETTING.in_pipelines(1, 1)).tied_stages == (0, 2)
    with pytest.raises(
        ProfileError, match="got tied stages 0, 2, expected one pipeline: averaged pipelines step alone"
    ):
        tied.costs(SETTING)
    within = replace(asked, profile=replace(asked.profile, ties=(LayerTie((0, 1), 4),)), partition="2,2,2")
    assert within.costs(SETTING).tied_stages == ()
