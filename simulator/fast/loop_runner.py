"""Run the event loop, in plain Python until loading machine code pays, from then on compiled by numba where it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

from pipesched.simulator.fast.event_loop import run_events
from pipesched.simulator.fast.event_queue import IN_COLUMNS, new_columns, new_queue
from pipesched.simulator.fast.loop_arrays import LoopArrays, State, in_lists, in_numpy
from pipesched.simulator.fast.loop_parts import LOOP_PARTS

BREAK_EVEN = 200_000
"""Instructions of a process from which on loading machine code pays; on what is shared each takes the time of two."""

_instructions_run = 0


def is_hot() -> bool:
    """Whether what is run next is run as machine code, however short it is."""
    return _instructions_run >= BREAK_EVEN and has_numba()


def times_of(arrays: LoopArrays) -> Any:
    """Return when each instruction is reached, each transfer and reduction starts, and each is over [s].

    Returns:
        One behind the other, in a list or in an array of NumPy; an empty list if a rank waits forever.
    """
    state = run_loop(arrays)
    if state is None:
        return []
    if isinstance(state.at_s, list):
        return [*state.at_s, *state.start_s, *state.end_s]
    return state.at_s.base


def run_loop(arrays: LoopArrays) -> State | None:
    """Return the state at the end, in lists or in NumPy's arrays; None if a rank waits forever."""
    global _instructions_run
    instructions, transfers, reductions, rules = arrays
    _instructions_run += len(instructions.kinds) * (2 if rules.num_shared else 1)
    if is_hot():
        import numpy as np

        state, queue = State(*in_numpy(arrays.state(np.full))), new_columns(*arrays.queue_sizes())
        numbers = in_numpy(instructions), in_numpy(transfers), in_numpy(reductions)
        is_over = compiled_loop()(*numbers, rules, state, queue)
    else:
        state = arrays.state(lambda count, number: [number] * count)
        lists = in_lists(instructions), in_lists(transfers), in_lists(reductions)
        is_over = run_events(*lists, rules, state, new_queue())
    return state if is_over else None


@cache
def has_numba() -> bool:
    """Whether there is something that compiles the loop."""
    return find_spec("numba") is not None


@cache
def compiled_loop() -> Callable[..., bool]:
    """Return the loop as machine code, which is kept on disk; without fast mathematics, so the sums are the same.

    Raises:
        ImportError: There is no numba.
    """
    import numba
    from numba.extending import overload, register_jitable

    for part in LOOP_PARTS:
        register_jitable(forceinline=True)(part)
    for function, in_columns in IN_COLUMNS.items():
        overload(function, strict=False)(_always(in_columns))
    loop: Callable[..., bool] = numba.njit(cache=True)(run_events)
    return loop


def _always(function: Callable[..., Any]) -> Callable[..., Callable[..., Any]]:
    """Return what numba asks for the meaning of a call, whatever its arguments are."""
    return lambda *_: function
