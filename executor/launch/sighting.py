"""Sightings: positions of ranks under torchrun as they travel between machines, in ages, because clocks differ."""

from __future__ import annotations

import time
from typing import NamedTuple

from pipesched.executor import NOBODY
from pipesched.executor.launch.progress_page import ProgressPage, Whereabouts
from pipesched.executor.launch.standstill import is_stopped_at, state_of

SILENT_S = 1.0
"""Time without a sighting after which a process counts as silent [s]."""


class Sighting(NamedTuple):
    """The position of a rank.

    Attributes:
        number: Number of earlier sightings by the same process.
        is_own: Whether the process of the rank reports it itself.
        place: Position in the op list; -1 before the first op.
        num_ops: Ops begun in total.
        at_op_s: Time since the current op began [s].
        whom: The rank that this rank waits for, `EVERYBODY`, `ITS_CHECKPOINT` or `NOBODY`.
        waits_s: Time since the wait began [s].
        is_stopped: Whether a signal has stopped the process.
        text: The current op as its list writes it; empty before the first op.
        has_lost: Whether the rank has lost the connection to another rank.
        is_over: Whether the rank has ended its list.
        is_asked: Whether the rank is asked to leave.
        proposed: The micro-batch that is proposed as the last one of all lists; -1 if the rank knows no proposal.
        read: The farthest micro-batch that the rank has read, given that proposal.
    """

    number: int = 0
    is_own: bool = True
    place: int = -1
    num_ops: int = -1
    at_op_s: float = 0.0
    whom: int = NOBODY
    waits_s: float = 0.0
    is_stopped: bool = False
    text: str = ""
    has_lost: bool = False
    is_over: bool = False
    is_asked: bool = False
    proposed: int = -1
    read: int = 0

    @classmethod
    def on(cls, page: ProgressPage, *, is_own: bool) -> Sighting:
        """Return the position on the page of a process of this machine.

        Args:
            page: Page of one rank.
            is_own: Whether it is the page of this process.
        """
        where = page.read(0)
        is_stopped = is_stopped_at(where)
        if is_stopped:
            where = page.read_host(0)
        state = state_of(0, where, is_stopped=is_stopped)
        return cls(
            0, is_own, where.place, where.num_ops, state.at_op_s, state.whom, state.waits_s, is_stopped, where.text
        )


class Heard(NamedTuple):
    """The last new sighting of a rank, and when it came here [s of the monotonic clock of this machine]."""

    sighting: Sighting
    at_s: float

    @property
    def silent_s(self) -> float:
        """The time since then if the process counts as silent, else 0 [s]."""
        silent_s = time.monotonic() - self.at_s
        return silent_s if silent_s > SILENT_S else 0.0

    @property
    def where(self) -> Whereabouts:
        """The position by the clock of this machine; a silent rank waits for nobody."""
        seen = self.sighting
        since_ns, waits_since_ns = (int((self.at_s - age_s) * 1e9) for age_s in (seen.at_op_s, seen.waits_s))
        whom = NOBODY if self.silent_s else seen.whom
        return Whereabouts(seen.place, seen.num_ops, since_ns, waits_since_ns, whom, text=seen.text)
