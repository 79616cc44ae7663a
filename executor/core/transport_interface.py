"""The interface of every transport: how a rank sends, receives and reduces tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor

from pipesched.executor import ExecutionError
from pipesched.schedules.ops import Message, Recv, Reduce, Send

PendingReduction: TypeAlias = Callable[[], Tensor | None]
"""Returns the sum of a posted reduction, or None if the caller must give up its turn and ask again."""


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
        """Return the tensor of `message`, or None if the caller must give up its turn and ask again."""

    @abstractmethod
    def reduce(self, op: Reduce, tensor: Tensor) -> PendingReduction:
        """Post `tensor`, to be summed over all ranks that reduce the stage; do not wait.

        The sum is the same to the last bit on each rank. Until it has arrived, `tensor` must not change.
        """

    @abstractmethod
    def flush(self) -> None:
        """Wait until everything sent has left."""


def require_expected(recv: Recv, sent: Message) -> None:
    """Refuse a Recv that stands at the place of another message in its channel.

    Raises:
        ExecutionError: The sender's message at this place is another one.
    """
    if sent != recv.message:
        raise ExecutionError(
            f"{recv}: rank {recv.peer} sends {Send(sent, 0)} at this place of the channel, expected "
            f"{Send(recv.message, 0)}; put the receives in the order of the sends"
        )
