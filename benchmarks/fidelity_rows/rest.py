"""The unexplained rest of a run's makespan after a replay with its own op times and its own hand-over."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

import pipesched
from fidelity_rows.bench import Row, StepErrors, cell, verdict
from fidelity_rows.model_runs import CASES, LONG, SCHEDULES, SHORT, model_runs
from pipesched.simulator.analysis import readable_s
from pipesched.workflows.measuring import RunResult

LIMITS = {LONG: 0.01, SHORT: 0.03}


def lines(num_rounds: int) -> Iterator[str]:
    """Yield the lines of this row's section."""
    runs = model_runs(num_rounds)
    rests: dict[str, dict[str, StepErrors]] = {ops: {} for ops in LIMITS}
    yield "Of every run the works are replayed alone, then with what posting took and messages usually took in it."
    yield "Medians of the rounds, and in brackets of the quarter with the shortest steps."
    yield ""
    yield "| ops | model | schedule | median op | median step | works alone | rest |"
    yield "|---|---|---|---|---|---|---|"
    for case in CASES:
        for name in SCHEDULES:
            several = [measured[case, name] for measured in runs.rounds if (case, name) in measured]
            if not several:
                continue
            alone, rest = _errors(several)
            rests[case.ops][f"{case.kind} {name}"] = rest
            op_s = statistics.median(span.end_s - span.start_s for run in several for span in run.timeline.work)
            step_s = statistics.median(run.makespan_s for run in several)
            times = f"{readable_s(op_s)} | {readable_s(step_s)}"
            yield f"| {case.ops} | {case.kind} | {name} | {times} | {cell(alone)} | {cell(rest)} |"
    for ops, limit in LIMITS.items():
        yield ""
        yield f"Ops of {ops}:"
        yield from verdict(limit, rests[ops])
    yield from runs.bench.lines()
    yield ""
    yield from (f"* {case.ops}: `{case.model}`, micro-batches of {case.microbatch_size}" for case in CASES)


def _errors(runs: Sequence[RunResult]) -> tuple[StepErrors, StepErrors]:
    """Return the errors of a replay with op times only, and the rest, for every run."""
    splits = [pipesched.replay(run.timeline).split.makespan for run in runs]
    alone = [(split.measured_s, split.error_s / split.measured_s) for split in splits]
    return alone, [(split.measured_s, split.rest_s / split.measured_s) for split in splits]


ROW = Row(
    "Rest of the makespan, with the run's own op times and hand-over",
    "at most 1 % unexplained of runs with ops of 5 ms and more, at most 3 % with ops of 1 to 2 ms",
    10,
    50.0,
    lines,
    model_runs,
)
