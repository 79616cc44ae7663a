"""A span: one op on one rank, with its times."""

from __future__ import annotations

from dataclasses import dataclass

from pipesched.schedules.ops import Op, occupies_device


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

    @property
    def is_work(self) -> bool:
        """Whether the span keeps its device busy: its op does, for some time."""
        return occupies_device(self.op) and self.end_s > self.start_s
