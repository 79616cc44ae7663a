from simpy import Environment

from pipesched.profiles.clusters import Link, flat
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules.ops import Message, Payload, Reduce, Send
from pipesched.simulator import NetworkOptions
from pipesched.simulator.engine.network import Collectives, Network

COSTS = StageCosts((StageCost(1.0, output_bytes=10), StageCost(1.0)))


def activation(microbatch: int) -> Message:
    return Message(Payload.ACTIVATION, 0, microbatch)


def test_the_two_directions_between_two_ranks_do_not_wait_for_each_other():
    network = Network(Environment(), COSTS, flat(2, Link(0.0, 10.0)), (0, 1), NetworkOptions("eager"))
    there = network.send(0, Send(activation(0), 1))
    back = network.send(1, Send(Message(Payload.GRADIENT, 1, 0), 0))
    second = network.send(0, Send(activation(1), 1))
    assert (there.times.start_s, back.times.start_s, second.times.start_s) == (0.0, 0.0, 1.0)


def test_the_kth_reduce_meets_the_kth():
    collectives = Collectives({0: ((0, 0), (1, 0))})
    (first, can_first), (second, can_second) = collectives.post(0, Reduce(0)), collectives.post(0, Reduce(0))
    assert (can_first, can_second, collectives.absent(first)) == (False, False, (1,))
    assert collectives.post(1, Reduce(0)) == (first, True)
    assert collectives.post(1, Reduce(0)) == (second, True)


def test_channels_between_two_devices_divide_the_bandwidth_and_each_keeps_its_order():
    # 10 bytes at 5 bytes/s. Rank 0 sends at 1 s and at 2 s, rank 2, on the same device, at 2 s:
    # 1 to 2 s half of the first goes; 2 to 4 s its other half beside half of rank 2's; 4 to 6 s the other half of
    # that beside half of the second, which has the link for itself from 6 to 7 s.
    env = Environment()
    network = Network(env, COSTS, flat(2, Link(0.25, 5.0)), (0, 1, 0, 1), NetworkOptions("eager"))
    env.run(until=1.0)
    first = network.send(0, Send(activation(0), 1))
    env.run(until=2.0)
    second, other = network.send(0, Send(activation(1), 1)), network.send(2, Send(activation(2), 3))
    env.run()
    assert [(t.times.start_s, t.times.end_s) for t in (first, other, second)] == [
        (1.0, 4.25),
        (2.0, 6.25),
        (4.0, 7.25),
    ]
