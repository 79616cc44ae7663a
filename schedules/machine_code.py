"""Machine code for loops over numbers: they run as plain Python over lists until loading numba pays.

A loop is a function in words that numba knows too. A process counts the steps of all its loops; from `BREAK_EVEN` on
they run compiled, over NumPy's arrays, however short they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, wraps
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from pipesched.schedules.memory_room import has_room_for_numba

BREAK_EVEN = 400_000
"""Steps of a process from which on loading machine code pays."""

_COMPILING = 12
"""Compiling pays from this many times `BREAK_EVEN` on: plain Python takes ten seconds for these steps."""

_LONG = 5_000_000
"""Steps of a loop that may run longer than a user waits after Ctrl-C."""

_steps_run = 0


def expect(num_steps: int) -> None:
    """Count steps that loops are about to do, before lists are made that would be arrays once loops are compiled."""
    global _steps_run
    _steps_run += num_steps


def is_hot(num_steps: int, loop: Callable[..., Any], parts: tuple[Callable[..., Any], ...] = ()) -> bool:
    """Count steps of a loop; return whether the loop runs as machine code.

    Args:
        num_steps: Steps that the loop is about to do.
        loop: The loop, which runs later if the disk does not hold its machine code and compiling does not pay yet.
        parts: Functions that the loop calls, as `compiled` takes them.
    """
    global _steps_run
    _steps_run += num_steps
    if _steps_run < BREAK_EVEN or not has_numba():
        return False
    return _steps_run >= _COMPILING * BREAK_EVEN or _is_on_disk(loop, parts)


@cache
def has_numba() -> bool:
    """Whether numba is installed, and has enough memory."""
    return find_spec("numba") is not None and has_room_for_numba()


@cache
def compiled(loop: Callable[..., Any], parts: tuple[Callable[..., Any], ...] = ()) -> Callable[..., Any]:
    """Return a loop as machine code, which is cached on disk, and runs beside other threads.

    It uses no fast mathematics, so that sums are the same.

    Args:
        loop: The loop.
        parts: Functions that it calls.

    Raises:
        ImportError: Numba is not installed.
    """
    import numba
    from numba.extending import register_jitable

    _report_compiling()
    for part in parts:
        register_jitable(forceinline=True)(part)
    try:
        code: Any = numba.njit(nogil=True, cache=True)(loop)
    except RuntimeError:  # no folder for machine code is writable
        return numba.njit(nogil=True)(loop)
    changed_s = max(Path(function.__code__.co_filename).stat().st_mtime for function in (loop, *parts))
    for index in _indices(loop, code):  # numba itself compares the file of the loop, not of its parts
        if index.stat().st_mtime < changed_s:
            index.unlink(missing_ok=True)
    return code  # type: ignore[no-any-return]


def _indices(loop: Callable[..., Any], code: Any) -> Iterator[Path]:
    """Yield the file of numba's cache that lists the machine code of a loop on disk, if there is one."""
    if code.stats.cache_path is not None:
        source = loop.__code__
        name = f"{Path(source.co_filename).stem}.{loop.__qualname__}-{source.co_firstlineno}.*.nbi"
        yield from Path(code.stats.cache_path).glob(name)


@cache
def _is_on_disk(loop: Callable[..., Any], parts: tuple[Callable[..., Any], ...]) -> bool:
    return any(_indices(loop, compiled(loop, parts)))


_compile_listeners: list[Callable[[bool], object]] = []


def on_compile(listener: Callable[[bool], object]) -> None:
    """Call `listener` once, before this process compiles its first loop from here on.

    Args:
        listener: Its argument is whether the machine code is kept on disk.
    """
    _compile_listeners[:] = [listener]


@cache
def _report_compiling() -> None:
    from numba.core import event

    class Report(event.Listener):
        def on_start(self, event: Any) -> None:
            while _compile_listeners:  # each hears it once
                _compile_listeners.pop()(event.data["dispatcher"].stats.cache_path is not None)

        def on_end(self, event: Any) -> None:
            pass

    event.register("numba:compile", Report())  # type: ignore[no-untyped-call]  # numba has no types


def interruptible(loop: Callable[..., Any], num_steps: int) -> Callable[..., Any]:
    """Return a loop that answers Ctrl-C, and lets other threads report progress, if it takes long.

    Machine code ignores signals: it runs in a thread of its own, and the calling thread waits for it.

    Args:
        loop: The loop, compiled or not.
        num_steps: Steps that it is about to do.
    """
    if num_steps < _LONG or not hasattr(loop, "py_func"):
        return loop

    @wraps(loop)
    def run(*args: Any) -> Any:
        answer: SimpleQueue[tuple[bool, Any]] = SimpleQueue()

        def work() -> None:
            try:
                answer.put((True, loop(*args)))
            except BaseException as error:  # noqa: BLE001 -- raised where it is waited for
                answer.put((False, error))

        Thread(target=work, daemon=True).start()
        is_well, what = answer.get()
        if not is_well:
            raise what
        return what

    return run


def loop_in(
    loop: Callable[..., Any], parts: tuple[Callable[..., Any], ...] = (), *, in_arrays: bool, num_steps: int = 0
) -> Callable[..., Any]:
    """Return a loop for arrays, which is compiled and answers Ctrl-C, or for lists, which is the loop itself."""
    return interruptible(compiled(loop, parts), num_steps) if in_arrays else loop


def filled(count: int, number: int, *, in_arrays: bool, are_small: bool = False) -> Any:
    """Return `count` copies of a number, as a list, or as an array of int32, or of int8 if they are small."""
    if not in_arrays:
        return [number] * count
    import numpy as np

    kind = np.int8 if are_small else np.int32
    return np.full(count, number, kind) if number else np.zeros(count, kind)  # of zeros no page is touched


def filled_like(numbers: Any, count: int) -> Any:
    """Return `count` zeros, in an array of the same type, or in a list."""
    if not hasattr(numbers, "dtype"):
        return [0] * count
    import numpy as np

    return np.zeros(count, numbers.dtype)


def filled_rows(count: int, width: int, *, in_arrays: bool) -> Any:
    """Return rows of zeros, as lists or as one array of int32."""
    if not in_arrays:
        return [[0] * width for _ in range(count)]
    import numpy as np

    return np.zeros((count, width), np.int32)


def converted(numbers: Any, *, in_arrays: bool, are_small: bool = False, are_real: bool = False) -> Any:
    """Return numbers as a list, or as an array of int32, or int8 if they are small, or float64; if not, as they are."""
    if not in_arrays:
        if isinstance(numbers, Sequence):
            return numbers if isinstance(numbers, list) else [*numbers]
        return numbers.tolist()
    import numpy as np

    return np.ascontiguousarray(numbers, np.int8 if are_small else np.float64 if are_real else np.int32)


def chosen(numbers: Any, keys: Any, key: int) -> list[Any]:
    """Return a list of the numbers whose keys are `key`; numbers and keys are lists or arrays."""
    if isinstance(keys, list):
        return [number for number, its in zip(numbers, keys, strict=True) if its == key]
    return [*numbers[keys == key].tolist()]


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
