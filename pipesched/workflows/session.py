"""Sessions: the lifetime of the processes that runs start, and whether this process is a rank of torchrun."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from pipesched.executor.launch import end_server


def close() -> None:
    """End the server that forks the ranks of runs, with all its processes.

    The server stays from one run to the next, because loading torch takes seconds, and holds some 300 MB. The next run
    starts another server. Without a server, nothing happens.
    """
    end_server()


@contextmanager
def session() -> Iterator[None]:
    """Keep the processes of runs until the block ends: ``with pipesched.session(): ...``."""
    try:
        yield
    finally:
        close()


def is_rank() -> bool:
    """Return whether torchrun has started this process as one of several ranks."""
    return all(os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
