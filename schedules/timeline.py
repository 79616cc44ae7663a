"""A timeline: op lists with times, whether predicted or measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pipesched.schedules.op import Op, Recv, Send

LONGEST_S = 7 * 24 * 3600.0
"""Longest op that is emulated and longest wait that is asked for [s], a week: what every clock and sleep can take."""


@dataclass(frozen=True, slots=True)
class Span:
    """One op on one rank.

    Attributes:
        posted_s: When the rank reached the op [s]; it waits from here to `start_s`.
        start_s: When the work began: of a Compute its computation, of a Send or Recv the transfer.
        end_s: When the work was over.
    """

    rank: int
    op: Op
    posted_s: float
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class MemorySample:
    """Bytes that `device` holds from `time_s` on, `kind` by kind (``weights``, ``activations``, ...)."""

    device: int
    time_s: float
    bytes_by_kind: tuple[tuple[str, int], ...]

    @property
    def total_bytes(self) -> int:
        """Sum over the kinds."""
        return sum(num_bytes for _, num_bytes in self.bytes_by_kind)


@dataclass(frozen=True, slots=True)
class Timeline:
    """Every span of a run. Readers never ask whether it was simulated or measured.

    Attributes:
        name: The schedule's name.
        source: ``"predicted"`` or ``"measured"``; a label for people.
        spans: In order of rank, then of the rank's list.
        rank_to_device: The device of every rank.
        memory: Samples in order of device, then time; empty when memory was not looked at. Of two at one time the
            first is the most that was held on the way through it, the second what is held from then on.
    """

    name: str
    source: str
    spans: tuple[Span, ...]
    rank_to_device: tuple[int, ...]
    memory: tuple[MemorySample, ...] = ()

    @property
    def devices(self) -> tuple[int, ...]:
        """The devices in use, in ascending order."""
        return tuple(sorted(set(self.rank_to_device)))

    @property
    def work(self) -> tuple[Span, ...]:
        """The spans that occupy a device: all but those of Send and Recv."""
        return tuple(span for span in self.spans if not isinstance(span.op, Send | Recv))

    @property
    def start_s(self) -> float:
        """When the first work began [s]."""
        return min((span.start_s for span in self.work), default=0.0)

    @property
    def makespan_s(self) -> float:
        """Time from the first start of work to its last end [s]."""
        return max((span.end_s for span in self.work), default=0.0) - self.start_s

    def of_rank(self, rank: int) -> Iterator[Span]:
        """Yield the spans of one rank, in its list's order."""
        return (span for span in self.spans if span.rank == rank)

    def from_zero(self) -> Timeline:
        """Return the same timeline with its first work at 0 s."""
        zero = self.start_s
        spans = tuple(
            replace(s, posted_s=s.posted_s - zero, start_s=s.start_s - zero, end_s=s.end_s - zero) for s in self.spans
        )
        memory = tuple(replace(sample, time_s=sample.time_s - zero) for sample in self.memory)
        return replace(self, spans=spans, memory=memory)
