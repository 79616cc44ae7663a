"""A request to end a training run after a checkpoint: SIGTERM, or SIGUSR1, as SLURM can send it ahead of the end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pipesched.executor import PAUSE_SIGNALS

_open: list[list[int]] = []
"""The signals that have come, a list for who listens; of several who do the one furthest out."""


@contextmanager
def pause_requests(
    *, has_checkpoints: bool, signals: tuple[signal.Signals, ...] = PAUSE_SIGNALS
) -> Iterator[Callable[[], bool]]:
    """Yield what tells whether one of `signals` has come to this process meanwhile, or since one listened further out.

    A second one does what it did before: who cannot wait for the checkpoint ends the run at once. Nothing is heard
    where the run has no checkpoints, and in another thread than the main one.
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
