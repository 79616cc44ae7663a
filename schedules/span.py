"""A span: one op on one rank, with its times."""

from __future__ import annotations

from dataclasses import dataclass

from pipesched.schedules.ops import Op, occupies_device


@dataclass(frozen=True, slots=True)
class Span:
    """One op on one rank.

    Attributes:
        posted_s: Time at which the rank reached the op [s]; the op waits from here to `start_s`.
        start_s: Start of the work [s]: of the computation, or of the transfer of a Send or Recv.
        end_s: End of the work [s].
    """

    rank: int
    op: Op
    posted_s: float
    start_s: float
    end_s: float

    @property
    def is_work(self) -> bool:
        """Whether the span keeps its device busy: its op runs on the device and takes time."""
        return occupies_device(self.op) and self.end_s > self.start_s
