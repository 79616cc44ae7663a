"""The share of runs in the 80 % range that is predicted with the costs of other runs of the schedule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pipesched
from fidelity_rows.bench import Row
from fidelity_rows.model_runs import CASES, NUM_MICROBATCHES, SCHEDULES, model_runs, schedule_of_name
from pipesched import Timeline
from pipesched.simulator.fidelity import MakespanRange

DRAWS = 200


def makespan_range(runs: Sequence[Timeline], name: str) -> MakespanRange:
    """Return the predicted range of the makespan, for the schedule and the costs of `runs`."""
    costs, schedule = pipesched.costs_from_runs(runs).costs, schedule_of_name(name)
    machines = costs.on_machines(pipesched.flat(schedule.num_devices))
    result = pipesched.simulate(schedule, pipesched.Setup(costs, machines), spread=DRAWS)
    assert result.spread is not None, "it is asked for"
    return result.spread


def lines(num_rounds: int) -> Iterator[str]:
    """Yield the lines of this row's section."""
    runs = model_runs(num_rounds)
    yield "Of each schedule, the runs of every other round give costs and how they vary, and with them the range in"
    yield f"which 80 % of the makespans should lie ({DRAWS} draws, {NUM_MICROBATCHES} micro-batches); counted are the"
    yield "runs of the rounds between that do."
    yield ""
    yield f"| ops | model | {' | '.join(SCHEDULES)} |"
    yield f"|---|---|{'---|' * len(SCHEDULES)}"
    num_inside = num_counted = 0
    for case in CASES:
        cells = []
        for name in SCHEDULES:
            several = [measured.get((case, name)) for measured in runs.rounds]
            fitted = [run.timeline for run in several[::2] if run is not None]
            counted = [run.makespan_s for run in several[1::2] if run is not None]
            limits = runs.bench.tried(f"range of {case.kind} {name}", partial(makespan_range, fitted, name))
            if limits is None:
                cells.append("-")
                continue
            inside = sum(limits.low_s <= makespan_s <= limits.high_s for makespan_s in counted)
            width = (limits.high_s - limits.low_s) / limits.median_s
            cells.append(f"{inside} of {len(counted)} ({width:.0%} wide)")
            num_inside, num_counted = num_inside + inside, num_counted + len(counted)
        yield f"| {case.ops} | {case.kind} | {' | '.join(cells)} |"
    yield ""
    yield f"In the range: {num_inside} of {num_counted}, {num_inside / max(1, num_counted):.0%}."
    yield from runs.bench.lines()


ROW = Row(
    "The range in which 80 % of the makespans lie",
    "70 to 90 % of the runs that it was not fitted on lie in it",
    10,
    50.0,
    lines,
    model_runs,
)
