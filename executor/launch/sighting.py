"""Ranks under torchrun as other processes see them: sightings, which travel between machines, and siblings.

A sighting is the position of a rank in ages, because clocks of machines differ. A sibling is another process of this
node, whose page, stacks and end this process sees.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, final

from pipesched.executor import NOBODY
from pipesched.executor.launch.progress_page import ProgressPage, Whereabouts
from pipesched.executor.launch.standstill import StackFile, is_stopped_at, state_of
from pipesched.profiles.processes import exit_code_of
from pipesched.schedules.ops import Op

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


ENDED = "its process ended before its list did"
"""The end of a process whose exit code is unknown."""


class ProcessFiles(NamedTuple):
    """A process, and the files that other processes of its node can open.

    Attributes:
        pid: Process id.
        page: Number of the file descriptor of its `ProgressPage`.
        stacks: Number of the file descriptor to which it writes its stacks.
    """

    pid: int
    page: int
    stacks: int

    @property
    def stack_file(self) -> StackFile:
        """The process and its file of stacks."""
        return StackFile(self.pid, self._path(self.stacks))

    def open_page(self) -> ProgressPage:
        """Return the page, which stays readable when the process has ended.

        Raises:
            OSError: The process has ended.
        """
        return ProgressPage.open(self._path(self.page))

    def _path(self, descriptor: int) -> Path:
        return Path(f"/proc/{self.pid}/fd/{descriptor}")


@final
class Sibling:
    """Another process of this node.

    Attributes:
        page: The page of its rank.
        stacks: The file of its stacks.
        descriptor: Becomes readable when the process ends.

    Raises:
        OSError: The process has ended.
    """

    def __init__(self, files: ProcessFiles) -> None:
        self.page, self.stacks = files.open_page(), files.stack_file
        self.descriptor = os.pidfd_open(files.pid)
        self._has_ended = False

    @property
    def is_running(self) -> bool:
        """Whether the rank is neither over nor known to have ended."""
        return not self._has_ended and self.page.read_host(0).pid > 0

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped the process."""
        return is_stopped_at(self.page.read_host(0))

    @property
    def op(self) -> Op | None:
        """The op at which the process is, or has ended; None before the first op."""
        return self.page.read_host(0).op

    def ending(self) -> str:
        """Note that the process has ended; return how, in words."""
        self._has_ended = True
        code = exit_code_of(self.stacks.pid)  # before the agent has asked for it, which comes soon
        if code is None:
            return ENDED
        if code < 0:
            return f"the process was killed by signal {-code}"
        return f"the process ended with exit code {code} before its list did"

    def kill(self) -> None:
        """End the process, unless it has ended."""
        with suppress(OSError):
            signal.pidfd_send_signal(self.descriptor, signal.SIGKILL)
