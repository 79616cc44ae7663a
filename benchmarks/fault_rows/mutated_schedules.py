"""R2: lowered schedules with an op or two dropped, doubled, swapped or moved: the verdict, a model's, real runs'."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from fault_rows.row import Row
from pipesched.schedules import Average, Schedule
from pipesched.schedules.check import find_faults
from pipesched.schedules.formats import to_json
from pipesched.schedules.semantics import Communication
from pipesched.schedules.semantics.deadlock import deadlocks

RUN_SHARE = 0.05
"""So many of the mutants are run for real: of those that are let pass."""
TIMEOUT_S = 5.0
SHOWN = 12


def lines(count: int) -> Iterator[str]:
    """Yield the section, of so many mutants."""
    sys.path.append(str(Path(__file__).parents[2]))
    mutant = import_module("tests.schedules.edits").mutant  # the mutants and the model of the tests
    model_of = import_module("tests.schedules.state_exploration").Model

    num_sound = num_stuck = num_passed = num_run = 0
    slowest_s = 0.0
    wrong = []
    for seed in range(count):
        _, schedule = mutant(seed)
        model = model_of(schedule, "channel")
        comes_through = model.is_through(model.end())
        num_sound, num_stuck = num_sound + comes_through, num_stuck + (not comes_through)
        if bool(deadlocks(schedule, Communication.CHANNEL)) == comes_through:
            wrong.append(f"- seed {seed}: the model comes {'' if comes_through else 'not '}through")
        if find_faults(schedule):
            continue
        num_passed += 1
        has_average = any(isinstance(op, Average) for row in schedule.ops for op in row)  # its ranks share a device
        if num_run < count * RUN_SHARE and not has_average:
            num_run += 1
            begun_s = time.monotonic()
            fault = _run(schedule)
            slowest_s = max(slowest_s, time.monotonic() - begun_s)
            wrong += [f"- seed {seed}, run: {fault}"] if fault else []
    yield f"{count} mutants of the small lowered schedules of the whole catalogue. A second model, which does all moves"
    yield f"that are possible, comes through {num_sound} and gets stuck in {num_stuck}; the checker finds a deadlock in"
    yield f"exactly those, but for {sum('model' in line for line in wrong)}. It lets {num_passed} pass, as nothing else"
    yield f"is wrong with them; the first {num_run} of these were run, with a time-out of {TIMEOUT_S:g} s:"
    yield f"{num_run - sum('run:' in line for line in wrong)} came to their end, the slowest after {slowest_s:.1f} s."
    yield from wrong[:SHOWN]


def _run(schedule: Schedule) -> str:
    """Run a schedule on real processes; return what went wrong, if anything."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "mutant.json"
        path.write_text(to_json(schedule))
        command = ["run", "-f", str(path), "--uniform", "f=1ms,i=1ms,w=1ms", "--timeout", str(TIMEOUT_S)]
        done = subprocess.run(
            [sys.executable, "-m", "pipesched", *command], capture_output=True, text=True, check=False, timeout=120
        )
    return "" if done.returncode == 0 else f"exit code {done.returncode}: {done.stderr[-200:]!a}"


ROW = Row(
    title="R2: mutated schedules",
    goal="the verdict is that of an independent model, and no run of a list that was let pass hangs",
    count=2000,
    lines=lines,
)
