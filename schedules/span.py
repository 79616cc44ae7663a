"""A span: one op on one rank, with its times."""

from __future__ import annotations

from dataclasses import dataclass

from pipesched.schedules.op import Op, occupies_device


@dataclass(frozen=True, slots=True)
class Span:
    """One op on one rank.

    Attributes:
        posted_s: When the rank reached the op [s]; it waits from here to `start_s`.
        start_s: When the work began [s]: of a Compute its computation, of a Send or Recv the transfer.
        end_s: When the work was over [s].
    """

    rank: int
    op: Op
    posted_s: float
    start_s: float
    end_s: float


def is_work(span: Span) -> bool:
    """Return whether a span keeps its device busy: its op does, for some time."""
    return occupies_device(span.op) and span.end_s > span.start_s
