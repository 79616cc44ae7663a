"""The bound of any lists: never above what SimPy says, and the closed form where one is known."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipesched
from pipesched.profiles.clusters import flat
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules.builders import CATALOGUE, build
from pipesched.schedules.transforms import recompute
from pipesched.simulator import Scenario
from pipesched.simulator.engine import predict_by_events
from pipesched.simulator.optimum import (
    counted_room,
    least_seconds_of_lists,
    least_ticks,
    order_problem,
    orderable,
)
from tests.properties import examples
from tests.strategies import random_cluster, random_costs


@examples(40)
@given(name=st.sampled_from(sorted(CATALOGUE)), is_recomputed=st.booleans(), seed=st.integers(0, 10**6))
def test_no_run_is_shorter_than_the_bound_of_its_lists(name, is_recomputed, seed):
    chance = random.Random(seed)
    schedule = build(name, 4, 8)
    if is_recomputed and not CATALOGUE[name].traits.is_asynchronous:
        schedule = recompute(schedule)
    costs, cluster = random_costs(chance, schedule.num_stages), random_cluster(chance, 4)
    bound_s = least_seconds_of_lists(schedule, costs, cluster)
    assert 0 < bound_s <= predict_by_events(Scenario(schedule, costs, cluster)).timeline.makespan_s * (1 + 1e-9)


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "pipedream", "wpipe"])
def test_the_bound_of_equal_stages_is_the_closed_form(name):
    """All work of a rank, and three stages on the way there and back, the least that some rank waits for."""
    schedule = build(name, 4, 8)
    chunks = schedule.num_stages // 4
    f_s, b_s = 2.0 / chunks, 3.0 / chunks
    costs = StageCosts((StageCost(f_s, b_s),) * schedule.num_stages)
    assert least_seconds_of_lists(schedule, costs, flat(4)) == pytest.approx(8 * 5.0 + 3 * (f_s + b_s))


@pytest.mark.parametrize("name", ["1f1b", "zb_h1", "zbv", "v_min", "interleaved", "hanayo"])
def test_without_a_limit_of_memory_it_is_the_simple_bound_of_an_order_problem(name):
    costs = StageCosts((StageCost(1.0, 2.0, 1.0, 1.0),) * build(name, 4, 8).num_stages)
    lists = orderable(build(name, 4, 8), costs)
    problem = order_problem(lists, costs, flat(4), counted_room(lists, costs, 1000))
    assert least_seconds_of_lists(lists, costs, flat(4)) == pytest.approx(least_ticks(problem) * problem.tick_s)


@pytest.mark.parametrize("name", ["chimera", "gems", "avgpipe", "pipedream_2bw", "dualpipe", "data_parallel"])
def test_any_schedule_of_the_catalogue_has_a_bound(name):
    costs = pipesched.DeviceCost(1.0, backward_input_s=1.0, backward_weight_s=1.0)
    least = pipesched.simulate(pipesched.build(name, 4, 8), costs, bound_seconds=0).least
    assert least.gap >= 0
    assert "with any memory" in least.sentence
