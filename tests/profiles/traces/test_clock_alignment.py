"""Clocks with known shifts, and messages with known latencies."""

import random

import pytest

from pipesched.profiles import ProfileError
from pipesched.profiles.traces import MessageTimes, align_clocks

US = 1000


def messages(shifts_ns, pairs, latency_ns, count=20, seed=0):
    """Return messages between the pairs, both ways, as ranks with these shifts note them; one of each pair is quick."""
    draw = random.Random(seed)
    times = []
    for number in range(count):
        for rank, other in pairs:
            for sender, receiver in ((rank, other), (other, rank)):
                sent_ns = draw.randrange(10**9)
                late_ns = 0 if number == 0 else draw.randrange(5 * latency_ns)
                arrived_ns = sent_ns + latency_ns + late_ns
                times.append(
                    MessageTimes(sender, receiver, sent_ns + shifts_ns[sender], arrived_ns + shifts_ns[receiver])
                )
    return times


@pytest.mark.parametrize("shift_ns", [0, 7, -3_000_000_000, 3600 * 10**9])
def test_a_known_shift_of_two_ranks_is_found_to_less_than_the_one_way_latency(shift_ns):
    for seed in range(10):
        clocks = align_clocks(2, messages([0, shift_ns], [(0, 1)], 50 * US, seed=seed))
        assert abs(clocks.offsets_ns[1] - shift_ns) < 50 * US
        assert clocks.uncertainties_ns == (0, 50 * US)
        assert clocks.contradiction_ns == 0


def test_the_shift_is_within_what_is_said_to_be_unknown_also_where_one_way_is_slower():
    times = [MessageTimes(0, 1, 0, 90 * US + 5), MessageTimes(1, 0, 1000 * US + 5, 1010 * US)]
    clocks = align_clocks(2, times)  # 90 us there, 10 us back, shift 5 ns
    assert abs(clocks.offsets_ns[1] - 5) <= clocks.uncertainties_ns[1] == 50 * US


def test_ranks_that_never_talk_are_aligned_through_others():
    shifts = [0, 5_000_000, -2_000_000, 123]
    clocks = align_clocks(4, messages(shifts, [(0, 1), (1, 2), (2, 3)], 20 * US))
    for rank, shift_ns in enumerate(shifts):
        assert abs(clocks.offsets_ns[rank] - shift_ns) <= clocks.uncertainties_ns[rank] <= rank * 20 * US


def test_more_messages_round_a_ring_leave_less_unknown():
    line, ring = [(0, 1), (1, 2), (2, 3)], [(0, 1), (1, 2), (2, 3), (3, 0)]
    along, around = (align_clocks(4, messages([0] * 4, pairs, 20 * US)) for pairs in (line, ring))
    assert around.uncertainties_ns[3] < along.uncertainties_ns[3]


def test_after_alignment_no_message_arrives_before_it_was_sent():
    shifts = [0, 5_000_000, -2_000_000, 123]
    sent = messages(shifts, [(0, 1), (1, 2), (2, 3), (3, 0)], 20 * US, seed=3)
    offsets = align_clocks(4, sent).offsets_ns
    for message in sent:
        assert message.arrived_ns - offsets[message.receiver] >= message.sent_ns - offsets[message.sender]


def test_messages_that_contradict_each_other_are_reconciled_and_it_is_said_by_how_much():
    times = [MessageTimes(0, 1, 0, -30), MessageTimes(1, 0, 0, -10)]  # together 40 ns before they were sent
    clocks = align_clocks(2, times)
    assert clocks.contradiction_ns == 20
    assert clocks.offsets_ns[1] == -10
    assert clocks.uncertainties_ns[1] == 0


@pytest.mark.parametrize("pair", [(0, 1), (1, 0)])
def test_messages_one_way_leave_the_clocks_unknown(pair):
    with pytest.raises(ProfileError, match=r"got no messages .* rank 1, expected messages in both directions"):
        align_clocks(2, [MessageTimes(*pair, 0, 1)])


def test_one_rank_has_one_clock():
    assert align_clocks(1, []).offsets_ns == (0,)
