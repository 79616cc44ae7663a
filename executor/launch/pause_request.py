"""A request to end a training run after a checkpoint: SIGTERM, or SIGUSR1, which SLURM can send before a job ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pipesched.executor import PAUSE_SIGNALS

_open: list[list[int]] = []
"""The signals received, one list per listener; nested listeners share the outermost list."""


@contextmanager
def pause_requests(
    *, has_checkpoints: bool, signals: tuple[signal.Signals, ...] = PAUSE_SIGNALS
) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether one of `signals` has arrived, here or at an outer `pause_requests`.

    A second signal has its earlier effect and ends the run at once, without the checkpoint. The function always returns
    False if the run has no checkpoints, or outside the main thread.
    """
    if not has_checkpoints or threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    if _open:
        heard = _open[0]
        yield lambda: bool(heard)
        return
    asked: list[int] = []
    before = {told: signal.getsignal(told) or signal.SIG_DFL for told in signals}

    def restore() -> None:
        for told, handler in before.items():
            signal.signal(told, handler)

    def note(told: int, frame: object) -> None:  # noqa: ARG001 -- as the system calls it
        asked.append(told)
        restore()

    for told in signals:
        signal.signal(told, note)
    _open.append(asked)
    try:
        yield lambda: bool(asked)
    finally:
        _open.clear()
        restore()
