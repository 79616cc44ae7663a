"""What settings have in common is made once for a problem, and anew for another, or in another process."""

import pickle
from dataclasses import replace

import pytest

from pipesched.profiles import ProfileError
from pipesched.profiles.costs import LayerTie
from pipesched.schedules.transforms import with_tied_sum
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.tuner import evaluate_setting, tuned
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


@pytest.mark.parametrize(
    "setting", [tuned("avgpipe", 3, 6, 1, 1), tuned("1f1b", 3, 6), tuned("interleaved", 3, 6, num_chunks=2)], ids=str
)
def test_the_sum_of_tied_gradients_counts(setting):
    asked = problem(batch_size=6, partition="uniform")
    tied = replace(asked, profile=replace(asked.profile, ties=(LayerTie((0, 5), 4000),)))
    costs = tied.costs(setting)
    lists = with_tied_sum(setting.build(), (0, costs.num_stages - 1))
    assert (costs.tied_bytes, costs.tied_stages) == (4000, (0, costs.num_stages - 1))
    expected = simulate_lists(lists, costs, tied.cluster).makespan_s
    assert evaluate_setting(tied, setting).seconds == pytest.approx(expected, rel=1e-12)
    assert expected > evaluate_setting(asked, setting).seconds


def test_averaged_pipelines_of_tied_stages_are_refused():
    asked = problem()
    tied = replace(asked, profile=replace(asked.profile, ties=(LayerTie((0, 5), 4),)))
    assert tied.costs(SETTING.in_pipelines(1, 1)).tied_stages == (0, 2)
    with pytest.raises(
        ProfileError, match="got tied stages 0, 2, expected one pipeline, as each averaged pipeline steps by itself"
    ):
        tied.costs(SETTING)
    within = replace(asked, profile=replace(asked.profile, ties=(LayerTie((0, 1), 4),)), partition="2,2,2")
    assert within.costs(SETTING).tied_stages == ()
