"""The standstill of a run: the rank that all others wait for, the waits of the ranks, and the report with stacks."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from tempfile import mkstemp
from typing import NamedTuple, TextIO, final

from pipesched.executor import EVERYBODY, ITS_CHECKPOINT, LAST_STACKS, NOBODY, STACKS, START_S, RankFailed, failed
from pipesched.executor.launch.progress_page import RankState
from pipesched.profiles.processes import is_stopped, tell_main_thread
from pipesched.schedules.ops import Compute, Message, Op, Overlap, Send, computes, needs_from_others, uses_up

_SHOWN_RANKS = 8
SLACK_S = 0.3
"""Delay until an outside observer sees that a rank has ended or that no rank moves [s]."""
_NO_WAIT_S = 10.0
"""Extra time without any move while no rank waits: an op may be slow [s]."""
_LONGEST_LOOK_S = 0.5
"""Time limit for the search of lost messages in op lists; messages not checked by then count as not lost [s]."""
ADVICE = "if an op takes this long, try a longer timeout"


@final
class Stillness:
    """Detects ranks that stand still for too long; a rank that writes a checkpoint may take as long as a start.

    Args:
        timeout_s: Longest wait of a rank for one message.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._seen = -1
        self._changed_s = self._written_s = time.monotonic()

    def is_over(self, states: Sequence[RankState], is_any_stopped: Callable[[], bool]) -> bool:
        """Return whether a rank has waited for another for too long, or no rank has moved.

        Args:
            states: States of all ranks.
            is_any_stopped: Returns whether a rank cannot move, as a signal has stopped it; called only if none moves.
        """
        if longest_wait_s(states) > self._timeout_s:
            return True
        if num_begun(states) != self._seen:
            self._seen, self._changed_s = num_begun(states), time.monotonic()
        since_s = max(self._changed_s, self._written_s)
        if _is_one_writing(states):
            since_s, self._written_s = self._changed_s, time.monotonic()
        still_s = time.monotonic() - since_s
        if still_s <= self._timeout_s:
            return False
        return is_any_stopped() or still_s > self._patience_s(states)

    def _patience_s(self, states: Sequence[RankState]) -> float:
        if not num_begun(states) or _is_one_writing(states):
            return max(START_S, self._timeout_s)
        return self._timeout_s + (SLACK_S if any(state.whom != NOBODY for state in states) else _NO_WAIT_S)


def _is_one_writing(states: Sequence[RankState]) -> bool:
    return any(state.whom == ITS_CHECKPOINT for state in states)


def num_begun(states: Sequence[RankState]) -> int:
    """Return the number of ops that all ranks have begun."""
    return sum(max(0, state.num_ops) for state in states)


def longest_wait_s(states: Sequence[RankState]) -> float:
    """Return the longest wait of a rank for another rank, among ranks that have begun their list."""
    return max((state.waits_s for state in states if state.num_ops > 0 and state.whom >= 0), default=0.0)


def lost_messages(states: Mapping[int, RankState], ops_of: Callable[[int], Iterable[Op]]) -> dict[int, Message]:
    """Return, by rank, the message that the rank waits for although its running sender has posted it often enough.

    The search ends after `_LONGEST_LOOK_S`; lost messages of the remaining ranks are not reported.

    Args:
        states: State of every rank.
        ops_of: Returns the lowered list of a rank.
    """
    lost, late_s = dict[int, Message](), time.monotonic() + _LONGEST_LOOK_S
    for rank, state in states.items():
        sender, op = states.get(state.whom) if state.is_waiting else None, state.op
        if (
            sender is None
            or sender.is_stopped
            or sender.ending is not None
            or sender.silent_s
            or not isinstance(op, Compute | Overlap)
        ):
            continue
        try:
            used, is_last = _used(op, ops_of(rank), state.place, late_s)
            if not used or is_last:
                continue  # after its last op it waits until its messages are received
            sent = _sent(used, rank, ops_of(sender.rank), sender.place, late_s)
        except TimeoutError:
            return lost
        if all(sent[message] >= count for message, count in used.items()):
            lost[rank] = _messages_for(op)[-1]
    return lost


def _used(op: Compute | Overlap, ops: Iterable[Op], place: int, late_s: float) -> tuple[Counter[Message], bool]:
    """Return how often a rank has needed each input of `op`, at `place`, and whether `op` is the last of the list."""
    needed, numbers, own = _messages_for(op), {part.microbatch for part in computes(op)}, iter(ops)
    used = Counter(
        message
        for before in _until(islice(own, place), late_s)
        for part in computes(before)
        if part.microbatch in numbers and uses_up(part)
        for message in _messages_for(part)
        if message in needed
    )
    used.update(needed)
    next(own, None)
    return used, next(own, None) is None


def _sent(messages: Container[Message], peer: int, ops: Iterable[Op], place: int, late_s: float) -> Counter[Message]:
    """Return how often a rank has sent messages to a peer, before this place in its list."""
    return Counter(
        op.message
        for op in _until(islice(ops, max(0, place)), late_s)
        if isinstance(op, Send) and op.peer == peer and op.message in messages
    )


def _until(ops: Iterable[Op], late_s: float) -> Iterator[Op]:
    for op in ops:
        if time.monotonic() > late_s:
            raise TimeoutError
        yield op


def _messages_for(op: Compute | Overlap) -> list[Message]:
    """Return the messages that an op needs from other stages."""
    return [message for part in computes(op) for message in needs_from_others(part, sys.maxsize)]


