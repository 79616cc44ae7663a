"""Training runs in two processes at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

import torch

_Run = TypeVar("_Run")
_Result = TypeVar("_Result")


def two_at_once(function: Callable[[_Run], _Result], runs: Sequence[_Run]) -> list[_Result]:
    """Return the results of a module's function, in the order of its arguments; each process has one thread."""
    with ProcessPoolExecutor(2, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        return [*pool.map(function, runs)]
