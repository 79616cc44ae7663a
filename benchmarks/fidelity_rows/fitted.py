"""Costs fitted on one run of GPipe, and the other schedules of the same round predicted with them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial

import pipesched
from fidelity_rows.bench import Row, cell, verdict
from fidelity_rows.model_runs import CASES, LONG, SCHEDULES, SHORT, Case, ModelRuns, model_runs
from pipesched import Timeline
from pipesched.workflows.what_if import WhatIf

LIMITS = {LONG: 0.02, SHORT: 0.04}
Errors = dict[str, list[tuple[float, float]]]


def predicted(run: Timeline, case: Case, runs: ModelRuns, name: str) -> WhatIf:
    """Return the prediction of a schedule with the costs of a run; the profile gives the shares of I, W and layers."""
    return pipesched.what_if(
        run,
        schedule=name,
        partition="uniform",
        profile=runs.profiles[case],
        run_partition="uniform",
        microbatch_size=case.microbatch_size,
        draws=1,
    )


def lines(num_rounds: int) -> Iterator[str]:
    """Yield the lines of this row's section."""
    runs = model_runs(num_rounds)
    yield "The costs of the stages, of posting and of messages are those of one GPipe run; the other schedules of its"
    yield "round are predicted with them. As a change: what is predicted of the schedule over what is predicted of"
    yield "GPipe, times GPipe as it was measured. Medians of the rounds (of the quarter with the shortest steps)."
    yield ""
    yield "| ops | model | schedule | error | as a change |"
    yield "|---|---|---|---|---|"
    limited: dict[str, Errors] = {ops: {} for ops in LIMITS}
    for case in CASES:
        errors, changes = _errors(case, runs)
        limited[case.ops] |= {f"{case.kind} {name}": several for name, several in errors.items()}
        for name, several in errors.items():
            yield f"| {case.ops} | {case.kind} | {name} | {cell(several)} | {cell(changes[name])} |"
    for ops, limit in LIMITS.items():
        yield ""
        yield f"Ops of {ops}:"
        yield from verdict(limit, limited[ops])
    yield from runs.bench.lines()


def _errors(case: Case, runs: ModelRuns) -> tuple[Errors, Errors]:
    """Return the errors of predicted times and of predicted changes, for each schedule but GPipe, with the steps."""
    errors: Errors = defaultdict(list)
    changes: Errors = defaultdict(list)
    for measured in runs.rounds:
        for name in SCHEDULES[1:]:
            if (case, "gpipe") in measured and (case, name) in measured and case in runs.profiles:
                gpipe, run = measured[case, "gpipe"].timeline, measured[case, name]
                what_if = runs.bench.tried(f"predict {name}", partial(predicted, gpipe, case, runs, name))
                if what_if is not None:
                    both_s, ratio = gpipe.makespan_s + run.makespan_s, what_if.after.makespan_s / run.makespan_s
                    errors[name].append((both_s, ratio - 1))
                    changes[name].append((both_s, ratio * gpipe.makespan_s / what_if.before.makespan_s - 1))
    return errors, changes


ROW = Row(
    "Costs fitted on one GPipe run, other schedules predicted",
    "at most 2 % off with ops of 5 ms and more, at most 4 % with ops of 1 to 2 ms",
    10,
    50.0,
    lines,
    model_runs,
)
