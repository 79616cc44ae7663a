"""R2: the checker, an independent model and real runs agree on lowered schedules with one or two changed ops."""

from __future__ import annotations

import sys
import time
from importlib import import_module
from pathlib import Path

import pipesched
from fault_rows.row import Row, Section
from fault_rows.workers import worked_off
from pipesched.schedules import Schedule
from pipesched.schedules.check import find_faults
from pipesched.schedules.ops import Average
from pipesched.schedules.semantics import Communication
from pipesched.schedules.semantics.deadlock import deadlocks

RUN_SHARE = 0.05
"""Share of the accepted mutants that are run on real processes."""
TIMEOUT_S = 5.0
NUM_WORKERS, NUM_RUNS = 2, 2
"""Number of judging processes, and of simultaneous runs."""
SHOWN = 12


def lines(count: int) -> Section:
    """Yield the section on `count` mutants."""
    sys.path.append(str(Path(__file__).parents[2]))
    mutant = import_module("tests.schedules.edits").mutant  # the mutants and the model of the tests
    model_of = import_module("tests.schedules.state_exploration").Model

    def judged(seed: int) -> tuple[bool, bool, bool]:
        """Return whether the model finishes the mutant, whether the checker agrees, and whether it accepts it."""
        _, schedule = mutant(seed)
        model = model_of(schedule, "channel")
        comes_through = model.is_through(model.end())
        agrees = bool(deadlocks(schedule, Communication.CHANNEL)) != comes_through
        return comes_through, agrees, not find_faults(schedule)

    verdicts = worked_off(judged, count, NUM_WORKERS)
    num_sound = sum(comes_through for comes_through, _, _ in verdicts)
    wrong = [f"- seed {seed}: the model says otherwise" for seed, verdict in enumerate(verdicts) if not verdict[1]]
    passed = [seed for seed, verdict in enumerate(verdicts) if verdict[2]]
    candidates = [seed for seed in passed if not _has_average(mutant(seed)[1])][: round(count * RUN_SHARE)]
    runs = worked_off(lambda number: _run(mutant(candidates[number])[1]), len(candidates), NUM_RUNS)
    wrong += [f"- seed {seed}, run: {fault}" for seed, (_, fault) in zip(candidates, runs, strict=True) if fault]
    num_run, slowest_s = len(runs), max((seconds for seconds, _ in runs), default=0.0)
    yield f"{count} mutants of the small lowered schedules of the whole catalogue. A second model, which does all moves"
    yield f"that are possible, comes through {num_sound} and gets stuck in {count - num_sound}; the checker finds a"
    yield f"deadlock in exactly those, but for {sum('model' in line for line in wrong)}. It lets {len(passed)} pass, as"
    yield f"nothing else is wrong with them; the first {num_run} of these were run, with a time-out of {TIMEOUT_S:g} s:"
    yield f"{num_run - sum('run:' in line for line in wrong)} came to their end, the slowest after {slowest_s:.1f} s."
    yield from wrong[:SHOWN]
    return not wrong


def _has_average(schedule: Schedule) -> bool:
    """Return whether the schedule averages pipelines, so that its ranks share a device."""
    return any(isinstance(op, Average) for row in schedule.ops for op in row)


def _run(schedule: Schedule) -> tuple[float, str]:
    """Run a schedule on real processes; return the time of the run [s], and the fault, if any.

    The processes of a worker's runs are forked from one lasting process.
    """
    begun_s = time.monotonic()
    costs = pipesched.uniform(schedule.num_stages, 1e-3, backward_input_s=1e-3, backward_weight_s=1e-3)
    try:
        pipesched.run(schedule, costs, iterations=1, warmup=0, timeout_s=TIMEOUT_S)
    except pipesched.ExecutionError as error:
        return time.monotonic() - begun_s, f"{error!s:.300}"
    return time.monotonic() - begun_s, ""


ROW = Row(
    title="R2: mutated schedules",
    goal="the verdict is that of an independent model, and no run of a list that was let pass hangs",
    count=2000,
    lines=lines,
)
