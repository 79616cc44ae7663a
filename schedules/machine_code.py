"""Machine code for loops over numbers: they run as plain Python over lists until loading numba pays.

A loop is a function in words that numba knows too. A process counts the steps of all its loops; from `BREAK_EVEN` on
they run compiled, over NumPy's arrays, however short they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, wraps
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from pipesched.schedules.memory_room import has_room_for_numba

BREAK_EVEN = 200_000
"""Steps of a process from which on loading machine code pays."""

_COMPILING = 25
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
def compiled(
    loop: Callable[..., Any],
    parts: tuple[Callable[..., Any], ...] = (),
    *,
    are_inlined: bool = True,
    has_references: bool = True,
) -> Callable[..., Any]:
    """Return a loop as machine code, which is cached on disk, and runs beside other threads.

    It uses no fast mathematics, so that sums are the same. Unlike in Python, an index below 0 does not count from the
    end: the loop must never use one, and `make bounds` checks that.

    Args:
        loop: The loop.
        parts: Functions that it calls.
        are_inlined: Whether they are written into it wherever it calls them.
        has_references: Whether references to arrays are counted, which takes most of the time of a loop with many small
            parts. A loop that makes no array needs no count.

    Raises:
        ImportError: Numba is not installed.
    """
    import numba
    from numba.extending import register_jitable

    for part in parts:
        register_jitable(forceinline=are_inlined)(part)
    options: Any = {"nogil": True} if has_references else {"nogil": True, "_nrt": False}
    result: Any = numba.njit(**options)(loop)
    kept = _kept_code(loop, parts)
    _count_from_the_front(result._compiler, is_kept=kept is not None)  # noqa: SLF001 -- numba has no option for it
    if kept is not None:
        result._cache = kept  # noqa: SLF001 -- numba has no other way to say where it is kept
    return result  # type: ignore[no-any-return]


@cache
def _kept_code(loop: Callable[..., Any], parts: tuple[Callable[..., Any], ...]) -> Any:
    """Return numba's cache of the machine code of a loop, or None if no folder for it can be written to."""
    try:
        kept = _quick_cache()(loop)
    except RuntimeError:
        return None
    if hasattr(kept, "_cache_file"):  # a cached file is invalid after a change of a part's file, or of this one
        files = sorted({__file__, *(part.__code__.co_filename for part in parts)})
        times = (Path(file).stat().st_mtime for file in files)
        kept._cache_file._source_stamp = (kept._cache_file._source_stamp, *times)  # noqa: SLF001
    return kept


@cache
def _is_on_disk(loop: Callable[..., Any], parts: tuple[Callable[..., Any], ...]) -> bool:
    """Whether machine code of a loop is on disk; also true if a numba with other inner parts cannot report it."""
    kept = _kept_code(loop, parts)
    if kept is None:
        return False
    index: Any = getattr(kept, "_cache_file", None)
    return not hasattr(index, "_load_index") or bool(index._load_index())  # noqa: SLF001


_compile_listeners: list[Callable[[bool], object]] = []


def on_compile(listener: Callable[[bool], object]) -> None:
    """Call `listener` once, before this process compiles its first loop from here on.

    Args:
        listener: Its argument is whether the machine code is kept on disk.
    """
    _compile_listeners[:] = [listener]


def _count_from_the_front(compiler: Any, *, is_kept: bool) -> None:
    """Let machine code use every index unchecked; a check for negative ones takes a third of a loop's time."""
    compile_any = compiler.compile

    def compile_loop(args: Any, return_type: Any) -> Any:  # nobody else compiles meanwhile: numba has a lock
        from numba.core import types
        from numba.np import arrayobj

        if not hasattr(arrayobj, "fix_integer_index"):  # a numba that has other inner parts
            return compile_any(args, return_type)
        while _compile_listeners:  # each hears it once
            _compile_listeners.pop()(is_kept)

        def as_it_is(context: Any, builder: Any, kind: Any, index: Any, _: Any) -> Any:
            return context.cast(builder, index, kind, types.intp)

        known: Any = arrayobj.fix_integer_index
        arrayobj.fix_integer_index = as_it_is
        try:
            return compile_any(args, return_type)
        finally:
            arrayobj.fix_integer_index = known

    compiler.compile = compile_loop


@cache
def _quick_cache() -> Callable[..., Any]:
    """Return a cache that loads machine code from disk without preparing numba for compilation, unlike its own.

    Numba's own cache loads hundreds of modules, SciPy's linear algebra among them: half of numba's start-up time.
    """
    from numba.core.caching import FunctionCache
    from numba.core.runtime.nrt import rtsys

    if not hasattr(FunctionCache, "_load_overload"):  # a numba that has other inner parts
        return FunctionCache

    class QuickCache(FunctionCache):
        def load_overload(self, sig: Any, target_context: Any) -> Any:
            rtsys.initialize(target_context)  # machine code calls it
            return self._load_overload(sig, target_context)  # type: ignore[no-untyped-call]  # numba has no types

    return QuickCache


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
