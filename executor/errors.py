"""The errors of a run: a rank that fails, a lost peer, or an impossible request."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import assert_never

from pipesched.profiles import ProfileError
from pipesched.schedules import ScheduleError
from pipesched.schedules.common import OneLineError, error_text, is_out_of_memory, shortened, users_lines
from pipesched.schedules.formats import MORE_FILES
from pipesched.schedules.ops import Compute, Op, Overlap, Recv, Send, StageOp

_LONGEST = 1000
"""Longest text of an exception of a user's layer in a message, in characters."""
_MOST_CALLS = 12
"""Most calls in a user's code in a message about its exception."""
_MORE_ROOM = "try smaller micro-batches, more stages or recomputation"


class ExecutionError(OneLineError):
    """A run cannot start as requested."""


class RankFailed(ExecutionError):  # noqa: N818 -- named for what happened
    """A rank failed before the end of its op list, and the run ended."""


class PeerLost(RankFailed):
    """A rank waited in vain for another one, which reports its own reason."""


def failed(rank: int, op: Op | None, reason: object) -> RankFailed:
    """Return the error that names a rank, its op and the op's micro-batch."""
    kind = PeerLost if isinstance(reason, PeerLost) else RankFailed
    reason = _advised(reason)
    if op is None:
        return kind(f"rank {rank} failed before its first op: {reason}")
    match op:
        case Compute():
            microbatch = f" (micro-batch {op.microbatch})"
        case Send() | Recv():
            microbatch = f" (micro-batch {op.message.microbatch})"
        case Overlap() | StageOp():
            microbatch = ""
        case _:
            assert_never(op)
    return kind(f"rank {rank} failed at {op}{microbatch}: {reason}")


def _advised(reason: object) -> str:
    """Return the reason, with advice if the system was out of files, or PyTorch or Python out of memory."""
    text, raised = _told(reason) or type(reason).__name__, ""
    if isinstance(reason, BaseException) and not isinstance(reason, OneLineError):
        text, raised = shortened(" ".join(text.split()), _LONGEST), _raised(reason)  # a user's layer may say anything
    if os.strerror(errno.EMFILE) in text and MORE_FILES not in text:
        return f"{text}; {MORE_FILES}"
    is_out = is_out_of_memory(reason) if isinstance(reason, BaseException) else "out of memory" in text
    if is_out and _MORE_ROOM not in text:
        return f"{' '.join(text.split())[:200]}; {_MORE_ROOM}"
    return text + raised


def _told(reason: object) -> str:
    try:
        return str(reason)
    except Exception:  # noqa: BLE001 -- a user's exception may not know what it says
        return ""


def _raised(error: BaseException) -> str:
    """Return the kind of an error, and the last calls in a user's code that led to it, the innermost first."""
    calls = [f"{file}:{line} in {function}" for file, line, function in users_lines(error)[: -1 - _MOST_CALLS : -1]]
    return f" ({', '.join([type(error).__name__, *calls])})"


class RunEnded(Exception):  # noqa: N818 -- nothing is wrong
    """Raised by a listener to end the run early; no rank has failed."""


@contextmanager
def starting(rank: int) -> Iterator[None]:
    """Name the rank in errors before its first op, such as errors of a user's code or of a full device.

    Raises:
        RankFailed: An error other than ExecutionError and ProfileError, which have their own message.
    """
    try:
        yield
    except (ExecutionError, ProfileError):
        raise
    except Exception as error:  # a user's code may raise anything
        message = error_text(error)
        raise failed(rank, None, f"{type(error).__name__}: {message}") from error


@contextmanager
def writing(rank: int) -> Iterator[None]:
    """Name the rank in errors of writing, between its ops or after them.

    Raises:
        RankFailed: A file cannot be written.
    """
    try:
        yield
    except PeerLost:
        raise
    except (ExecutionError, ScheduleError) as error:
        raise RankFailed(f"rank {rank} failed to write: {error}") from error


NOBODY, EVERYBODY, ITS_CHECKPOINT = -1, -2, -3
"""Values for the awaited rank of a wait: no rank, several other ranks, or the rank's own checkpoint."""

_wait_listeners: list[Callable[[int], None]] = []


def listen_to_waits(listener: Callable[[int], None]) -> None:
    """Call `listener` with the awaited rank at each wait of this process, as in `waiting_for`, then with `NOBODY`."""
    _wait_listeners[:] = [listener]


@contextmanager
def waits_told_to(listener: Callable[[int], None]) -> Iterator[None]:
    """Call `listener` with each wait inside the block, in place of the present listener."""
    before = [*_wait_listeners]
    listen_to_waits(listener)
    try:
        yield
    finally:
        _wait_listeners[:] = before


@contextmanager
def waiting_for(what: str, whom: int = EVERYBODY) -> Iterator[None]:
    """Turn an error of torch.distributed during a wait into one line.

    Args:
        what: The awaited event, in words.
        whom: The awaited rank, `EVERYBODY` or `ITS_CHECKPOINT`.

    Raises:
        PeerLost: The wait failed.
    """
    is_told = threading.current_thread() is threading.main_thread()  # a writing thread delays no rank
    listeners = tuple(_wait_listeners) if is_told else ()
    for listener in listeners:
        listener(whom)
    try:
        yield
    except RuntimeError as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        # gloo begins with a line of its source, and ends with a guess at the cause
        reason = re.sub(r"^\[(enforce fail at )?\S+:\d+\] |\. This is typically caused by .*", "", reason)
        reason = re.sub(r"^\S+ [!=<>]+ \S+\. \S+ vs \S+\. (?=\S)", "", reason)  # drop the comparison, too
        raise PeerLost(f"waited for {what}: {_advised(shortened(reason, _LONGEST))}") from error
    for listener in listeners:
        listener(NOBODY)
