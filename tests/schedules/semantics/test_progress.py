import pytest

from pipesched.schedules import make_schedule
from pipesched.schedules.builders import CATALOGUE, build
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Message, Payload, Recv, Reduce, Send, Step, backward, forward
from pipesched.schedules.semantics import Communication
from pipesched.schedules.semantics.progress import Blocked, progress
from tests.schedules.brute_force import made, wanted
from tests.schedules.hand_schedules import replicated, v_shaped

F0 = Message(Payload.ACTIVATION, 0, 0)


def test_every_op_of_a_good_schedule_runs_once_in_its_ranks_order_and_after_all_that_it_needs():
    for schedule in (v_shaped(), replicated(), *(build(name, 4, 8) for name in CATALOGUE)):
        assert progress(lower(schedule)).blocked == ()
        outcome, there = progress(schedule), set()
        assert outcome.blocked == ()
        for rank, row in enumerate(schedule.ops):
            assert [index for r, index in outcome.order if r == rank] == list(range(len(row)))
        for rank, index in outcome.order:
            op = schedule.ops[rank][index]
            assert set(wanted(op, schedule.num_stages)) <= there
            there.update(made(op))


def test_a_wait_for_what_comes_later_in_the_same_list_is_named():
    (stuck,) = progress(make_schedule("x", 1, 1, [[backward(0, 0), forward(0, 0)]])).blocked
    assert (stuck.rank, stuck.index, stuck.op) == (0, 0, backward(0, 0))
    assert stuck.waits_for == Message(Payload.ACTIVATION, 0, 0)


def test_a_message_is_there_only_once_both_sides_have_posted():
    message = Message(Payload.ACTIVATION, 0, 0)
    sender = [forward(0, 0), Send(message, 1)]
    without = progress(make_schedule("x", 2, 1, [sender, [forward(1, 0), Recv(message, 0)]]))
    assert [(stuck.rank, stuck.index) for stuck in without.blocked] == [(0, 2), (1, 0)]
    assert progress(make_schedule("x", 2, 1, [sender, [Recv(message, 0), forward(1, 0)]])).blocked == ()


def test_the_end_of_a_list_waits_for_its_sends_unless_they_are_buffered():
    """As gloo and NCCL do: a Send that nobody receives never leaves."""
    schedule = make_schedule("x", 1, 1, [[forward(0, 0), Send(Message(Payload.ACTIVATION, 0, 0), 1)], []])
    for communication in Communication:
        expected = [] if communication is Communication.BUFFERED else [Blocked(0, 2, None, None)]
        assert list(progress(schedule, communication).blocked) == expected


@pytest.mark.parametrize(
    ("first", "second", "safe"),
    [
        ("S0 R0", "R0 S0", "buffered channel device pair rank batched"),
        ("S0 R0", "S0 R0", "buffered channel device batched"),
        ("R0 S0", "R0 S0", "buffered channel device batched"),
        ("S0 | R0", "S0 | R0", "buffered channel device"),
        ("S0 S1 R0", "R0 S0 R1", "buffered channel device batched"),
        ("S0 S1 | R0", "R0 R1 | S0", "buffered channel device pair rank batched"),
    ],
)
def test_two_ranks_that_exchange_messages_come_through_where_their_queues_allow_it(first, second, safe):
    """S a Send to the other rank, R a Recv from it; the bar is an op of another kind: the end of a batch."""
    rows = [[Step(0) if word == "|" else exchanged(word, rank) for word in text.split()]
            for rank, text in enumerate((first, second))]  # fmt: skip
    schedule = make_schedule("x", 2, 2, rows)
    through = [communication.value for communication in Communication if not progress(schedule, communication).blocked]
    assert through == safe.split()


def exchanged(word: str, rank: int) -> Send | Recv:
    """Return a Send or Recv between two ranks: rank 0 sends activations, rank 1 gradients."""
    is_activation = (word[0] == "S") == (rank == 0)
    message = Message(*((Payload.ACTIVATION, 0) if is_activation else (Payload.GRADIENT, 1)), int(word[1:]))
    return (Send if word[0] == "S" else Recv)(message, 1 - rank)


def test_three_ranks_in_a_ring_come_through_unless_each_has_one_queue():
    """Each sends to the next before it receives from the last: no pair is at odds, but all three are."""
    rows = []
    for rank in range(3):
        ahead, behind = (Message(Payload.ACTIVATION, 0, r) for r in (rank, (rank - 1) % 3))
        rows.append([Send(ahead, (rank + 1) % 3), Step(0), Recv(behind, (rank - 1) % 3)])
    schedule = make_schedule("ring", 1, 3, rows)
    stuck = {communication for communication in Communication if progress(schedule, communication).blocked}
    assert stuck == {Communication.RANK, Communication.BATCHED}


def test_a_reduce_posts_and_the_next_step_waits_until_every_replica_has_come_to_it():
    rows = [[Reduce(0), forward(1, 0), Step(0)], [forward(0, 0), Send(F0, 0), Reduce(0)], [Reduce(0), Step(0)]]
    rows[0].insert(1, Recv(F0, 1))
    order = progress(make_schedule("x", 2, 1, rows)).order
    assert len(order) == 9
    assert max(order.index(place) for place in ((0, 0), (1, 2), (2, 0))) < min(map(order.index, ((0, 3), (2, 1))))
    assert order.index((0, 0)) < order.index((0, 2))


def test_the_end_of_a_list_waits_for_its_reduces():
    rows = [[Reduce(0), Step(0)], [forward(0, 0), Reduce(0)], [Reduce(0), Step(0), Reduce(0), forward(0, 1)]]
    (stuck,) = progress(make_schedule("x", 1, 2, rows)).blocked
    assert (stuck.rank, stuck.index, stuck.op, stuck.waits_for) == (2, 4, None, None)
