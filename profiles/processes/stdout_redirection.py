"""Redirection of stdout: prints of a user's model go to stderr, because stdout is for results."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout


@contextmanager
def prints_to_stderr() -> Iterator[None]:
    """Redirect stdout to stderr inside the block, also for libraries and child processes."""
    if sys.__stdout__ is None or sys.__stderr__ is None:  # one was closed before we began
        with redirect_stdout(sys.stderr):
            yield
        return
    sys.stdout.flush()
    with redirect_stdout(sys.stderr), descriptor_as(1, 2):
        yield


@contextmanager
def descriptor_as(descriptor: int, other: int) -> Iterator[None]:
    """Redirect a file descriptor to another one inside the block."""
    kept = os.dup(descriptor)
    try:
        os.dup2(other, descriptor)
        yield
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)
