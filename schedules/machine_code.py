"""Machine code for loops over numbers: they run as plain Python over lists until loading numba pays.

A loop is a function in words that numba knows too. A process counts the steps of all its loops; from `BREAK_EVEN` on
they run compiled, over NumPy's arrays, however short they are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

BREAK_EVEN = 200_000
"""Steps of a process from which on loading machine code pays."""

_steps_run = 0


def is_hot(num_steps: int = 0) -> bool:
    """Count steps that are to be run; return whether they, and what follows, run as machine code."""
    global _steps_run
    _steps_run += num_steps
    return _steps_run >= BREAK_EVEN and has_numba()


@cache
def has_numba() -> bool:
    """Whether there is something that compiles."""
    return find_spec("numba") is not None


@cache
def compiled(loop: Callable[..., Any], parts: tuple[Callable[..., Any], ...] = ()) -> Callable[..., Any]:
    """Return a loop as machine code, which is kept on disk, and beside which other threads run.

    It has no fast mathematics, so that sums are the same.

    Args:
        loop: The loop.
        parts: Functions that it calls.

    Raises:
        ImportError: There is no numba.
    """
    import numba
    from numba.extending import register_jitable

    for part in parts:
        register_jitable(forceinline=True)(part)
    result: Callable[..., Any] = numba.njit(cache=True, nogil=True)(loop)
    return result


def loop_in(loop: Callable[..., Any], *, in_arrays: bool) -> Callable[..., Any]:
    """Return a loop for arrays, which is compiled, or for lists, which is the loop itself."""
    return compiled(loop) if in_arrays else loop


def filled(count: int, number: int, *, in_arrays: bool, are_small: bool = False) -> Any:
    """Return so many of a number, as a list, or as an array of int32, or of int8 if they are small."""
    if not in_arrays:
        return [number] * count
    import numpy as np

    return np.full(count, number, np.int8 if are_small else np.int32)


def filled_rows(count: int, width: int, *, in_arrays: bool) -> Any:
    """Return rows of zeros, as lists or as one array of int32."""
    if not in_arrays:
        return [[0] * width for _ in range(count)]
    import numpy as np

    return np.zeros((count, width), np.int32)


def converted(numbers: Any, *, in_arrays: bool, are_small: bool = False) -> Any:
    """Return numbers as a list, or as an array of int32, or of int8 if they are small; as they are if they are one."""
    if not in_arrays:
        return numbers if isinstance(numbers, list) else numbers.tolist()
    import numpy as np

    return np.ascontiguousarray(numbers, np.int8 if are_small else np.int32)


def bounds(numbers: Any) -> tuple[int, int]:
    """Return the least and the greatest of numbers in a list or an array; zeros of none."""
    if not len(numbers):
        return 0, 0
    if isinstance(numbers, list):
        return min(numbers), max(numbers)
    return int(numbers.min()), int(numbers.max())


def num_above(numbers: Any, limit: int) -> int:
    """Return how many numbers in a list or an array are above a limit."""
    if isinstance(numbers, list):
        return sum([number > limit for number in numbers])
    return int((numbers > limit).sum())
