"""Sessions: how long what runs start is kept, and whether this process is itself a rank of torchrun's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from pipesched.executor.launch import end_server


def close() -> None:
    """End what runs have started in this process: the server that ranks are forked from, with all its processes.

    It is kept from one run to the next, because loading torch takes seconds, and holds some 300 MB. The next run starts
    another. Where nothing is left, nothing happens.
    """
    end_server()


@contextmanager
def session() -> Iterator[None]:
    """Keep what runs start for as long as the block lasts: ``with pipesched.session(): ...``."""
    try:
        yield
    finally:
        close()


def is_rank() -> bool:
    """Return whether torchrun has started this process as one of several ranks."""
    return all(os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
