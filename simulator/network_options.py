"""Network options: assumptions of a simulation on messages, besides machines and costs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, TypeAlias

from pipesched.schedules.common import Description

MAX_JITTER = 10.0
"""Largest sigma of jitter: far beyond any machine; much more would overflow."""

Protocol: TypeAlias = Literal["rendezvous", "eager"]
Sends: TypeAlias = Literal["posted", "blocking"]
Buffers: TypeAlias = Literal["pooled", "at_use", "per_microbatch"]
"""How receive buffers are allocated: as our executor does between processes, or on the streams of a GPU, or as PyTorch
does, one per micro-batch."""


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """How messages go, and their effect on senders.

    Under ``rendezvous`` a transfer waits for the receiver's buffer; a blocking Send then keeps its rank until the
    message is there. In chunks, messages on shared NICs are interleaved, and reductions go round by round.
    """

    panel: ClassVar[str] = "Network"
    protocol: Annotated[
        Protocol,
        Description(
            "Start of a transfer: after both sides have posted (rendezvous), or after the sender has posted (eager)."
        ),
    ] = "rendezvous"
    sends: Annotated[
        Sends, Description("Return of a Send: at once (posted), or after the message has left (blocking).")
    ] = "posted"
    chunk_bytes: Annotated[
        int | None,
        Description("Size of the pieces of a message on shared NICs: 64KiB (default: whole messages).", least=1),
    ] = None
    slowdown: Annotated[
        float,
        Description(
            "Slowdown x of ops beside a message or a reduction in flight, which take 1 + x times as long.",
            least=0.0,
            most=100.0,
        ),
    ] = 0.0


USUAL_NETWORK = NetworkOptions()


def is_usual(network: NetworkOptions) -> bool:
    """Whether all options have their defaults; chunks matter to shared NICs alone."""
    return replace(network, chunk_bytes=None) == USUAL_NETWORK
