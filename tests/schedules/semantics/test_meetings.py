"""The k-th of a channel meet, and the k-th Reduces of a stage, whatever the turns that ranks take."""

from hypothesis import given
from hypothesis import strategies as st

from pipesched.schedules.ops import Message, Payload, Recv, Reduce, Send
from pipesched.schedules.semantics import Meetings, channel_of, listed, meeting_reduces, transfers

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


def places(ops):
    return [(rank, index) for rank, index, _ in ops]


def test_transfers_have_the_message_and_both_posts_channel_by_channel_and_none_of_a_post_that_meets_none():
    assert [(message, places(ends)) for message, *ends in transfers(listed(LISTS))] == [
        (MESSAGES[2], [(1, 1), (0, 3)]),
        (MESSAGES[0], [(0, 0), (1, 0)]),
        (MESSAGES[1], [(0, 2), (1, 2)]),
    ]  # rank 0's Send to itself meets none
    one_recv = transfers(listed([LISTS[0], LISTS[1][2:]]))
    assert [(message, places(ends)) for message, *ends in one_recv] == [(MESSAGES[1], [(0, 0), (1, 0)])]


@given(st.lists(st.lists(st.tuples(st.booleans(), st.integers(0, 2)), max_size=12), min_size=3, max_size=3))
def test_whole_lists_meet_as_the_posts_of_ranks_that_take_turns(rows):
    message = MESSAGES[0]
    lists = [[Send(message, peer) if sends else Recv(message, peer) for sends, peer in row] for row in rows]
    meetings, ends = Meetings(), {}
    for place in listed(lists):
        ends.setdefault(meetings.come(place.rank, place.op), {})[type(place.op)] = place
    met = [(end[Send], end[Recv]) for end in ends.values() if len(end) == 2]
    assert sorted(places(pair) for pair in met) == sorted(places(pair) for _, *pair in transfers(listed(lists)))


def test_reduces_that_meet_stand_together():
    reductions = [places(reduces) for reduces in meeting_reduces(listed(LISTS))]
    assert reductions == [[(0, 1), (1, 3)], [(0, 5), (1, 5)], [(1, 4)]]
