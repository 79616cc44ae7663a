"""Loops over columns of numbers: `run_loop` runs a loop compiled by numba, or in plain Python where that is faster.

A column is a NumPy array. A loop is a function that numba can compile. A process counts the steps of all its loops.
Before `BREAK_EVEN` steps, loops run in plain Python over lists; after that, a loop runs compiled if the disk has its
machine code, and from `_COMPILING` times as many steps in any case.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pipesched.schedules.common import has_room_for_numba

Int8s: TypeAlias = npt.NDArray[np.int8]
Int32s: TypeAlias = npt.NDArray[np.int32]
Int64s: TypeAlias = npt.NDArray[np.int64]
Float64s: TypeAlias = npt.NDArray[np.float64]

BREAK_EVEN = 400_000
"""Steps of a process after which loading machine code pays."""

_COMPILING = 12
"""Compiling pays from this many times `BREAK_EVEN` on: plain Python takes ten seconds for these steps."""

_LONG = 5_000_000
"""Steps of a loop that may run longer than a user waits after Ctrl-C."""

_steps_run = 0


def run_loop(
    loop: Callable[..., Any], *arguments: Any, num_steps: int, parts: tuple[Callable[..., Any], ...] = ()
) -> Any:
    """Run a loop and return its result: compiled over arrays, or in plain Python over lists with the same numbers.

    Args:
        loop: The loop. It runs in plain Python until it pays to load its machine code, or to compile it if the disk
            has none. With an array of objects as an argument it always runs in plain Python.
        arguments: Arrays, which the loop may change, numbers, and tuples of both.
        num_steps: Number of steps that this call of the loop is expected to run.
        parts: Functions that the loop calls.
    """
    if _is_hot(num_steps, loop, parts) and not any(map(_has_objects, arguments)):
        code = compiled(loop, parts)
        _compile_alone(code, arguments)
        return _interruptibly(code, arguments) if num_steps >= _LONG else code(*arguments)
    lists: list[tuple[npt.NDArray[Any], list[Any]]] = []
    result = loop(*(_in_lists(argument, lists) for argument in arguments))
    for array, numbers in lists:
        if array.size and array.flags.writeable:
            array[...] = numbers
    return result


def _has_objects(argument: Any) -> bool:
    if isinstance(argument, tuple):
        return any(map(_has_objects, argument))
    return isinstance(argument, np.ndarray) and argument.dtype.hasobject


def _in_lists(argument: Any, lists: list[tuple[npt.NDArray[Any], list[Any]]]) -> Any:
    """Return an argument of a loop with lists in place of arrays, and add each array with its list to `lists`."""
    if isinstance(argument, np.ndarray):
        numbers = argument.tolist()
        lists.append((argument, numbers))
        return numbers
    if isinstance(argument, tuple):
        parts = [_in_lists(part, lists) for part in argument]
        return type(argument)(*parts) if hasattr(argument, "_fields") else tuple(parts)
    return argument


def _is_hot(num_steps: int, loop: Callable[..., Any], parts: tuple[Callable[..., Any], ...]) -> bool:
    """Count steps of a loop; return whether the loop runs as machine code."""
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
    """Return a loop as machine code that runs in parallel with other threads; it is cached on disk if possible.

    The code uses no fast mathematics, so that sums are the same as in plain Python.

    Args:
        loop: The loop.
        parts: Functions that the loop calls.

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
    rooms = {Path(file).parent for file in (__file__, *(part.__code__.co_filename for part in (loop, *parts)))}
    changed_s = max(file.stat().st_mtime for room in rooms for file in room.glob("*.py"))
    for index in _indices(loop, code):  # numba itself compares the file of the loop, not of its parts and constants
        if index.stat().st_mtime < changed_s:
            index.unlink(missing_ok=True)
    return code  # type: ignore[no-any-return]


def _compile_alone(code: Any, arguments: tuple[Any, ...]) -> None:
    """Compile or load a loop that is new to this process, while no other process compiles it."""
    if code.overloads or code.stats.cache_path is None:
        return
    import numba

    folder = Path(code.stats.cache_path)
    with suppress(OSError):  # without a lock, each process compiles
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{code.py_func.__qualname__}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            code.compile(tuple(map(numba.typeof, arguments)))


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
    """Call `listener` once, before this process compiles its next loop.

    Args:
        listener: Called with True if the disk keeps the machine code, else with False.
    """
    _compile_listeners[:] = [listener]


_compiling_s = 0.0


def compiling_s() -> float:
    """Return how long this process has compiled loops [s]; loading machine code is left out."""
    return _compiling_s


@cache
def _report_compiling() -> None:
    from numba.core import event

    class Report(event.Listener):
        def __init__(self) -> None:
            self._begun_s: list[float] = []  # a loop, and the functions that are compiled for it

        def on_start(self, event: Any) -> None:
            self._begun_s.append(monotonic())
            while _compile_listeners:  # each hears it once
                _compile_listeners.pop()(event.data["dispatcher"].stats.cache_path is not None)

        def on_end(self, event: Any) -> None:  # noqa: ARG002
            global _compiling_s
            begun_s = self._begun_s.pop()
            if not self._begun_s:
                _compiling_s += monotonic() - begun_s

    event.register("numba:compile", Report())  # type: ignore[no-untyped-call]  # numba has no types


def _interruptibly(code: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Run machine code in a separate thread, because it ignores signals; the calling thread answers Ctrl-C."""
    answer: SimpleQueue[tuple[bool, Any]] = SimpleQueue()

    def work() -> None:
        try:
            answer.put((True, code(*arguments)))
        except BaseException as error:  # noqa: BLE001 -- raised where it is waited for
            answer.put((False, error))

    Thread(target=work, daemon=True).start()
    is_well, what = answer.get()
    if not is_well:
        raise what
    return what


def int32s(count: int, number: int = 0) -> Int32s:
    """Return `count` copies of a number."""
    return np.full(count, number, np.int32) if number else np.zeros(count, np.int32)  # of zeros no page is touched


def int8s(count: int) -> Int8s:
    """Return `count` zeros of one byte each."""
    return np.zeros(count, np.int8)


def bounds(numbers: Int32s) -> tuple[int, int]:
    """Return the least and the greatest number; (0, 0) for an empty array."""
    return (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, 0)
