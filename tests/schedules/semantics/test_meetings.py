"""The k-th of a channel meet, and the k-th Reduces of a stage, whatever the turns that ranks take."""

from hypothesis import given
from hypothesis import strategies as st

from pipesched.schedules import Message, Payload, Recv, Reduce, Send
from pipesched.schedules.semantics import Meetings, channel_of, meeting_reduces, transfers

MESSAGES = [Message(Payload.ACTIVATION, 0, microbatch) for microbatch in range(4)]
LISTS = (
    [Send(MESSAGES[0], 1), Reduce(0), Send(MESSAGES[1], 1), Recv(MESSAGES[2], 1), Send(MESSAGES[3], 0), Reduce(0)],
    [Recv(MESSAGES[0], 0), Send(MESSAGES[2], 0), Recv(MESSAGES[1], 0), Reduce(0), Reduce(1), Reduce(0)],
)


@given(st.permutations([0] * 6 + [1] * 6))
def test_posts_meet_whose_numbers_are_the_same_in_any_turns_of_the_ranks(turns):
    meetings, at = Meetings(), [0, 0]
    keys = ([], [])
    for rank in turns:
        keys[rank].append(meetings.come(rank, LISTS[rank][at[rank]]))
        at[rank] += 1
    assert keys[0] == [((0, 1), 0), (0, 0), ((0, 1), 1), ((1, 0), 0), ((0, 0), 0), (0, 1)]
    assert keys[1] == [((0, 1), 0), ((1, 0), 0), ((0, 1), 1), (0, 0), (1, 0), (0, 1)]


def test_a_post_comes_to_the_same_meeting_by_its_kind_and_as_an_op():
    by_op, by_kind = Meetings(), Meetings()
    for rank, row in enumerate(LISTS):
        for op in row:
            if not isinstance(op, Reduce):
                post = by_kind.send if isinstance(op, Send) else by_kind.recv
                assert by_op.come(rank, op) == post(rank, op.peer)


def test_both_ends_name_the_same_channel():
    assert channel_of(0, Send(MESSAGES[0], 1)) == channel_of(1, Recv(MESSAGES[0], 0)) == (0, 1)


def test_what_begins_anew_counts_from_the_first():
    meetings = Meetings()
    first = meetings.come(0, Reduce(3))
    assert meetings.come(0, Reduce(3)) == (3, 1)
    meetings.clear()
    assert meetings.come(0, Reduce(3)) == first == (3, 0)


def places_of(lists):
    return [(rank, op, (rank, index)) for rank, row in enumerate(lists) for index, op in enumerate(row)]


def test_transfers_have_the_places_of_both_posts_in_order_of_the_recvs_and_none_of_a_post_that_meets_none():
    assert transfers(places_of(LISTS)) == [
        (MESSAGES[2], (1, 1), (0, 3)),
        (MESSAGES[0], (0, 0), (1, 0)),
        (MESSAGES[1], (0, 2), (1, 2)),
    ]  # rank 0's Send to itself meets none
    assert transfers(places_of([LISTS[0], LISTS[1][2:]])) == [(MESSAGES[1], (0, 0), (1, 0))]


def test_reduces_that_meet_stand_together():
    assert meeting_reduces(places_of(LISTS)) == [[(0, 1), (1, 3)], [(0, 5), (1, 5)], [(1, 4)]]