def standstill(states: Mapping[int, RankState], lost: Mapping[int, Message] | None = None) -> RankFailed:
    """Return the error that names the rank at which all waits end, its op, and the ranks that wait for it.

    Args:
        states: State of every rank.
        lost: Messages that were sent but did not arrive, by waiting rank.
    """
    if lost:
        return _link_failed(states, lost)
    first = max(
        states.values(), key=lambda state: (state.is_waiting, state.waits_s if state.is_waiting else state.at_op_s)
    )
    path, is_circle = _followed(states, first)
    last = path[-1]
    if is_circle:
        circle = ", ".join(_wait(state) for state in path[:_SHOWN_RANKS])
        return failed(path[0].rank, path[0].op, f"the ranks wait for each other in a circle: {circle}")
    if last.ending is not None:
        what = f"{last.ending} before the end of its op list"
    elif last.is_stopped:
        what = f"its process is stopped by a signal, and has stood still for {last.at_op_s:.1f} s"
    elif last.silent_s:
        what = (
            f"nothing has been heard of its process for {last.silent_s:.1f} s: the process is stopped, hangs or is cut "
            "off"
        )
    elif last.whom == ITS_CHECKPOINT:
        what = f"its checkpoint has not been written in {last.waits_s:.1f} s"
    else:
        what = f"it has stood still for {last.at_op_s:.1f} s"
    waiting = [*_waiting_for(states, last)]
    more = [f"and {len(waiting) - _SHOWN_RANKS} more"] if len(waiting) > _SHOWN_RANKS else []
    waits = [_wait(state) for state in waiting[:_SHOWN_RANKS]]
    advice = [ADVICE] if last.ending is None and not last.is_stopped else []
    return failed(last.rank, last.op, "; ".join([what, *([", ".join(waits + more)] if waits else []), *advice]))


def _link_failed(states: Mapping[int, RankState], lost: Mapping[int, Message]) -> RankFailed:
    """Return the error that names the rank that has waited longest for a lost message, and the sender."""
    state = max((states[rank] for rank in lost), key=lambda state: state.waits_s)
    message = lost[state.rank]
    what = f"the {message.payload.name.lower()} {message.microbatch} of stage {message.stage}"
    waits = [_wait(other) for other in states.values() if other.is_waiting and other.rank != state.rank][:_SHOWN_RANKS]
    told = f"it has waited {state.waits_s:.1f} s for {what}, which rank {state.whom} has sent: the link between "
    told += "them does not deliver in time"
    return failed(state.rank, state.op, "; ".join([told, *([", ".join(waits)] if waits else [])]))


def standstill_table(states: Mapping[int, RankState]) -> str:
    """Return a line for each rank: its op, its wait, and the times of both."""
    rows = [("rank", "op", "for", "waits for", "for", "process")]
    for state in states.values():
        waits = (_whom(state), f"{state.waits_s:.1f} s") if state.whom != NOBODY else ("-", "-")
        running = "stopped by a signal" if state.is_stopped else "silent" if state.silent_s else "runs"
        process = state.ending or running
        rows.append((str(state.rank), str(state.op or "its start"), f"{state.at_op_s:.1f} s", *waits, process))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n" for row in rows
    )


def _followed(states: Mapping[int, RankState], first: RankState) -> tuple[list[RankState], bool]:
    """Follow the waits from `first`; return (path, False), or (the ranks of a circle, True) if they run into one."""
    path = [first]
    while path[-1].is_waiting:
        state = path[-1]
        others = [other for other in states.values() if other not in path]
        following = states.get(state.whom) if state.whom != state.rank else None
        if following is None:  # several: one that does not wait, else the longest wait for a single rank
            following = max(
                others, key=lambda other: (not other.is_waiting, other.whom != EVERYBODY, other.waits_s), default=None
            )
        if following is None:
            return path, False
        if following in path:
            return path[path.index(following) :], True
        path.append(following)
    return path, False


def _waiting_for(states: Mapping[int, RankState], last: RankState) -> Iterator[RankState]:
    """Yield the ranks that wait for `last`, then the ranks that wait for these, and so on."""
    seen, front = {last.rank}, [last]
    while front:
        front = [
            state for state in states.values() if state.is_waiting and state.rank not in seen and _is_for(state, front)
        ]
        seen.update(state.rank for state in front)
        yield from front


def _is_for(state: RankState, others: Sequence[RankState]) -> bool:
    return state.whom == EVERYBODY or any(state.whom == other.rank for other in others)


def _wait(state: RankState) -> str:
    return f"{state} has waited {state.waits_s:.1f} s for {_whom(state)}"


def _whom(state: RankState) -> str:
    if state.whom == ITS_CHECKPOINT:
        return "its checkpoint"
    return "all others" if state.whom in (EVERYBODY, state.rank) else f"rank {state.whom}"


_STACKS_S, _POLL_S = 1.0, 0.02
"""Time that ranks may take to write their stacks, and time between two checks [s]."""


class StackFile(NamedTuple):
    """The file to which a process writes the stacks of its threads on request."""

    pid: int
    path: Path


def reported_standstill(
    states: Mapping[int, RankState],
    ops_of: Callable[[int], Iterable[Op]],
    stacks_behind: Callable[[RankFailed], Mapping[int, str] | None],
    *,
    is_on_cpus: bool,
) -> RankFailed:
    """Return the error that names the rank of a standstill, with the path of a report if one could be written.

    Args:
        states: State of every rank.
        ops_of: Returns the lowered list of a rank.
        stacks_behind: Takes the error; returns the thread stacks of the ranks, or None if the run has ended for another
            reason. It may raise if the store is gone.
        is_on_cpus: Whether posted messages count as sent; a GPU may not have reached them yet.
    """
    error = standstill(states, lost_messages(states, ops_of) if is_on_cpus else {})
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
    """Request output from the processes; return the output of each once it stops growing."""
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
