"""A transport over links that lose messages on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from torch import Tensor

from pipesched.executor.core import PendingReduction, Transport
from pipesched.schedules.ops import Message, Recv, Reduce, Send


@final
class LossyTransport(Transport):
    """A transport that loses messages to some ranks, after the first ones.

    Args:
        inner: Transport of the delivered messages.
        left: Number of messages to each of these ranks that are still delivered; counted down.
        on_loss: Called at each lost message.
    """

    def __init__(
        self, inner: Transport, left: dict[int | None, int], on_loss: Callable[[], None] = lambda: None
    ) -> None:
        self._inner = inner
        self._left = left
        self._on_loss = on_loss

    def send(self, op: Send, tensor: Tensor) -> None:
        if op.peer in self._left:
            if not self._left[op.peer]:
                self._on_loss()
                return
            self._left[op.peer] -= 1
        self._inner.send(op, tensor)

    def post(self, op: Recv) -> None:
        self._inner.post(op)

    def take(self, message: Message) -> Tensor | None:
        return self._inner.take(message)

    def reduce(self, op: Reduce, tensor: Tensor) -> PendingReduction:
        return self._inner.reduce(op, tensor)

    def flush(self) -> None:
        self._inner.flush()
