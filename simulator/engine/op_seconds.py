"""Seconds that are given for a single op, in place of what the model says of it: measured, drawn or supposed.

    Compute, Overlap, Step, Average     reached ── waits for messages ── own ───── work ──── own ──── next one reached
                                                   late_s of a Recv      before_s  work_s    after_s
    Send, Recv, Reduce                  reached ── own ─── posted ────── own ──── next one reached
                                                   before_s              after_s

A message that nobody waits for may be late for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipesched.schedules import Schedule
from pipesched.simulator import SimulationError


@dataclass(frozen=True, slots=True)
class OpSeconds:
    """What one op takes; all in seconds as they pass, whatever the device's speed and whoever shares it.

    None is what the model says: costs and devices of the work, links of the rest.

    Attributes:
        work_s: Seconds of its work.
        before_s: Seconds of its rank alone, before the work or the posting, when all that the op waits for is there.
        after_s: Seconds of its rank alone, until it comes to the next op.
        late_s: How much later than the network says a Recv or Reduce is over; negative: earlier.
    """

    work_s: float | None = None
    before_s: float | None = None
    after_s: float | None = None
    late_s: float = 0.0


AS_MODELLED = OpSeconds()
"""Nothing is given."""


def require_given(given: Sequence[Sequence[OpSeconds]], schedule: Schedule) -> None:
    """Refuse seconds that are of other lists than those of the lowered `schedule`.

    Raises:
        SimulationError: There are more or fewer of them on a rank than it has ops.
    """
    counts, expected = [len(row) for row in given], [len(row) for row in schedule.ops]
    if counts != expected:
        raise SimulationError(
            f"{schedule.name}: got seconds of {counts} ops on the ranks, expected {expected}; give them for the "
            "lowered lists"
        )
