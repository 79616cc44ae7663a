"""Worker processes that share work, end with this one, and load nothing from the working directory."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any, final

from pipesched.profiles.processes.child_process import end_with
from pipesched.profiles.processes.interrupts import hold_interrupts

_GARBAGE = 200_000
"""Objects between collections in those processes: predictions leave many behind, and few in circles."""
_SAFE_PATH = "PYTHONSAFEPATH"
_WORK: list[Callable[[Any], Any]] = []
"""In a worker: what it does with items."""


@final
class _Worker(SpawnProcess):
    """A process that hears of an interrupt only once it would end by it without a word."""

    def start(self) -> None:
        with hold_interrupts():  # which the process takes over
            super().start()


@final
class _WorkerContext(SpawnContext):
    Process = _Worker


@contextmanager
def worker_pool(num_processes: int, work: Callable[[Any], Any]) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of so many processes, which start as items come, and do `work` where they are given `work_on`.

    What is not begun in the end is not done, and what is under way when an exception comes is stopped.

    Args:
        num_processes: The most of them.
        work: What is done with an item; it is sent to every process once.
    """
    before, others = os.environ.get(_SAFE_PATH), set(active_children())
    os.environ[_SAFE_PATH] = "1"  # multiprocessing passes on no -P that it was not started with
    try:
        with ProcessPoolExecutor(num_processes, _WorkerContext(), _begin, (os.getpid(), work)) as pool:
            try:
                yield pool
            except BaseException:
                for process in set(active_children()) - others:
                    process.terminate()
                raise  # what is not begun fails with them: to cancel it as well would race with that
            pool.shutdown(wait=True, cancel_futures=True)
    finally:
        del os.environ[_SAFE_PATH]
        if before is not None:
            os.environ[_SAFE_PATH] = before


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let this process collect garbage as seldom as the workers do."""
    before = gc.get_threshold()
    gc.set_threshold(_GARBAGE)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def work_on(item: Any) -> Any:
    """Do the work of this process, which is a worker, with an item."""
    return _WORK[0](item)


def _begin(parent: int, work: Callable[[Any], Any]) -> None:
    end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # without a word: the parent says that it was interrupted
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    gc.set_threshold(_GARBAGE)
    _WORK.append(work)
