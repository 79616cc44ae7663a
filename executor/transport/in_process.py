"""The transport between ranks of one process."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial

from torch import Tensor

from pipesched.executor import ExecutionError, MessagePrecision
from pipesched.executor.core import PendingReduction, Transport, require_expected
from pipesched.executor.transport.half_precision import is_compressed, pack, unpack
from pipesched.schedules import Message, Recv, Reduce, Send


class Mailroom:
    """All channels of ranks that live in one process: what is under way on each, by place; and what is to be summed.

    Args:
        replicas: The ranks that reduce each stage, as from `reducers`.
    """

    def __init__(self, replicas: Mapping[int, Sequence[int]] | None = None) -> None:
        self.replicas = {} if replicas is None else replicas
        self.channels: defaultdict[tuple[int, int], dict[int, tuple[Message, Tensor]]] = defaultdict(dict)
        self.terms: defaultdict[tuple[int, int], dict[int, Tensor]] = defaultdict(dict)
        """By stage and number of the sum: the term of every rank that has come so far."""
        self.taken: Counter[tuple[int, int]] = Counter()
        """How many ranks have their sum."""


class LocalTransport(Transport):
    """All ranks in one process: a mailroom is the network.

    Args:
        rank: This one.
        mailroom: Of all.
        compression: Of the messages: they lose what they would lose on their way; None for none.
    """

    def __init__(self, rank: int, mailroom: Mailroom, compression: MessagePrecision | None = None) -> None:
        self._rank = rank
        self._room = mailroom
        self._channels = mailroom.channels
        self._compression = compression
        self._posted: dict[Message, tuple[int, int]] = {}
        self._num_posted: Counter[int] = Counter()
        self._num_sent: Counter[int] = Counter()
        self._num_sums: Counter[int] = Counter()

    def send(self, op: Send, tensor: Tensor) -> None:
        if self._compression is not None and is_compressed(tensor.dtype):
            tensor = unpack(pack(tensor), tensor.dtype, tensor.device).view(tensor.shape)
        self._channels[self._rank, op.peer][self._num_sent[op.peer]] = (op.message, tensor)
        self._num_sent[op.peer] += 1

    def post(self, op: Recv) -> None:
        self._posted[op.message] = (op.peer, self._num_posted[op.peer])
        self._num_posted[op.peer] += 1

    def take(self, message: Message) -> Tensor | None:
        peer, place = self._posted.get(message, (-1, 0))
        if peer < 0 or place not in self._channels[peer, self._rank]:
            return None
        sent, tensor = self._channels[peer, self._rank].pop(place)
        require_expected(Recv(message, peer), sent)
        del self._posted[message]
        return tensor

    def reduce(self, op: Reduce, tensor: Tensor) -> PendingReduction:
        if self._rank not in self._room.replicas.get(op.stage, ()):
            raise ExecutionError(f"{op}: the mailroom does not know this replica; give it the `reducers` of the lists")
        key = (op.stage, self._num_sums[op.stage])
        self._num_sums[op.stage] += 1
        self._room.terms[key][self._rank] = tensor
        return partial(self._take_sum, key)

    def _take_sum(self, key: tuple[int, int]) -> Tensor | None:
        replicas, terms = self._room.replicas[key[0]], self._room.terms[key]
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
        self._num_posted.clear()
        self._num_sent.clear()
        self._num_sums.clear()
        for (_, receiver), mail in self._channels.items():
            if receiver == self._rank:
                mail.clear()
