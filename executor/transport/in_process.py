"""The transport between ranks of one process."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial

from torch import Tensor

from pipesched.executor import ExecutionError
from pipesched.executor.core import PendingReduction, Transport, require_expected
from pipesched.executor.transport.half_precision import is_compressed, pack, unpack
from pipesched.profiles import MessagePrecision
from pipesched.schedules import Message, Recv, Reduce, Send
from pipesched.schedules.semantics import MeetingKey, Meetings


class Mailroom:
    """All channels of ranks that live in one process: what is under way on them, and what is to be summed.

    Args:
        replicas: The ranks that reduce each stage, as from `reducers`.
    """

    def __init__(self, replicas: Mapping[int, Sequence[int]] | None = None) -> None:
        self.replicas = {} if replicas is None else replicas
        self.mail: dict[MeetingKey, tuple[Message, Tensor]] = {}
        self.terms: defaultdict[MeetingKey, dict[int, Tensor]] = defaultdict(dict)
        """The term of every rank that has come so far, for each reduction."""
        self.taken: Counter[MeetingKey] = Counter()
        """How many ranks have their sum."""


class LocalTransport(Transport):
    """All ranks in one process: a mailroom is the network.

    Args:
        rank: This one.
        mailroom: The mailroom that all ranks share.
        compression: Compression of the messages: they lose what they would lose on their way; None for none.
    """

    def __init__(self, rank: int, mailroom: Mailroom, compression: MessagePrecision | None = None) -> None:
        self._rank = rank
        self._room = mailroom
        self._compression = compression
        self._posted: dict[Message, tuple[Recv, MeetingKey]] = {}
        self._meetings = Meetings()

    def send(self, op: Send, tensor: Tensor) -> None:
        if self._compression is not None and is_compressed(tensor.dtype):
            tensor = unpack(pack(tensor), tensor.dtype, tensor.device).view(tensor.shape)
        self._room.mail[self._meetings.come(self._rank, op)] = (op.message, tensor)

    def post(self, op: Recv) -> None:
        self._posted[op.message] = (op, self._meetings.come(self._rank, op))

    def take(self, message: Message) -> Tensor | None:
        posted = self._posted.get(message)
        if posted is None or posted[1] not in self._room.mail:
            return None
        op, key = self._posted.pop(message)
        sent, tensor = self._room.mail.pop(key)
        require_expected(op, sent)
        return tensor

    def reduce(self, op: Reduce, tensor: Tensor) -> PendingReduction:
        if self._rank not in self._room.replicas.get(op.stage, ()):
            raise ExecutionError(f"{op}: the mailroom does not know this replica; give it the `reducers` of the lists")
        key = self._meetings.come(self._rank, op)
        self._room.terms[key][self._rank] = tensor
        return partial(self._take_reduction, self._room.replicas[op.stage], key)

    def _take_reduction(self, replicas: Sequence[int], key: MeetingKey) -> Tensor | None:
        terms = self._room.terms[key]
        if len(terms) < len(replicas):
            return None
        first, *others = (terms[rank] for rank in replicas)
        total = first.clone()
        for other in others:
            total += other
        self._room.taken[key] += 1
        if self._room.taken[key] == len(replicas):
            del self._room.terms[key], self._room.taken[key]
        return total

    def flush(self) -> None:
        """Nothing is under way: a message is there as soon as it is sent. The next run counts anew."""
        self._meetings.clear()
        for channel, number in [*self._room.mail]:
            if isinstance(channel, tuple) and channel[1] == self._rank:
                del self._room.mail[channel, number]
