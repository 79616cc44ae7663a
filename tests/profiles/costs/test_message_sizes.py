"""What messages in half precision weigh and cost, worked out by hand."""

import pytest

from pipesched.profiles.clusters import Link, flat
from pipesched.profiles.costs import Compression, StageCost, StageCosts
from pipesched.schedules.builders import build
from pipesched.schedules.ops import Message, Payload, backward, backward_input, backward_weight, forward
from pipesched.schedules.transforms import recompute
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.fast import simulate_arrays


@pytest.mark.parametrize(
    ("element_bytes", "num_bytes", "expected"), [(4, 400, 208), (8, 800, 208), (2, 400, 400), (4, 0, 0), (4, 6, 11)]
)
def test_a_message_is_two_bytes_an_element_behind_a_head_of_eight(element_bytes, num_bytes, expected):
    assert Compression(element_bytes).message_bytes(num_bytes) == expected


def costs(compression):
    sizes = (400, 800, 0)
    cost = [StageCost(1.0, backward_input_s=1.0, backward_weight_s=1.0, output_bytes=num_bytes) for num_bytes in sizes]
    return StageCosts(tuple(cost), compression=compression)


def test_f_b_and_i_convert_what_comes_in_and_what_goes_out_at_both_ends():
    """At 400 bytes/s a tensor of 400 bytes takes 1 s and one of 800 bytes 2 s, at each end."""
    slow = costs(Compression(4, 400.0))
    assert [slow.seconds(forward(stage, 0)) for stage in range(3)] == [1 + 1, 1 + 1 + 2, 1 + 2]
    assert [slow.seconds(backward(stage, 0)) for stage in range(3)] == [2 + 1, 2 + 1 + 2, 2 + 2]
    assert [slow.seconds(backward_input(stage, 0)) for stage in range(3)] == [1 + 1, 1 + 1 + 2, 1 + 2]
    assert [slow.seconds(backward_weight(stage, 0)) for stage in range(3)] == [1, 1, 1]
    assert [slow.message_bytes(Message(Payload.ACTIVATION, stage, 0)) for stage in range(2)] == [208, 408]
    assert [slow.message_bytes(Message(Payload.GRADIENT, stage, 0)) for stage in (1, 2)] == [208, 408]
    assert costs(Compression(2, 400.0)).seconds(forward(1, 0)) == costs(Compression()).seconds(forward(1, 0)) == 1.0


def test_bytes_without_a_gradient_go_one_way_and_are_not_compressed():
    """An output of 400 bytes with a mask of 100; only the other 300 are halved and converted, at 400 bytes/s."""
    stages = (StageCost(1.0, 1.0, output_bytes=400, output_gradient_bytes=300), StageCost(1.0, 1.0))
    there, back = Message(Payload.ACTIVATION, 0, 0), Message(Payload.GRADIENT, 1, 0)
    for compression, expected in ((None, [400, 300]), (Compression(4, 400.0), [8 + 150 + 100, 8 + 150])):
        costs = StageCosts(stages, compression=compression)
        assert [costs.message_bytes(message) for message in (there, back)] == expected
        assert [costs.value_bytes(message) for message in (there, back)] == [400, 300]
    assert [costs.seconds(op) for op in (forward(0, 0), backward(1, 0))] == [1.75, 1.75]


def test_one_micro_batch_through_three_stages():
    """Forwards 2 + 4 + 3, backwards 4 + 5 + 3, and 208 and 408 bytes twice each at 104 bytes/s; R converts nothing."""
    cluster = flat(3, Link(0.0, 104.0))
    for evaluate in (simulate_lists, simulate_arrays):
        timeline = evaluate(build("naive", 3, 1), costs(Compression(4, 400.0)), cluster)
        assert timeline.makespan_s == pytest.approx(9 + 12 + 2 * (2 + 408 / 104), rel=1e-12)
    # R of the last stage is on the way, 1 s; those of the others are done while they wait
    timeline = simulate_lists(recompute(build("naive", 3, 1)), costs(Compression(4, 400.0)), cluster)
    assert timeline.makespan_s == pytest.approx(9 + 12 + 2 * (2 + 408 / 104) + 1, rel=1e-12)
