"""How messages travel between ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict

from torch import Tensor

from executor.errors import ExecutionError
from schedules.op import Message, Recv, Send


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
    def flush(self) -> None:
        """Wait until everything sent has left."""


class Mailroom:
    """All channels of ranks that live in one process: what was sent on each, in order."""

    def __init__(self) -> None:
        self.channels: defaultdict[tuple[int, int], list[tuple[Message, Tensor | None]]] = defaultdict(list)


class LocalTransport(Transport):
    """All ranks in one process: a list per channel is the network."""

    def __init__(self, rank: int, mailroom: Mailroom) -> None:
        self._rank = rank
        self._channels = mailroom.channels
        self._posted: dict[Message, tuple[int, int]] = {}
        self._num_posted: Counter[int] = Counter()

    def send(self, op: Send, tensor: Tensor) -> None:
        self._channels[self._rank, op.peer].append((op.message, tensor))

    def post(self, op: Recv) -> None:
        self._posted[op.message] = (op.peer, self._num_posted[op.peer])
        self._num_posted[op.peer] += 1

    def take(self, message: Message) -> Tensor | None:
        peer, place = self._posted.get(message, (-1, 0))
        mail = self._channels[peer, self._rank] if peer >= 0 else []
        if place >= len(mail):
            return None
        sent, tensor = mail[place]
        require_same(Recv(message, peer), sent)
        mail[place] = (sent, None)
        del self._posted[message]
        return tensor

    def flush(self) -> None:
        """Nothing is under way: a message is there as soon as it is sent. The next run counts anew."""
        self._num_posted.clear()
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
