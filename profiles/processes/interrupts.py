"""Reliable interrupts: a swallowed interrupt is raised again, and a process that takes too long is ended.

    Ctrl-C ──► KeyboardInterrupt, wherever the main thread is: also in a `__del__`, or in a callback from C, where
                 │         Python prints and forgets it, and in libraries that catch all exceptions
                 ▼ every 0.1 s
               is it passing through code that cleans up?          then wait, but not for long: then exit
               has it been swallowed?                              then raise it again

A command that answers an interrupt with its partial results calls `take_interrupt`, and then runs to its end. After
code has reported the end of the command with `tell_once`, the interrupt is not raised again, but the time limit still
applies.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

_STOPS = (signal.SIGINT, signal.SIGTERM)
_LOOK_S = 0.1
_LONGEST_S = 0.6
"""Longest time from an interrupt to its answer or the end of the process [s]."""
_AGAIN_S = 0.3
"""Signals within this time count as one [s]: a parent may pass on a signal that this process has received too."""


class _Interrupt:
    """The interrupt of this process: its time, its state, and the function that ends the process."""

    came_s: float | None = None
    is_taken = False
    is_told = False
    is_held = False
    heard: tuple[signal.Signals, ...] = ()
    leave: Callable[[], NoReturn] | None = None


def persist_interrupts(leave: Callable[[], NoReturn]) -> None:
    """Let SIGINT and SIGTERM end the work of the main thread, the caller; an ignored SIGINT stays ignored.

    Args:
        leave: Ends the process at once, if cleaning up takes too long or a second signal comes.
    """
    _Interrupt.leave = leave
    sys.unraisablehook = _tell_others
    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    _Interrupt.heard = tuple(told for told in _STOPS if not (told is signal.SIGINT and is_ignored))
    _hear_by(_hear)
    atexit.register(_hear_by, signal.SIG_IGN)  # called last: an interrupt while Python ends would look like a crash
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, _look)


def is_interrupted() -> bool:
    """Return whether an interrupt has come and is unanswered; all later errors are then due to the interrupt."""
    return _Interrupt.came_s is not None and not _Interrupt.is_taken


def take_interrupt() -> None:
    """Mark the interrupt as answered with the present results; another interrupt ends the process."""
    _Interrupt.is_taken = True
    _stop_looking()


@contextmanager
def hold_interrupts() -> Iterator[None]:
    """Hold back interrupts inside the block; a process that starts inside begins with blocked interrupts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    _Interrupt.is_held = True  # the system may deliver the signal to another thread
    try:
        yield
    finally:
        _Interrupt.is_held = False
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def tell_once(tell: Callable[[], object]) -> None:
    """Call `tell`, which reports the interrupt, only once per process; signals are blocked meanwhile."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_STOPS, signal.SIGALRM})
    try:
        if not _Interrupt.is_told:
            _Interrupt.is_told = _Interrupt.leave is not None  # without a command, every interrupt is reported
            tell()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_interrupts() -> None:
    """Ignore further interrupts: the work is done, and files are moved to their places."""
    if _Interrupt.leave is not None and threading.current_thread() is threading.main_thread():
        _hear_by(signal.SIG_IGN)
        take_interrupt()


def leave_when_told(code: int) -> None:
    """Let a further signal end the process at once, after all its work.

    Args:
        code: Exit code of the process.
    """
    _hear_by(lambda *_: os._exit(code))


def _hear_by(handler: Callable[[int, FrameType | None], Any] | signal.Handlers) -> None:
    for told in _Interrupt.heard:
        signal.signal(told, handler)


def _hear(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 -- as the system calls it
    now_s = time.monotonic()
    if _Interrupt.came_s is None:
        _Interrupt.came_s = now_s
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, _LOOK_S, _LOOK_S)
        if not _Interrupt.is_held:
            raise KeyboardInterrupt
        return
    if now_s > _Interrupt.came_s + _AGAIN_S:
        _leave()


def _look(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 -- as the system calls it
    if not is_interrupted():
        return
    assert _Interrupt.came_s is not None, "is_interrupted() has checked it"
    if time.monotonic() > _Interrupt.came_s + _LONGEST_S:
        _leave()
    error, is_on_its_way = sys.exception(), False
    while error is not None and not is_on_its_way:
        is_on_its_way = isinstance(error, KeyboardInterrupt | GeneratorExit)
        error = error.__context__
    if not (is_on_its_way or _Interrupt.is_held or _Interrupt.is_told):
        raise KeyboardInterrupt


def _leave() -> NoReturn:
    _stop_looking()
    assert _Interrupt.leave is not None, "persist_interrupts sets it before the handlers"
    _Interrupt.leave()


def _stop_looking() -> None:
    if _Interrupt.leave is not None and hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _tell_others(unraisable: sys.UnraisableHookArgs) -> None:
    """Report an unraisable exception, unless there is an interrupt, which is raised again."""
    if not is_interrupted():
        sys.__unraisablehook__(unraisable)
