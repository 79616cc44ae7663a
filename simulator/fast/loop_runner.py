"""Run the loop of a program: `run_ahead` if no two ranks compete for anything but the ends of a channel."""

from __future__ import annotations

import numpy as np

from pipesched.schedules.columns import machine_code
from pipesched.simulator.fast.event_loop import EVENT_PARTS, run_events
from pipesched.simulator.fast.loop_arrays import LoopArrays
from pipesched.simulator.fast.run_ahead import run_ahead, run_ahead_columns


def loop_times(arrays: LoopArrays) -> machine_code.Float64s:
    """Return when each instruction is reached, each transfer and reduction starts, and each is over [s].

    Returns:
        One behind the other; an empty array if a rank waits forever.
    """
    instructions, transfers, reductions, rules = arrays
    num_steps = len(instructions.kinds) * (2 if rules.num_shared else 1)
    if rules.runs_ahead:
        times_s = np.empty(arrays.num_times)
        columns = run_ahead_columns(instructions, transfers, reductions)
        is_over = machine_code.run_loop(
            run_ahead, *columns, rules.is_eager, times_s, arrays.ahead_state(), num_steps=num_steps
        )
        return times_s if is_over else np.empty(0)
    state = arrays.state()
    is_over = machine_code.run_loop(
        run_events, instructions, transfers, reductions, rules, state, num_steps=num_steps, parts=EVENT_PARTS
    )
    return np.concatenate([state.at_s, state.start_s, state.end_s]) if is_over else np.empty(0)
