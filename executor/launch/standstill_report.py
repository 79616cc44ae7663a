"""The report of a standstill: the error, where every rank is, and the Python stacks of all their threads, in a file."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import mkstemp
from typing import NamedTuple, TextIO

from pipesched.executor import LAST_STACKS, STACKS, RankFailed
from pipesched.executor.launch.progress_page import Whereabouts
from pipesched.executor.launch.standstill import RankState, lost_messages, standstill, standstill_table
from pipesched.profiles.processes import is_stopped, tell_main_thread
from pipesched.schedules.ops import Op

_STACKS_S, _POLL_S = 1.0, 0.02
"""Time that ranks may take to write their stacks, and time between two checks [s]."""


class StackFile(NamedTuple):
    """The file to which a process writes the stacks of its threads on request."""

    pid: int
    path: Path


def reported_standstill(
    states: Mapping[int, RankState],
    places: Mapping[int, Whereabouts],
    ops_of: Callable[[int], Iterable[Op]],
    stacks_behind: Callable[[RankFailed], Mapping[int, str] | None],
    *,
    is_on_cpus: bool,
) -> RankFailed:
    """Return the error that names the rank of a standstill, with the path of a report if one could be written.

    Args:
        states: State of every rank.
        places: Position of every rank.
        ops_of: Returns the lowered list of a rank.
        stacks_behind: Takes the error; returns the thread stacks of the ranks, or None if the run has ended for another
            reason. It may raise if the store is gone.
        is_on_cpus: Whether posted messages count as sent; a GPU may not have reached them yet.
    """
    error = standstill(states, lost_messages(states, places, ops_of) if is_on_cpus else {})
    report = _begun_report(f"{error}\n\n{standstill_table(states)}")
    if report is not None:
        error = RankFailed(f"{error}; the stacks of all ranks are in {report}")
    stacks = None
    try:
        stacks = stacks_behind(error)
    finally:
        if report is not None:
            _end_report(report, stacks)
    return error


def _end_report(report: Path, stacks: Mapping[int, str] | None) -> None:
    """Add the stacks to the report, or remove the report without stacks."""
    with suppress(OSError):  # the message on the terminal has to do
        if stacks is None:
            report.unlink()
        else:
            with report.open("a", encoding="utf-8") as file:
                file.writelines(f"\nrank {rank}:\n{text}" for rank, text in sorted(stacks.items()))


def _begun_report(text: str) -> Path | None:
    """Return a new file that begins with a text, or None if it cannot be written."""
    try:
        descriptor, name = mkstemp(prefix="pipesched-standstill-", suffix=".txt")
        os.close(descriptor)
        Path(name).write_text(text, encoding="utf-8")
    except OSError:
        return None
    return Path(name)


@contextmanager
def stacks_written_to(file: int | TextIO) -> Iterator[None]:
    """Let this process write the stacks of its threads to a file on request, where `stacks_in` reads them."""
    faulthandler.register(STACKS, file)
    faulthandler.register(LAST_STACKS, file, chain=True)
    try:
        yield
    finally:
        faulthandler.unregister(LAST_STACKS)
        faulthandler.unregister(STACKS)


def stacks_in(stack_files: Mapping[int, StackFile]) -> dict[int, str]:
    """Return the thread stacks of the process of each rank; empty for a process that does not write them in time.

    Stopped processes are asked last, because a stopped process must be continued to write its stacks. It ends right
    after writing, before its next op.
    """
    stopped = {rank for rank, (pid, _) in stack_files.items() if is_stopped(pid)}
    running = {rank: stack_files[rank] for rank in stack_files if rank not in stopped}
    stacks = _written(running, lambda pid: os.kill(pid, STACKS))
    return stacks | _written({rank: stack_files[rank] for rank in sorted(stopped)}, _ask_for_last)


def _ask_for_last(pid: int) -> None:
    tell_main_thread(pid, LAST_STACKS)
    os.kill(pid, signal.SIGCONT)


def _written(stack_files: Mapping[int, StackFile], ask: Callable[[int], None]) -> dict[int, str]:
    """Return the output of the processes to a request, as soon as no more arrives."""
    with ExitStack() as stack:
        files = {}
        for rank, (pid, path) in stack_files.items():
            with suppress(OSError):
                files[rank] = stack.enter_context(path.open(errors="replace"))
                ask(pid)
        stacks = dict.fromkeys(files, "")
        deadline, is_whole = time.monotonic() + _STACKS_S, not files
        while not is_whole and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            new = {rank: file.read() for rank, file in files.items()}
            stacks = {rank: stacks[rank] + text for rank, text in new.items()}
            is_whole = all(stacks.values()) and not any(new.values())
        return stacks
