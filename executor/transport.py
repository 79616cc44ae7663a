"""How messages travel between ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from torch import Tensor

from pipesched.executor.compression import is_compressed, pack, unpack
from pipesched.executor.errors import ExecutionError
from pipesched.executor.job import Compression
from pipesched.schedules.op import Message, Recv, Reduce, Send

Sum: TypeAlias = Callable[[], Tensor | None]
"""Returns a sum that was posted; None where the caller should give up its turn and ask again."""


class Transport(ABC):
    """One rank's end of its channels; a channel is a directed pair of ranks, in order."""

    @abstractmethod
    def send(self, op: Send, tensor: Tensor) -> None:
        """Post `tensor` for ``op.peer``; do not wait."""

    @abstractmethod
    def post(self, op: Recv) -> None:
        """Get ready for ``op.message`` from ``op.peer``; do not wait."""

    @abstractmethod
    def take(self, message: Message) -> Tensor | None:
        """Return the tensor of `message`, or None where the caller should give up its turn and ask again."""

    @abstractmethod
    def reduce(self, op: Reduce, tensor: Tensor) -> Sum:
        """Post `tensor`, to be summed over all ranks that reduce the stage; do not wait.

        The sum is the same to the last bit on each of them. Until it is there, nobody may change `tensor`.
        """

    @abstractmethod
    def flush(self) -> None:
        """Wait until everything sent has left."""


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

    def __init__(self, rank: int, mailroom: Mailroom, compression: Compression | None = None) -> None:
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
        require_same(Recv(message, peer), sent)
        del self._posted[message]
        return tensor

    def reduce(self, op: Reduce, tensor: Tensor) -> Sum:
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


def require_same(recv: Recv, sent: Message) -> None:
    """Refuse a Recv that stands at the place of another message in its channel.

    Raises:
        ExecutionError: The sender's message at this place is another one.
    """
    if sent != recv.message:
        raise ExecutionError(
            f"{recv}: rank {recv.peer} sends {Send(sent, 0)} at this place of the channel, expected "
            f"{Send(recv.message, 0)}; put the receives in the order of the sends"
        )
