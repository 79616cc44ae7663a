"""What costs do not change is found once: times of other costs are those that are found anew."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipesched.profiles.clusters import Cluster, Device, Link
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from pipesched.schedules.transforms import replicate
from pipesched.simulator import SimulationError
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.fast.longest_path import event_graph_of, longest_path
from tests.simulator.fast.test_longest_path import UNSHARED
from tests.strategies import random_cluster, random_costs


@settings(deadline=None, max_examples=40)
@given(name=st.sampled_from(UNSHARED), m=st.integers(1, 2), seed=st.integers(0, 10**6))
def test_the_graph_of_some_costs_gives_the_times_of_others(name, m, seed):
    chance = random.Random(seed)
    schedule = lower(build(name, 4, 8 * m))
    graph = event_graph_of(schedule, random_costs(chance, schedule.num_stages), random_cluster(chance, 4))
    costs, cluster = random_costs(chance, schedule.num_stages), random_cluster(chance, 4)
    assert graph.timeline(graph.times_s(costs, cluster)) == longest_path(schedule, costs, cluster)


def test_a_node_is_told_by_when_it_could_begin_and_when_it_is_over():
    schedule, costs = lower(build("gpipe", 2, 1)), StageCosts((StageCost(1.0, 2.0, output_bytes=4),) * 2)
    cluster = Cluster((Device(), Device()), Link(0.5, 8.0))
    graph = event_graph_of(schedule, costs, cluster)
    times_s = graph.times_s(costs, cluster)
    of = {(place.rank, str(place.op)): [times_s[n] for n in place[2:]] for place in graph.places}
    assert of[0, "0F0"] == [0.0, 0.0, 1.0]
    assert of[0, "0SEND_F0"] == [1.0, 1.0, 2.0]
    assert of[1, "1F0"] == [0.0, 2.0, 3.0]
    assert of[1, "1B0"] == [3.0, 3.0, 5.0]
    assert of[0, "0B0"] == [1.0, 6.0, 8.0]


def test_sums_that_would_go_another_way_are_refused():
    """Two nodes of two devices: few bytes go round a ring, many first inside the nodes."""
    slow, fast = Link(0.0, 1.0), Link(0.0, 1000.0)
    cluster = Cluster(tuple(Device(node=device // 2) for device in range(4)), fast, slow)
    schedule = lower(replicate(build("1f1b", 1, 2), 4))
    few, many = (StageCosts((StageCost(1.0, 2.0, weight_bytes=num_bytes),)) for num_bytes in (0, 1200))
    graph = event_graph_of(schedule, few, cluster)
    assert longest_path(schedule, many, cluster).makespan_s == pytest.approx(
        simulate_lists(schedule, many, cluster).makespan_s
    )
    with pytest.raises(SimulationError, match="stage 0 is reduced: got the way hierarchical, expected ring"):
        graph.times_s(many, cluster)
