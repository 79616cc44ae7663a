"""Seconds given for a single op, in place of the model's seconds: measured, drawn or assumed.

    Compute, Overlap, Step, Average     reached ── waits for messages ── own ───── work ──── own ──── next one reached
                                                   late_s of a Recv      before_s  work_s    after_s
    Send, Recv, Reduce                  reached ── own ─── posted ────── own ──── next one reached
                                                   before_s              after_s

A message that no op waits for may be late without effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipesched.schedules import Schedule
from pipesched.simulator import SimulationError


@dataclass(frozen=True, slots=True)
class OpSeconds:
    """The times of one op; all in elapsed seconds, whatever the speed and the other users of the device.

    None stands for the model's value: costs and devices for the work, links for the rest.

    Attributes:
        work_s: Seconds of its work.
        before_s: Seconds of its rank alone, before the work or the posting, when all inputs of the op are there.
        after_s: Seconds of its rank alone, until it comes to the next op.
        late_s: Delay of a Recv or Reduce after its end on the network; negative if earlier.
    """

    work_s: float | None = None
    before_s: float | None = None
    after_s: float | None = None
    late_s: float = 0.0


AS_MODELLED = OpSeconds()
"""Nothing is given."""


def require_given(given: Sequence[Sequence[OpSeconds]], schedule: Schedule) -> None:
    """Refuse seconds that do not match the lists of the lowered `schedule`.

    Raises:
        SimulationError: The number of given seconds of a rank differs from its number of ops.
    """
    counts, expected = [len(row) for row in given], [len(row) for row in schedule.ops]
    if counts != expected:
        raise SimulationError(
            f"{schedule.name}: got seconds of {counts} ops on the ranks, expected {expected}; give them for the "
            "lowered lists"
        )
