"""Network options: assumptions of a simulation on messages, besides machines and costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

from pipesched.schedules import integer, shown

Protocol: TypeAlias = Literal["rendezvous", "eager"]
Sends: TypeAlias = Literal["posted", "blocking"]
Buffers: TypeAlias = Literal["pooled", "at_use", "per_microbatch"]
"""How receive buffers are allocated: as our executor does between processes, or on the streams of a GPU, or as PyTorch
does, one per micro-batch."""


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """How messages go, and their effect on senders.

    Attributes:
        protocol: Whether a transfer waits for the receiver's buffer (``"rendezvous"``) or not (``"eager"``).
        sends: Whether a Send only posts (``"posted"``), or keeps its rank until the message has left, and under
            rendezvous until it is there (``"blocking"``).
        chunk_bytes: Messages pass shared NICs in pieces of this size, interleaved with other messages, and reductions
            round by round; None for messages in one piece.
        slowdown: A device's computations run 1 + this times as long while a message or a reduction of its is in flight.
    """

    protocol: Protocol = "rendezvous"
    sends: Sends = "posted"
    chunk_bytes: int | None = None
    slowdown: float = 0.0

    def faults(self) -> Iterator[str]:
        """Say which of them are out of their range."""
        for name, words in (("protocol", get_args(Protocol)), ("sends", get_args(Sends))):
            word = getattr(self, name)
            if not isinstance(word, str) or word not in words:
                yield f"{name}: got {shown(word)}, expected {' or '.join(words)}"
        if self.chunk_bytes is not None and (integer(self.chunk_bytes) or 0) < 1:
            yield f"chunk_bytes: got {shown(self.chunk_bytes)}, expected at least 1; None sends whole messages"
        if not (isinstance(self.slowdown, int | float) and 0 <= self.slowdown <= _MOST_SLOWDOWN):
            yield f"slowdown: got {shown(self.slowdown)}, expected 0 to {_MOST_SLOWDOWN:g}; 0.1 is a tenth longer"


_MOST_SLOWDOWN = 100.0


USUAL_NETWORK = NetworkOptions()


def is_usual(network: NetworkOptions) -> bool:
    """Whether all options have their defaults; chunks matter to shared NICs alone."""
    return replace(network, chunk_bytes=None) == USUAL_NETWORK
