"""Network interfaces that devices of a node share: worked by hand, and without effect where nobody meets."""

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simpy import Environment

from pipesched.profiles.clusters import Link, dealt, of_nodes
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules import Schedule
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Message, Payload, Recv, Reduce, Send, Step, backward, forward
from pipesched.simulator.analysis import usage
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.engine.network import Network
from tests.properties import examples
from tests.strategies import TWO_NODES, node_of_two

TEN_BYTES = StageCosts((StageCost(1.0, 2.0, output_bytes=10, weight_bytes=40),) * 2)
NODE = node_of_two()


def activation(microbatch):
    return Message(Payload.ACTIVATION, 0, microbatch)


def posted(network, source, target, message):
    network.recv(target, Recv(message, source))
    return network.send(source, Send(message, target))


def network_of(cluster):
    return Network(Environment(), TEN_BYTES, cluster, range(len(cluster.devices)))


def test_messages_from_different_nodes_enter_a_node_by_a_shared_nic_one_after_the_other():
    network = network_of(of_nodes(NODE, 3))
    first, second = posted(network, 0, 4, activation(0)), posted(network, 2, 5, activation(1))
    assert (first.times.start_s, second.times.start_s) == (0.0, 1.0)


def test_a_message_waits_for_both_ends_and_then_has_them():
    """The third needs the outgoing side of the first, free at 1, and the incoming side of the second, free at 2."""
    network = network_of(of_nodes(NODE, 3))
    posted(network, 0, 2, activation(0))
    posted(network, 3, 5, activation(1))
    posted(network, 2, 4, activation(2))
    third = posted(network, 1, 4, activation(3))
    assert (third.times.start_s, third.times.end_s) == (2.0, 3.5)


def test_both_directions_and_the_inside_of_a_node_share_nothing():
    network = network_of(TWO_NODES)
    there = posted(network, 0, 2, activation(0))
    back = posted(network, 3, 1, activation(1))
    inside = posted(network, 0, 1, activation(2))
    assert (there.times.start_s, back.times.start_s, inside.times.start_s, inside.times.end_s) == (
        0.0,
        0.0,
        0.0,
        0.0,
    )


