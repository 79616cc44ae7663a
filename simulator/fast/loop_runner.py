"""Run the loops, in plain Python until loading machine code pays, from then on compiled by numba where it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property
from typing import Any, final

from pipesched.schedules import machine_code
from pipesched.simulator.fast.event_loop import EVENT_PARTS, run_events
from pipesched.simulator.fast.loop_arrays import LoopArrays, State, in_lists, in_numpy
from pipesched.simulator.fast.run_ahead import run_ahead, run_ahead_columns


@final
class Loop:
    """Arrays that are run any number of times; they are made lists, or NumPy's, once."""

    def __init__(self, arrays: LoopArrays) -> None:
        self._arrays = arrays

    def times(self) -> Any:
        """Return when each instruction is reached, each transfer and reduction starts, and each is over [s].

        Returns:
            One behind the other, in a list or in an array of NumPy; an empty list if a rank waits forever.
        """
        arrays = self._arrays
        num_steps = len(arrays.instructions.kinds) * (2 if arrays.rules.num_shared else 1)
        if arrays.rules.runs_ahead:
            return self._ahead(machine_code.is_hot(num_steps, run_ahead))
        return self._by_events(machine_code.is_hot(num_steps, run_events, EVENT_PARTS))

    def _ahead(self, is_hot: bool) -> Any:
        if is_hot:
            return self._compiled_ahead()
        arrays = self._arrays
        times_s, state = [0.0] * arrays.num_times, arrays.ahead_state(lambda count, number: [number()] * count)
        instructions, transfers, reductions = run_ahead_columns(*self._in_lists)
        is_over = run_ahead(instructions, transfers, reductions, arrays.rules.is_eager, times_s, state)
        return times_s if is_over else []

    @cached_property
    def _compiled_ahead(self) -> Callable[[], Any]:
        """Runs machine code; all but the times is made once, as a short run takes no longer than a few calls."""
        import numpy as np

        arrays, empty = self._arrays, np.empty
        loop = machine_code.interruptible(compiled_ahead(), len(arrays.instructions.kinds))
        given = *run_ahead_columns(*self._in_numpy), arrays.rules.is_eager
        num_times, states = arrays.num_times, [arrays.ahead_state(empty)]

        def run() -> Any:
            times_s = empty(num_times)
            try:
                state = states.pop()
            except IndexError:  # another thread has it, or a run that Ctrl-C did not wait for
                state = arrays.ahead_state(empty)
            is_over = loop(*given, times_s, state)
            states.append(state)
            return times_s if is_over else []

        return run

    def _by_events(self, is_hot: bool) -> Any:
        arrays = self._arrays
        if is_hot:
            import numpy as np

            state = State(*in_numpy(arrays.state(np.full)))
            loop = machine_code.interruptible(compiled_loop(), len(arrays.instructions.kinds))
            is_over = loop(*self._in_numpy, arrays.rules, state)
            return state.at_s.base if is_over else []  # type: ignore[attr-defined]  # an array of NumPy
        state = arrays.state(lambda count, number: [number] * count)
        is_over = run_events(*self._in_lists, arrays.rules, state)
        return [*state.at_s, *state.start_s, *state.end_s] if is_over else []

    @cached_property
    def _in_numpy(self) -> tuple[Any, Any, Any]:
        instructions, transfers, reductions, _ = self._arrays
        return in_numpy(instructions), in_numpy(transfers), in_numpy(reductions)

    @cached_property
    def _in_lists(self) -> tuple[Any, Any, Any]:
        instructions, transfers, reductions, _ = self._arrays
        return in_lists(instructions), in_lists(transfers), in_lists(reductions)


@cache
def compiled_ahead() -> Callable[..., bool]:
    """Return the loop of ranks that run ahead as machine code.

    Raises:
        ImportError: Numba is not installed.
    """
    return machine_code.compiled(run_ahead)


@cache
def compiled_loop() -> Callable[..., bool]:
    """Return the event loop as machine code, whose events are columns of numbers.

    Raises:
        ImportError: Numba is not installed.
    """
    return machine_code.compiled(run_events, EVENT_PARTS)
