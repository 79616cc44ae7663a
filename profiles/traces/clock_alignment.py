"""Align the clocks of ranks by messages in both directions: each message arrives after it was sent.

    rank 0   sent ─┐      ┌─> arrived        w(0 -> 1) = least (arrived on 1 - sent on 0) of all messages 0 -> 1
                   │      │                  w(1 -> 0) = the same of all messages 1 -> 0
    rank 1         └─> arrived  sent         -w(1 -> 0) <= offset of 1 - offset of 0 <= w(0 -> 1)

Let d(i -> j) be the length of the shortest path from i to j with lengths w. The offset of rank j to rank 0 is within
[-d(j -> 0), d(0 -> j)]. The result is the middle of each interval: with these offsets every message arrives after it
was sent, because they are the average of two solutions, the upper and the lower ends. The uncertainty is half the
width of the interval: half the round-trip latency of the fastest messages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipesched.profiles import ProfileError

_Edges = Mapping[tuple[int, int], float]


@dataclass(frozen=True, slots=True)
class MessageTimes:
    """The times of one message, each by the clock of the rank at this end.

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
        offsets_ns: Offset of each rank, to subtract from its times [ns].
        uncertainties_ns: Largest error of each offset, in either direction [ns].
        contradiction_ns: Time added to every message so that no message arrives before it was sent [ns]; 0 if all
            clocks run at one speed.
    """

    offsets_ns: tuple[int, ...]
    uncertainties_ns: tuple[int, ...]
    contradiction_ns: int = 0


def align_clocks(num_ranks: int, messages: Iterable[MessageTimes]) -> ClockAlignment:
    """Return the offset of every rank's clock to the clock of rank 0.

    Raises:
        ProfileError: A rank has no messages to or from rank 0, not even through other ranks.
    """
    least: dict[tuple[int, int], float] = {}
    for message in messages:
        edge = message.sender, message.receiver
        least[edge] = min(least.get(edge, math.inf), message.arrived_ns - message.sent_ns)
    contradiction_ns = math.ceil(max(0, -_least_mean_of_circles(num_ranks, least)))
    least = {edge: width + contradiction_ns for edge, width in least.items()}
    # the lower ends are the shortest paths to rank 0: from rank 0 along reversed edges
    upper = _distances(num_ranks, least)
    lower = [-distance for distance in _distances(num_ranks, {(j, i): width for (i, j), width in least.items()})]
    for rank in range(num_ranks):
        if not math.isfinite(upper[rank] - lower[rank]):
            way = f"to rank {rank}" if math.isinf(upper[rank]) else f"from rank {rank}"
            raise ProfileError(
                f"clocks: got no messages {way}, expected messages in both directions, to align the clock of the rank; "
                "try traces of a whole step with its backward passes, or `has_one_clock=True` if all ranks have one"
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
    """Return the least mean width of the edges of a cycle (Karp, 1978); infinite without a cycle."""
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
