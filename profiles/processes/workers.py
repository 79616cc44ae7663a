"""Worker processes that share work, end with this one, and load nothing from the working directory."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

from pipesched.profiles.processes.child_process import end_with

_GARBAGE = 200_000
"""Objects between collections in those processes: predictions leave many behind, and few in circles."""
_SAFE_PATH = "PYTHONSAFEPATH"


@contextmanager
def worker_pool(num_processes: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of so many processes; what is not begun in the end is not done."""
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"  # multiprocessing passes on no -P that it was not started with
    try:
        with ProcessPoolExecutor(num_processes, get_context("spawn"), _begin, (os.getpid(),)) as pool:
            try:
                yield pool
            finally:
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


def _begin(parent: int) -> None:
    end_with(parent)
    gc.set_threshold(_GARBAGE)
