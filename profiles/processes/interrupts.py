"""Interrupts that cannot get lost: whoever swallows one is interrupted again, and who takes too long is ended.

    Ctrl-C ──► KeyboardInterrupt, wherever the main thread is: also in a `__del__`, or in what C calls back, where
                 │         Python prints and forgets it, and in libraries that take any exception for one of their own
                 ▼ every 0.1 s
               is it on its way up, through what cleans up?   then wait, but not for long: then leave
               is it nowhere?                                 then raise it again

A command that answers an interrupt with what it has says so (`take_interrupt`), and is let go on to its end. Who says
that the command ends has answered it, too (`tell_once`): it comes no more, and only the time that is left counts.
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
"""How long the way up may take [s]."""
_AGAIN_S = 0.3
"""Signals that come sooner one after the other are one [s]: who started us may pass on what we have heard ourselves."""


class _Interrupt:
    """The interrupt of this process: when it came, whether it is taken or told, and what ends the process."""

    came_s: float | None = None
    is_taken = False
    is_told = False
    is_held = False
    heard: tuple[signal.Signals, ...] = ()
    leave: Callable[[], NoReturn] | None = None


def persist_interrupts(leave: Callable[[], NoReturn]) -> None:
    """Let SIGINT and SIGTERM end what the main thread, which calls this, does; where SIGINT is ignored, it stays so.

    Args:
        leave: Ends the process, from within anything: when the way up takes too long, or a second signal comes.
    """
    _Interrupt.leave = leave
    sys.unraisablehook = _tell_others
    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    _Interrupt.heard = tuple(told for told in _STOPS if not (told is signal.SIGINT and is_ignored))
    _hear_by(_hear)
    atexit.register(_hear_by, signal.SIG_IGN)  # the last to be called: while Python itself ends, it would be a crash
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, _look)


def is_interrupted() -> bool:
    """Return whether an interrupt has come that nobody has taken: whatever goes wrong since is its doing."""
    return _Interrupt.came_s is not None and not _Interrupt.is_taken


def take_interrupt() -> None:
    """Say that the interrupt that has come is answered with what there is; another one ends the process."""
    _Interrupt.is_taken = True
    _stop_looking()


@contextmanager
def hold_interrupts() -> Iterator[None]:
    """Let no interrupt come between what belongs together; a process that is started meanwhile begins so, too."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    _Interrupt.is_held = True  # another thread may hear of one
    try:
        yield
    finally:
        _Interrupt.is_held = False
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def tell_once(tell: Callable[[], object]) -> None:
    """Let `tell` say that the command ends as it was interrupted, if nobody has; no signal comes in between."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_STOPS, signal.SIGALRM})
    try:
        if not _Interrupt.is_told:
            _Interrupt.is_told = _Interrupt.leave is not None  # else who calls commands as functions has several
            tell()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_interrupts() -> None:
    """Hear of none any more: all is done, and files take their places."""
    if _Interrupt.leave is not None and threading.current_thread() is threading.main_thread():
        _hear_by(signal.SIG_IGN)
        take_interrupt()


def leave_when_told(code: int) -> None:
    """Let a signal from now on end the process at once, as it would have ended: whatever keeps it, all is done.

    Args:
        code: Its exit code.
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
    assert _Interrupt.came_s is not None, "it has come"
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
    assert _Interrupt.leave is not None, "it is there before any signal is heard"
    _Interrupt.leave()


def _stop_looking() -> None:
    if _Interrupt.leave is not None and hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _tell_others(unraisable: sys.UnraisableHookArgs) -> None:
    """Say what cannot be raised, but for an interrupt, which is raised again."""
    if not is_interrupted():
        sys.__unraisablehook__(unraisable)
