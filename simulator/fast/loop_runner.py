"""Run the event loop, in plain Python until loading machine code pays, from then on compiled by numba where it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from itertools import chain

from pipesched.simulator.fast.event_loop import run_events
from pipesched.simulator.fast.loop_arrays import LoopArrays, State, in_lists, in_numpy
from pipesched.simulator.fast.loop_parts import LOOP_PARTS

BREAK_EVEN = 200_000
"""Instructions of a process from which on loading machine code pays; on what is shared each takes the time of two."""

_instructions_run = 0


def is_hot() -> bool:
    """Whether what is run next is run as machine code, however short it is."""
    return _instructions_run >= BREAK_EVEN and has_numba()


def times_of(arrays: LoopArrays) -> list[float]:
    """Return when each instruction is reached, each transfer and reduction starts, and each is over [s].

    Returns:
        One behind the other; nothing if a rank waits forever.
    """
    state = run_loop(arrays)
    if state is None:
        return []
    return [*chain.from_iterable(in_lists((state.at_s, state.start_s, state.end_s)))]


def run_loop(arrays: LoopArrays) -> State | None:
    """Return the state at the end, in lists or in NumPy's arrays; None if a rank waits forever."""
    global _instructions_run
    instructions, transfers, reductions, rules = arrays
    _instructions_run += len(instructions.kinds) * (2 if rules.num_shared else 1)
    if is_hot():
        import numpy as np

        state = State(*in_numpy(arrays.state(np.full)))
        is_over = compiled_loop()(in_numpy(instructions), in_numpy(transfers), in_numpy(reductions), rules, state)
    else:
        state = arrays.state(lambda count, number: [number] * count)
        is_over = run_events(in_lists(instructions), in_lists(transfers), in_lists(reductions), rules, state)
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
    from numba.extending import register_jitable

    for part in LOOP_PARTS:
        register_jitable(forceinline=True)(part)
    loop: Callable[..., bool] = numba.njit(cache=True)(run_events)
    return loop
