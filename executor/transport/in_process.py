"""The transport between ranks of one process: a message is an entry of a mailroom, which its receiver fetches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from pipesched.executor import ExecutionError
from pipesched.executor.core import HostStreams, PendingReduction, RankStreams, Signal, Transport, require_expected
from pipesched.executor.transport.half_precision import is_compressed, pack, unpack
from pipesched.profiles import MessagePrecision
from pipesched.profiles.models import Value, mapped
from pipesched.schedules.ops import Group, Message, Recv, Reduce, Send
from pipesched.schedules.semantics import MeetingKey, Meetings


@dataclass(slots=True)
class _Parcel:
    """A value that ranks fetch; its sender keeps it until all have.

    Attributes:
        sender: The rank that has made the value.
        ready: Event behind the ops that write to its tensors.
        num_left: Ranks that have not fetched it yet.
    """

    sender: int
    value: Value
    ready: Signal
    num_left: int

    def fetch(self, rank: int, streams: RankStreams) -> tuple[Value, Signal]:
        self.num_left -= 1
        if rank == self.sender:
            return self.value, self.ready
        return streams.fetch(self.value, self.ready, self.sender)


class Mailroom:
    """All channels of ranks that live in one process: the messages on them, and the terms of sums.

    Args:
        summands: Rank and stage of each Reduce that meets others, by group.
        streams: Streams of each rank; a rank without an entry is on a CPU.
    """

    def __init__(
        self,
        summands: Mapping[Group, Sequence[tuple[int, int]]] | None = None,
        streams: Mapping[int, RankStreams] | None = None,
    ) -> None:
        self.summands = {} if summands is None else summands
        self.streams = {} if streams is None else streams
        self.mail: dict[MeetingKey, tuple[Message, _Parcel]] = {}
        self.terms: defaultdict[MeetingKey, dict[tuple[int, int], _Parcel]] = defaultdict(dict)
        """The term of each rank and stage whose Reduce is posted."""


class LocalTransport(Transport):
    """A rank's end of the mailroom of its process; no call blocks the host.

    Args:
        mailroom: The mailroom that all ranks share.
        compression: Compression of the messages, which blocks the host; None for none.
    """

    def __init__(self, rank: int, mailroom: Mailroom, compression: MessagePrecision | None = None) -> None:
        self._rank = rank
        self._room = mailroom
        self._compression = compression
        self._streams = mailroom.streams.get(rank) or HostStreams()
        self._posted: dict[Message, tuple[Recv, MeetingKey]] = {}
        self._fetched: dict[Message, tuple[Value, Signal, int]] = {}
        """Copies of messages, each with the event behind it and its sender."""
        self._kept: list[_Parcel] = []
        """Parcels of this rank that others copy, whose values are freed in its own turns."""
        self._meetings = Meetings()

    def send(self, op: Send, value: Value) -> None:
        if self._compression is not None:
            value = mapped(_compressed, value)
        key = self._meetings.come(self._rank, op)
        self._room.mail[key] = (op.message, self._parcel(value, num_readers=1))

    def _parcel(self, value: Value, num_readers: int) -> _Parcel:
        self._free_fetched()
        parcel = _Parcel(self._rank, value, self._streams.record(), num_readers)
        if self._streams.are_behind:
            self._kept.append(parcel)
        return parcel

    def _free_fetched(self) -> None:
        self._kept = [parcel for parcel in self._kept if parcel.num_left]

    def post(self, op: Recv) -> None:
        self._posted[op.message] = (op, self._meetings.come(self._rank, op))
        self._fetch_posted()

    def take(self, message: Message) -> Value | None:
        self._fetch_posted()
        self._free_fetched()
        if message not in self._fetched:
            return None
        value, ready, sender = self._fetched.pop(message)
        self._streams.wait(ready, sender)
        return value

    def _fetch_posted(self) -> None:
        """Fetch each message that both ends have posted, so that copies run beside earlier ops."""
        for message in [message for message, (_, key) in self._posted.items() if key in self._room.mail]:
            op, key = self._posted.pop(message)
            sent, parcel = self._room.mail.pop(key)
            require_expected(op, sent)
            self._fetched[message] = (*parcel.fetch(self._rank, self._streams), op.peer)

    def reduce(self, op: Reduce, tensor: Tensor) -> PendingReduction:
        places = self._room.summands.get(op.group, ())
        if (self._rank, op.stage) not in places:
            raise ExecutionError(
                f"{op}: got a rank that the mailroom does not know, expected a rank of `summands`; pass the `summands` "
                "of the lists"
            )
        key = self._meetings.come(self._rank, op)
        self._room.terms[key][self._rank, op.stage] = self._parcel(tensor, num_readers=len(places))
        return partial(self._take_reduction, places, key)

    def _take_reduction(self, places: Sequence[tuple[int, int]], key: MeetingKey) -> Tensor | None:
        terms = self._room.terms[key]
        if len(terms) < len(places):
            return None
        total: Tensor | None = None
        for place in places:  # in one order, so that all ranks have the same sum to the last bit
            term, ready = terms[place].fetch(self._rank, self._streams)
            self._streams.wait(ready, place[0])
            assert isinstance(term, Tensor), "as it was posted"
            total = term.clone() if total is None else total.add_(term)
        if not terms[places[0]].num_left:
            del self._room.terms[key]
        self._free_fetched()
        return total

    def flush(self) -> None:
        """Begin the next run's channels anew; unreceived messages are dropped."""
        self._free_fetched()
        self._meetings.clear()
        for channel, number in [*self._room.mail]:
            if isinstance(channel, tuple) and channel[1] == self._rank:
                del self._room.mail[channel, number]


def _compressed(tensor: Tensor) -> Tensor:
    """Return a tensor as it arrives from a message in half precision; tensors of other types stay."""
    if not is_compressed(tensor.dtype):
        return tensor
    arrived = unpack(pack(tensor), tensor.dtype, tensor.device).view(tensor.shape)
    return arrived.requires_grad_(tensor.requires_grad)
