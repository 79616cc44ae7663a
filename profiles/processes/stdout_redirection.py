"""Redirection of stdout: what a user's model prints goes to stderr, because stdout is for results."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout


@contextmanager
def prints_to_stderr() -> Iterator[None]:
    """Let all that is written to stdout meanwhile go to stderr, also what libraries and child processes write."""
    if sys.__stdout__ is None or sys.__stderr__ is None:  # one was closed before we began
        with redirect_stdout(sys.stderr):
            yield
        return
    sys.stdout.flush()
    with redirect_stdout(sys.stderr), descriptor_as(1, 2):
        yield


@contextmanager
def descriptor_as(descriptor: int, other: int) -> Iterator[None]:
    """Let what is written to a file descriptor meanwhile go where the other one goes."""
    kept = os.dup(descriptor)
    try:
        os.dup2(other, descriptor)
        yield
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)
