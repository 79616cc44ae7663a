"""Siblings: the other processes of a node of torchrun, whose page, stacks and end a process sees."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, final

from pipesched.executor.launch.progress_page import ProgressPage, is_stopped_at
from pipesched.executor.launch.standstill import StackFile
from pipesched.profiles.processes import exit_code_of
from pipesched.schedules.ops import Op

ENDED = "its process ended before the end of its op list"
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
        return f"the process ended with exit code {code} before the end of its op list"

    def kill(self) -> None:
        """End the process, unless it has ended."""
        with suppress(OSError):
            signal.pidfd_send_signal(self.descriptor, signal.SIGKILL)
