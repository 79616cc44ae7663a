import pytest

from pipesched.schedules import Schedule, make_schedule
from pipesched.schedules.builders.gpipe import gpipe
from pipesched.schedules.builders.one_f_one_b import one_f_one_b
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Message, Payload, Recv, Send
from tests.schedules.edits import edited, faults_of, place_of, swapped

FIRST, LAST = Message(Payload.ACTIVATION, 0, 0), Message(Payload.ACTIVATION, 1, 0)


def with_more(schedule: Schedule, send: tuple[int, Send], recv: tuple[int, Recv]) -> Schedule:
    """Return the lowered schedule with a Send and a Recv more, each at the end of the list of a rank."""
    rows = [list(row) for row in lower(schedule).ops]
    for rank, op in (send, recv):
        rows[rank].append(op)
    return make_schedule("more", schedule.num_stages, schedule.num_microbatches, rows)


def test_a_missing_send_is_named_at_its_receive_and_at_the_op_that_waits():
    good = lower(one_f_one_b(2, 2))
    bad = edited(good, 0, lambda row: row.pop(place_of(good, 0, "0SEND_F1")))
    recv = place_of(bad, 1, "1RECV_F1")
    assert faults_of(bad, "matching") == [(1, recv, "1RECV_F1 has no Send on rank 0")]
    text = f"1F1 waits forever for 1RECV_F1 (op {recv}), which waits for the other end, 0SEND_F1 of rank 0"
    assert faults_of(bad, "progress") == [
        (1, place_of(bad, 1, "1F1"), f"{text}, which is missing; rank 0 waits for it")
    ]


def test_a_missing_receive_is_named_at_its_send_and_at_the_op_that_waits():
    good = lower(one_f_one_b(2, 2))
    bad = edited(good, 0, lambda row: row.pop(place_of(good, 0, "0RECV_B0")))
    assert faults_of(bad, "matching") == [(1, place_of(bad, 1, "1SEND_B0"), "1SEND_B0 has no Recv on rank 0")]
    first, second = faults_of(bad, "progress")
    assert first == (0, place_of(bad, 0, "0B0"), "0B0 waits forever for 0RECV_B0 of rank 0, which is missing")
    assert second[0] == 1
    assert "0RECV_B1 of rank 0, which is not at this place of the channel" in second[2]


def test_two_receives_in_the_wrong_order_are_named():
    bad = edited(lower(gpipe(2, 3)), 1, swapped("1RECV_F0", "1RECV_F1"))
    ((rank, index, text),) = faults_of(bad, "matching")
    assert (rank, index) == (1, place_of(bad, 1, "1RECV_F1"))
    assert text.startswith("1RECV_F1 is out of order: rank 0 sends 0SEND_F0 at this place")
    assert "expected 1RECV_F0" in text
    assert (1, place_of(bad, 1, "1F0")) in [place[:2] for place in faults_of(bad, "progress")]


def test_a_message_sent_and_received_twice_is_named():
    """The channel's ends agree; but what has been sent is gone."""
    bad = with_more(gpipe(2, 1), (0, Send(FIRST, 1)), (1, Recv(FIRST, 0)))
    text = "0SEND_F0 appears again, expected one Send per message"
    assert faults_of(bad, "matching") == [(0, len(bad.ops[0]) - 1, text)]
    assert faults_of(bad, "progress") == []


def test_a_message_that_nobody_else_uses_is_named():
    bad = with_more(gpipe(2, 1), (1, Send(LAST, 0)), (0, Recv(LAST, 1)))
    text = "1SEND_F0 is sent, but no other rank uses it"
    assert faults_of(bad, "matching") == [(1, len(bad.ops[1]) - 1, text)]


def test_a_message_to_a_rank_that_has_no_use_for_it_is_named():
    rows = [list(row) for row in lower(gpipe(3, 1)).ops]
    rows[0] = [Send(FIRST, 2) if isinstance(op, Send) else op for op in rows[0]]
    rows[1].remove(Recv(FIRST, 0))
    rows[2].insert(0, Recv(FIRST, 0))
    bad = make_schedule("astray", 3, 1, rows)
    assert faults_of(bad, "matching") == [(0, 1, "0SEND_F0 goes to rank 2, expected rank 1")]


def test_a_send_before_the_op_that_makes_it_is_named():
    bad = edited(lower(gpipe(2, 1)), 0, swapped("0F0", "0SEND_F0"))
    assert faults_of(bad, "matching") == [(0, 0, "0SEND_F0 comes before the op that makes it")]


@pytest.mark.parametrize("peer", [-1, 2])
@pytest.mark.parametrize(("rank", "op"), [(0, Send(FIRST, 1)), (1, Recv(FIRST, 0))])
def test_a_peer_that_is_no_rank_is_named(rank, op, peer):
    good = lower(gpipe(2, 1))
    at = place_of(good, rank, str(op))
    bad = edited(good, rank, lambda row: row.__setitem__(at, type(op)(FIRST, peer)))
    assert (rank, at, f"{op} names a peer outside of 2 ranks") in faults_of(bad, "matching")