def replicated(rank_to_device, *, reduces):
    """Return two pipelines of two stages, one micro-batch each: ranks 0 and 1 hold stage 0, 2 and 3 stage 1."""
    rows = [
        (forward(rank // 2, rank % 2), backward(rank // 2, rank % 2), *((Reduce(rank // 2),) if reduces else ()))
        for rank in range(4)
    ]
    rows = [(*row, Step(rank // 2)) for rank, row in enumerate(rows)]
    return Schedule("by hand", 2, 2, tuple(rows), rank_to_device)


def spans_of(timeline, rank, kinds):
    return [(span.start_s, span.end_s) for span in timeline.spans if span.rank == rank and isinstance(span.op, kinds)]


def test_two_pipelines_over_one_nic_are_as_worked_by_hand():
    """Activations cross at 1..2 and 2..3, gradients at 5.5..6.5 and 6.5..7.5, each 0.5 longer on its way."""
    timeline = simulate_lists(replicated((0, 1, 2, 3), reduces=False), TEN_BYTES, TWO_NODES)
    kind = type(forward(0, 0))
    assert spans_of(timeline, 2, kind) == [(2.5, 3.5), (3.5, 5.5)]
    assert spans_of(timeline, 3, kind) == [(3.5, 4.5), (4.5, 6.5)]
    assert spans_of(timeline, 0, kind) == [(0.0, 1.0), (7.0, 9.0)]
    assert spans_of(timeline, 1, kind) == [(0.0, 1.0), (8.0, 10.0)]
    assert (
        simulate_lists(replicated((0, 1, 2, 3), reduces=False), TEN_BYTES, replace(TWO_NODES, nics=())).makespan_s
        == 9.0
    )


def test_all_reduces_over_one_nic_wait_for_each_other():
    """Stage 1 is done at 4 and stage 0 at 6; each moves 2 x 40 / 2 bytes at 10 bytes/s and two latencies of 0.5."""
    apart = replicated((0, 2, 1, 3), reduces=True)
    timeline = simulate_lists(apart, TEN_BYTES, TWO_NODES)
    assert spans_of(timeline, 2, Reduce) == spans_of(timeline, 3, Reduce) == [(4.0, 9.0)]
    assert spans_of(timeline, 0, Reduce) == spans_of(timeline, 1, Reduce) == [(8.0, 13.0)]
    assert simulate_lists(apart, TEN_BYTES, replace(TWO_NODES, nics=())).makespan_s == 11.0


def test_an_all_reduce_inside_a_node_needs_no_nic():
    together = replicated((0, 1, 2, 3), reduces=True)
    slow = replace(TWO_NODES, intra=Link(0.0, 10.0))
    timeline = simulate_lists(together, TEN_BYTES, slow)
    assert spans_of(timeline, 2, Reduce) == [(6.5, 10.5)]
    assert spans_of(timeline, 0, Reduce) == [(10.0, 14.0)]


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb_h1"])
def test_a_pipeline_that_crosses_once_is_as_without_nics(name):
    schedule = build(name, 4, 8)
    cost = StageCost(1.0, backward_input_s=1.0, backward_weight_s=1.0, output_bytes=10)
    costs = StageCosts((cost,) * schedule.num_stages)
    cluster = replace(TWO_NODES, intra=Link(0.25, 40.0), inter=Link(0.5, 20.0))
    shared, alone = (simulate_lists(schedule, costs, machine) for machine in (cluster, replace(cluster, nics=())))
    assert shared == alone


def test_the_wait_for_a_nic_is_idle_time_of_a_busy_link():
    """Device 2 takes 4 s for its 3, so that both gradients are ready at 6.5: the later has to wait for 1 s."""
    devices = [replace(device, speed=0.75 if index == 2 else 1.0) for index, device in enumerate(TWO_NODES.devices)]
    cluster = replace(TWO_NODES, devices=tuple(devices))
    timeline = simulate_lists(replicated((0, 1, 2, 3), reduces=False), TEN_BYTES, cluster)
    assert sorted(dict(device.idle_by_cause_s)["busy_link"] for device in usage(timeline)) == [0.0, 0.0, 0.0, 1.0]


@examples(25)
@given(
    st.sampled_from(["1f1b", "interleaved", "chimera", "gems", "dualpipe", "1f1b_rr"]),
    st.permutations(range(4)),
    st.integers(1, 2),
    st.integers(1, 40),
)
def test_no_two_messages_are_in_one_direction_of_a_nic_at_once(name, placement, num_nics, num_bytes):
    schedule = lower(replace(build(name, 4, 8), rank_to_device=tuple(placement)))
    cost = StageCost(1.0, 2.0, backward_input_s=1.0, backward_weight_s=1.0, output_bytes=num_bytes, weight_bytes=8)
    costs = StageCosts((cost,) * schedule.num_stages)
    cluster = of_nodes(replace(NODE, nics=dealt(2, num_nics)), 2)
    timeline = simulate_lists(schedule, costs, cluster)
    through = defaultdict(list)
    for span in timeline.spans:
        if isinstance(span.op, Send):
            leaving, entering = cluster.nics_between(placement[span.rank], placement[span.op.peer])
            if leaving is not None:
                through["out", leaving].append((span.start_s, span.end_s - 0.5))
                through["in", entering].append((span.start_s, span.end_s - 0.5))
    for times in through.values():
        assert all(end <= start + 1e-9 for (_, end), (start, _) in pairwise(sorted(times)))
    alone = simulate_lists(schedule, costs, replace(cluster, nics=()))
    assert timeline.makespan_s >= alone.makespan_s - 1e-9
