"""Clocks of ranks, aligned by messages in both directions: each message arrives after it was sent.

    rank 0   sent ─┐      ┌─> arrived        w(0 -> 1) = least (arrived on 1 - sent on 0) of all messages 0 -> 1
                   │      │                  w(1 -> 0) = the same of all messages 1 -> 0
    rank 1         └─> arrived  sent         -w(1 -> 0) <= offset of 1 - offset of 0 <= w(0 -> 1)

With d(i -> j), the shortest path from i to j by these w, rank j is within [-d(j -> 0), d(0 -> j)] of rank 0. With the
middles of these intervals every message arrives after it was sent: they are the average of two solutions, the upper
and the lower ends. The uncertainty is half the width: half the round-trip latency of the quickest messages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipesched.profiles import ProfileError

_Edges = Mapping[tuple[int, int], float]


@dataclass(frozen=True, slots=True)
class MessageTimes:
    """The times of one message, each end by the clock of its own rank.

    Attributes:
        sender: Rank of the sender.
        receiver: Rank of the receiver.
        sent_ns: A time no later than the departure [ns].
        arrived_ns: A time no earlier than the arrival [ns].
    """

    sender: int
    receiver: int
    sent_ns: int
    arrived_ns: int


@dataclass(frozen=True, slots=True)
class ClockAlignment:
    """The offsets of the ranks' clocks to the clock of rank 0.

    Attributes:
        offsets_ns: Per rank, subtracted from its times [ns].
        uncertainties_ns: Per rank, the largest error of the offset on either side [ns].
        contradiction_ns: Time added to every message so that none arrives before it was sent [ns]; 0 if clocks run at
            one speed.
    """

    offsets_ns: tuple[int, ...]
    uncertainties_ns: tuple[int, ...]
    contradiction_ns: int = 0


def align_clocks(num_ranks: int, messages: Iterable[MessageTimes]) -> ClockAlignment:
    """Return the offset of every rank's clock to the clock of rank 0.

    Raises:
        ProfileError: A rank has no messages to or from the others, even through third ranks.
    """
    least: dict[tuple[int, int], float] = {}
    for message in messages:
        edge = message.sender, message.receiver
        least[edge] = min(least.get(edge, math.inf), message.arrived_ns - message.sent_ns)
    contradiction_ns = math.ceil(max(0, -_least_mean_of_circles(num_ranks, least)))
    least = {edge: width + contradiction_ns for edge, width in least.items()}
    upper = _distances(num_ranks, least)
    lower = [-distance for distance in _distances(num_ranks, {(j, i): width for (i, j), width in least.items()})]
    for rank in range(num_ranks):
        if not math.isfinite(upper[rank] - lower[rank]):
            way = f"to rank {rank}" if math.isinf(upper[rank]) else f"from rank {rank}"
            raise ProfileError(
                f"clocks: got no messages {way}, expected them both ways, to align the clocks of all ranks by; try "
                "traces of a whole step with its backward passes, or `has_one_clock=True` if all ranks have one"
            )
    pairs = list(zip(lower, upper, strict=True))
    offsets = tuple(round((low + high) / 2) for low, high in pairs)
    return ClockAlignment(offsets, tuple(math.ceil((high - low) / 2) for low, high in pairs), contradiction_ns)


def _distances(num_ranks: int, edges: _Edges) -> list[float]:
    """Return the length of the shortest path from rank 0 to every rank; infinite without a path."""
    distances: list[float] = [0, *[math.inf] * (num_ranks - 1)]
    for _ in range(num_ranks):
        before = list(distances)
        for (start, end), width in edges.items():
            distances[end] = min(distances[end], distances[start] + width)
        if distances == before:
            break
    return distances


def _least_mean_of_circles(num_ranks: int, edges: _Edges) -> float:
    """Return the least mean width of the edges of a circle (Karp, 1978); infinite without a circle."""
    ways: list[list[float]] = [[0] * num_ranks]  # ways[k][j]: the shortest walk of k edges that ends in j
    for _ in range(num_ranks):
        last, longer = ways[-1], [math.inf] * num_ranks
        for (start, end), width in edges.items():
            longer[end] = min(longer[end], last[start] + width)
        ways.append(longer)
    return min(
        (
            max((whole - ways[k][end]) / (num_ranks - k) for k in range(num_ranks))
            for end, whole in enumerate(ways[-1])
            if math.isfinite(whole)
        ),
        default=math.inf,
    )
