"""The report of a standstill: the error, where every rank is, and the Python stacks of all their threads, in a file."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import mkstemp
from typing import NamedTuple

from pipesched.executor import STACKS, RankFailed
from pipesched.executor.launch.progress_page import Whereabouts
from pipesched.executor.launch.standstill import RankState, lost_messages, standstill, standstill_table
from pipesched.schedules import Op

_STACKS_S, _POLL_S = 1.0, 0.02
"""How long ranks may take to write their stacks, and how often is looked."""


class StackFile(NamedTuple):
    """Where a process writes the stacks of its threads when it is told to."""

    pid: int
    path: Path


def reported_standstill(
    states: Mapping[int, RankState],
    places: Mapping[int, Whereabouts],
    ops_of: Callable[[int], Iterable[Op]],
    stacks: Mapping[int, str],
    *,
    is_on_cpus: bool,
) -> RankFailed:
    """Return the error that says at which rank all stand still, with the name of a report if one could be written.

    Args:
        states: What is known of every rank.
        places: Where every rank is.
        ops_of: Returns the lowered list of a rank.
        stacks: What ranks have said of the stacks of their threads.
        is_on_cpus: Whether what was posted has been sent: a GPU may not have come to it.
    """
    error = standstill(states, lost_messages(states, places, ops_of) if is_on_cpus else {})
    parts = [f"{error}\n", standstill_table(states)]
    parts += [f"rank {rank}:\n{text}" for rank, text in stacks.items()]
    try:
        descriptor, name = mkstemp(prefix="pipesched-standstill-", suffix=".txt")
        os.close(descriptor)
        Path(name).write_text("\n".join(parts), encoding="utf-8")
    except OSError:
        return error  # what is told on the terminal has to do
    return RankFailed(f"{error}; the stacks of all ranks are in {name}")


def stacks_in(stack_files: Mapping[int, StackFile]) -> dict[int, str]:
    """Return what the process of each rank says of its threads; nothing of one that does not come to it.

    Processes that a signal has stopped go on: else they could not say where they are. Who asks ends them.
    """
    with ExitStack() as stack:
        files = {}
        for rank, (_, path) in stack_files.items():  # before any goes on: it may come to its end, and be gone
            with suppress(OSError):
                files[rank] = stack.enter_context(path.open(errors="replace"))
        for rank in files:
            with suppress(ProcessLookupError):
                os.kill(stack_files[rank].pid, STACKS)
                os.kill(stack_files[rank].pid, signal.SIGCONT)
        stacks = dict.fromkeys(files, "")
        deadline = time.monotonic() + _STACKS_S
        while not all(stacks.values()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            stacks = {rank: stacks[rank] + file.read() for rank, file in files.items()}
        time.sleep(_POLL_S)  # what has begun to come comes whole
        return {rank: stacks[rank] + file.read() for rank, file in files.items()}
