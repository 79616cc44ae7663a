"""Chunks, blocking Sends and slowdown, each worked out by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simpy import Environment

from pipesched.profiles.clusters import Link, all_reduce, flat
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules import make_schedule
from pipesched.schedules.builders import build
from pipesched.schedules.ops import Message, Payload, Recv, Reduce, Send, Step, computes, forward
from pipesched.simulator import NetworkOptions, SimulationError
from pipesched.simulator.analysis import usage
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.engine.network import Network, TransferTimes
from tests.properties import examples
from tests.strategies import TWO_NODES

F0, F1 = Message(Payload.ACTIVATION, 0, 0), Message(Payload.ACTIVATION, 0, 1)


def costs_of(num_bytes, num_stages=2, **more):
    return StageCosts((StageCost(1.0, 1.0, output_bytes=num_bytes, **more),) * num_stages)


def posted(network, source, target, message):
    network.recv(target, Recv(message, source))
    return network.send(source, Send(message, target)).times


def starts_and_ends(transfers):
    return [(times.start_s, times.end_s) for times in transfers]


# chunks


@pytest.mark.parametrize(
    ("num_bytes", "chunk_bytes", "first", "second"),
    [
        (20, None, (0.0, 2.5), (2.0, 4.5)),
        (20, 20, (0.0, 2.5), (2.0, 4.5)),
        (20, 10, (0.0, 3.5), (1.0, 4.5)),  # a b a b, each 1 s
        (25, 10, (0.0, 5.0), (1.0, 5.5)),  # a b a b a b, of 1, 1, 1, 1, 0.5 and 0.5 s
        (0, 10, (0.0, 0.5), (0.0, 0.5)),
    ],
)
def test_two_messages_through_one_nic(num_bytes, chunk_bytes, first, second):
    """From both devices of a node to those of the other, at the same time, at 10 bytes/s and 0.5 s."""
    env = Environment()
    network = Network(env, costs_of(num_bytes), TWO_NODES, range(4), NetworkOptions(chunk_bytes=chunk_bytes))
    transfers = [posted(network, 0, 2, F0), posted(network, 1, 3, F1)]
    env.run()
    assert starts_and_ends(transfers) == [first, second]


def test_a_short_message_need_not_wait_for_a_long_one():
    """Rank 0 sends 40 bytes at 0 s and rank 1 one of 10 at 0.5 s: behind the first chunk, not behind all four."""
    costs = StageCosts((StageCost(1.0, output_bytes=40), StageCost(1.0, output_bytes=10), StageCost(1.0)))
    instants = {}
    for chunk_bytes in (None, 10):
        env = Environment()
        network = Network(env, costs, TWO_NODES, range(4), NetworkOptions(chunk_bytes=chunk_bytes))
        long = posted(network, 0, 2, F0)
        env.run(until=0.5)
        short = posted(network, 1, 3, Message(Payload.ACTIVATION, 1, 0))
        env.run()
        instants[chunk_bytes] = starts_and_ends([long, short])
    assert instants == {None: [(0.0, 4.5), (4.0, 5.5)], 10: [(0.0, 5.5), (1.0, 2.5)]}


def test_the_messages_of_one_channel_do_not_overtake_each_other_in_chunks():
    """20 bytes each at 10 bytes/s: 0..2 and 2..4, as in one piece."""
    env = Environment()
    network = Network(env, costs_of(20), TWO_NODES, range(4), NetworkOptions(chunk_bytes=5))
    transfers = [posted(network, 0, 2, F0), posted(network, 0, 2, F1)]
    env.run()
    assert starts_and_ends(transfers) == [(0.0, 2.5), (2.0, 4.5)]


def test_a_message_passes_between_the_rounds_of_a_reduction():
    """40 bytes over two: 2 rounds of 20, 2 s and 0.5 s each. A message of 10 bytes comes at 1 s.

    In chunks it has the NIC from 2 to 3, so that the second round, ready at 2.5, has it from 3 to 5 s.
    """
    instants = {}
    for chunk_bytes in (None, 100):
        env = Environment()
        network = Network(env, costs_of(10), TWO_NODES, range(4), NetworkOptions(chunk_bytes=chunk_bytes))
        reduction = TransferTimes()
        network.reduce(reduction, all_reduce(40, (0, 2), TWO_NODES))
        env.run(until=1.0)
        message = posted(network, 1, 3, F0)
        env.run()
        instants[chunk_bytes] = starts_and_ends([reduction, message])
    assert instants == {None: [(0.0, 5.0), (4.0, 5.5)], 100: [(0.0, 5.5), (2.0, 3.5)]}


@examples(30)
@given(st.sampled_from(["1f1b", "gpipe", "interleaved", "1f1b_rr"]), st.integers(0, 60), st.integers(1, 50))
def test_where_nobody_meets_chunks_change_nothing(name, num_bytes, chunk_bytes):
    """A link for every pair, or a NIC that one pair alone uses."""
    schedule = build(name, 4, 8)
    costs = costs_of(num_bytes, schedule.num_stages, weight_bytes=40)
    for cluster in (replace(TWO_NODES, nics=()), replace(TWO_NODES, nics=tuple((device,) for device in range(4)))):
        if name in ("interleaved", "1f1b_rr") and cluster.nics:
            continue
        whole, cut = (
            simulate_lists(schedule, costs, cluster, network=NetworkOptions(chunk_bytes=chunk))
            for chunk in (None, chunk_bytes)
        )
        ends = [[span.end_s for span in timeline.spans] for timeline in (whole, cut)]
        assert ends[0] == pytest.approx(ends[1], rel=1e-9)


# blocking Sends


def two_forwards(*, link, network):
    rows = [[forward(0, 0), Send(F0, 1), forward(0, 1), Send(F1, 1)]]
    rows.append([Recv(F0, 0), Recv(F1, 0), forward(1, 0), forward(1, 1)])
    return simulate_lists(make_schedule("two forwards", 2, 2, rows), costs_of(10), flat(2, link), network=network)


@pytest.mark.parametrize(
    ("network", "starts"),
    [
        (NetworkOptions(), [0.0, 1.0, 2.5, 3.5]),
        (NetworkOptions("eager", "blocking"), [0.0, 2.0, 2.5, 4.5]),  # the message has left at 2
        (NetworkOptions("rendezvous", "blocking"), [0.0, 2.5, 2.5, 5.0]),  # and is there at 2.5
    ],
)
def test_a_blocking_send_keeps_its_rank(network, starts):
    timeline = two_forwards(link=Link(0.5, 10.0), network=network)
    assert [span.start_s for span in timeline.spans if computes(span.op)] == starts


@pytest.mark.parametrize(("protocol", "transfer_s"), [("rendezvous", 1.5), ("eager", 1.0)])
def test_the_time_in_a_blocking_send_is_idle_time_of_its_transfer(protocol, transfer_s):
    """Until the message is there, or eagerly until it has left."""
    timeline = two_forwards(link=Link(0.5, 10.0), network=NetworkOptions(protocol, "blocking"))
    idle = dict(usage(timeline)[0].idle_by_cause_s)
    assert {cause: s for cause, s in idle.items() if s} == {"transfer": transfer_s, "cooldown": 2.5}


def test_blocking_sends_that_wait_for_each_other_are_a_deadlock_with_both_ops():
    rows = [[forward(0, rank), Send((F0, F1)[rank], 1 - rank), Recv((F1, F0)[rank], 1 - rank), forward(1, 1 - rank)]
            for rank in range(2)]  # fmt: skip
    schedule = make_schedule("x", 2, 2, rows)
    assert simulate_lists(schedule, costs_of(10)).makespan_s == 2.0
    with pytest.raises(SimulationError) as error:
        simulate_lists(schedule, costs_of(10), network=NetworkOptions(sends="blocking"))
    assert str(error.value) == (
        "x: deadlock: rank 0 at 0SEND_F0 waits for 1RECV_F0 of rank 1, "
        "rank 1 at 0SEND_F1 waits for 1RECV_F1 of rank 0; check the schedule"
    )


# slowdown


def test_a_device_is_slower_while_a_message_of_its_is_in_flight():
    """1 s forwards, 1 s messages, at half speed beside one.

    Rank 0: F0 to 1; F1 does a half until 2, and is over at 2.5. Rank 1: F0 from 2, a half done at 2.5, over at 3.5,
    when the second message has come; F1 runs alone.
    """
    timeline = two_forwards(link=Link(0.0, 10.0), network=NetworkOptions(slowdown=1.0))
    spans = [(span.start_s, span.end_s) for span in timeline.spans if computes(span.op)]
    assert spans == [(0.0, 1.0), (1.0, 2.5), (2.0, 3.5), (3.5, 4.5)]


def test_a_device_is_slower_while_a_reduction_of_its_is_in_flight():
    """10 bytes over two: 2 rounds of 0.5 s, from 1 to 2, in which a forward does half of its work."""
    rows = [[forward(0, rank), Reduce(0), forward(0, rank + 2), Step(0)] for rank in range(2)]
    timeline = simulate_lists(
        make_schedule("x", 1, 4, rows), costs_of(0, 1, weight_bytes=10), flat(2, Link(0.0, 10.0)),
        network=NetworkOptions(slowdown=1.0),
    )  # fmt: skip
    spans = [(span.start_s, span.end_s) for span in timeline.of_rank(0) if computes(span.op)]
    assert spans == [(0.0, 1.0), (1.0, 2.5)]


@examples(20)
@given(st.sampled_from(["1f1b", "zb_h1", "chimera", "1f1b_rr", "avgpipe"]), st.floats(0.0, 2.0), st.booleans())
def test_messages_that_take_no_time_slow_nobody_and_no_slowdown_is_none(name, slowdown, takes_time):
    schedule = build(name, 4, 8)
    cost = StageCost(1.0, backward_input_s=1.0, backward_weight_s=1.0, output_bytes=3, weight_bytes=7)
    costs, cluster = StageCosts((cost,) * schedule.num_stages), flat(4, Link(0.1, 10.0) if takes_time else None)
    plain = simulate_lists(schedule, costs, cluster)
    slowed = simulate_lists(schedule, costs, cluster, network=NetworkOptions(slowdown=slowdown))
    if takes_time:
        assert plain.makespan_s - 1e-9 <= slowed.makespan_s <= (1 + slowdown) * plain.makespan_s + 1e-9
    else:
        assert slowed.makespan_s == pytest.approx(plain.makespan_s, rel=1e-9)


@pytest.mark.parametrize(
    ("network", "text"),
    [
        (NetworkOptions(sends="never"), "sends: got 'never', expected one of posted, blocking"),  # type: ignore[arg-type]
        (NetworkOptions(chunk_bytes=0), "chunk_bytes: got 0, expected at least 1"),
        (NetworkOptions(slowdown=-0.1), "slowdown: got -0.1, expected a number from 0 to 100"),
        (NetworkOptions(slowdown=float("nan")), "slowdown: got nan"),
    ],
)
def test_options_that_are_none_are_refused_in_one_line(network, text):
    with pytest.raises(SimulationError) as error:
        simulate_lists(build("1f1b", 2, 2), costs_of(1), network=network)
    assert text in str(error.value)
    assert "\n" not in str(error.value)
