"""Run the event loop, in plain Python until loading machine code pays, from then on compiled by numba where it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from pipesched.schedules import machine_code
from pipesched.simulator.fast.event_loop import run_events
from pipesched.simulator.fast.event_queue import IN_COLUMNS, new_columns, new_queue
from pipesched.simulator.fast.loop_arrays import LoopArrays, State, in_lists, in_numpy
from pipesched.simulator.fast.loop_parts import LOOP_PARTS


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
    instructions, transfers, reductions, rules = arrays
    if machine_code.is_hot(len(instructions.kinds) * (2 if rules.num_shared else 1)):
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
def compiled_loop() -> Callable[..., bool]:
    """Return the loop as machine code, whose events are columns of numbers.

    Raises:
        ImportError: There is no numba.
    """
    from numba.extending import overload

    for function, in_columns in IN_COLUMNS.items():
        overload(function, strict=False, jit_options={"forceinline": True})(_always(in_columns))
    return machine_code.compiled(run_events, LOOP_PARTS)


def _always(function: Callable[..., Any]) -> Callable[..., Callable[..., Any]]:
    """Return what numba asks for the meaning of a call, whatever its arguments are."""
    return lambda *_: function
