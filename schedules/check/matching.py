"""Check that every Send meets its Recv.

Every message is sent once, after it is made, to the rank that uses it. On every channel (a directed pair of ranks),
the k-th Send and the k-th Recv name the same message.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from pipesched.schedules import Schedule
from pipesched.schedules.check.finding import Finding
from pipesched.schedules.ops import Message, Recv, Send, computes, gives
from pipesched.schedules.semantics import Channel, Meetings


def matching(schedule: Schedule) -> Iterator[Finding]:
    """Yield the faults of Sends and Recvs; lists without communication have none."""
    if not schedule.is_lowered:
        return
    sends, recvs = _posts(schedule)
    for channel in sorted(sends.keys() | recvs.keys()):
        sender, receiver = channel
        if not 0 <= sender < schedule.num_ranks or not 0 <= receiver < schedule.num_ranks:
            index, op = (sends.get(channel) or recvs[channel])[0]
            rank = sender if channel in sends else receiver
            yield Finding("matching", rank, index, f"{op} names a peer outside of {schedule.num_ranks} ranks")
            continue
        yield from _compare(channel, sends.get(channel, {}), recvs.get(channel, {}))
    yield from _addresses(schedule)


_Posts = dict[int, tuple[int, Send | Recv]]
"""The (index, op) posted on a channel, by the number of its meeting."""


def _posts(schedule: Schedule) -> tuple[dict[Channel, _Posts], dict[Channel, _Posts]]:
    """Return the Sends and the Recvs of each channel."""
    sends: defaultdict[Channel, _Posts] = defaultdict(dict)
    recvs: defaultdict[Channel, _Posts] = defaultdict(dict)
    meetings = Meetings()
    for rank, row in enumerate(schedule.ops):
        for index, op in enumerate(row):
            if isinstance(op, Send):
                channel, number = meetings.send(rank, op.peer)
                sends[channel][number] = index, op
            elif isinstance(op, Recv):
                channel, number = meetings.recv(rank, op.peer)
                recvs[channel][number] = index, op
    return sends, recvs


def _compare(channel: Channel, sends: _Posts, recvs: _Posts) -> Iterator[Finding]:
    sender, receiver = channel
    sent, received = Counter(_messages(sends)), Counter(_messages(recvs))
    unsent, unreceived = received - sent, sent - received
    if unsent or unreceived:
        for index, op in recvs.values():
            if unsent[op.message] > 0:
                unsent[op.message] -= 1
                yield Finding("matching", receiver, index, f"{op} has no Send on rank {sender}")
        for index, op in sends.values():
            if unreceived[op.message] > 0:
                unreceived[op.message] -= 1
                yield Finding("matching", sender, index, f"{op} has no Recv on rank {receiver}")
        return
    for number, (i, send) in sends.items():
        j, recv = recvs[number]
        if send.message != recv.message:
            expected = Recv(send.message, sender)
            yield Finding(
                "matching", receiver, j,
                f"{recv} is out of order: rank {sender} sends {send} at this place (its op {i}), expected {expected}",
            )  # fmt: skip
            return


def _messages(posts: _Posts) -> Iterator[Message]:
    return (op.message for _, op in posts.values())


def _addresses(schedule: Schedule) -> Iterator[Finding]:
    """Yield messages that are sent twice, before they are made, or to a rank that does not use them."""
    route = schedule.routes()
    for rank, row in enumerate(schedule.ops):
        made: set[Message] = set()
        sent: set[Message] = set()
        for index, op in enumerate(row):
            made.update(message for part in computes(op) if (message := gives(part)) is not None)
            if not isinstance(op, Send):
                continue
            if op.message not in made:
                yield Finding("matching", rank, index, f"{op} comes before the op that makes it")
            if op.message in sent:
                yield Finding("matching", rank, index, f"{op} appears again, expected one Send per message")
            sent.add(op.message)
            user = route.get((op.message.receiver, op.message.microbatch))
            if user is None or user == rank:
                yield Finding("matching", rank, index, f"{op} is sent, but no other rank uses it")
            elif user != op.peer:
                yield Finding("matching", rank, index, f"{op} goes to rank {op.peer}, expected rank {user}")
