"""Delay every Reduce of gradients until just before its Step, in any schedule with replicas.

Two ranks hold the same two stages; one of them is shown. A Reduce takes the time of B:

    as soon as they are there   F0 F1 B1 B0 .. Step Step
                                         R1 R0
    late                        F0 F1 B1 B0 .. Step .. Step
                                            R1      R0

A Reduce only posts, and the stage's next Step waits for the sum, so the ops between Reduce and Step hide the
reduction. No op hides a delayed Reduce, as if gradients were summed after the whole backward.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from pipesched.schedules import Schedule
from pipesched.schedules.ops import Op, Reduce, awaits_sum


def delay_reduces(schedule: Schedule) -> Schedule:
    """Return `schedule`, lowered or not, with every Reduce right before the next Step, or other sum, of its stage.

    Reduces without a later Step come at the end of the op list.
    """
    return replace(schedule, lists=schedule.changed(_late))


def _late(row: Iterable[Op]) -> Iterator[Op]:
    waiting: list[Reduce] = []
    for op in row:
        if isinstance(op, Reduce) and not op.is_over_stages:
            waiting.append(op)
            continue
        if awaits_sum(op) and Reduce(op.stage) in waiting:
            waiting.remove(Reduce(op.stage))
            yield Reduce(op.stage)
        yield op
    yield from waiting
