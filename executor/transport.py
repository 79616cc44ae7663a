"""How messages travel between ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict, deque

from torch import Tensor

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
    """All channels of ranks that live in one process."""

    def __init__(self) -> None:
        self.channels: defaultdict[tuple[int, int], deque[tuple[Message, Tensor]]] = defaultdict(deque)


class LocalTransport(Transport):
    """All ranks in one process: a deque per channel is the network."""

    def __init__(self, rank: int, mailroom: Mailroom) -> None:
        self._rank = rank
        self._channels = mailroom.channels
        self._posted: dict[Message, int] = {}

    def send(self, op: Send, tensor: Tensor) -> None:
        self._channels[self._rank, op.peer].append((op.message, tensor))

    def post(self, op: Recv) -> None:
        self._posted[op.message] = op.peer

    def take(self, message: Message) -> Tensor | None:
        peer = self._posted.get(message)
        if peer is None:
            return None
        mail = self._channels[peer, self._rank]
        for position, (name, tensor) in enumerate(mail):
            if name == message:
                del mail[position], self._posted[message]
                return tensor
        return None

    def flush(self) -> None:
        """Nothing is under way: a message is there as soon as it is sent."""
