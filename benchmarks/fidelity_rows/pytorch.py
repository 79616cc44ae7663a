"""Predict PyTorch's GPipe and Interleaved1F1B with costs from a trace of PyTorch's 1F1B."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import pipesched
from fidelity_rows.bench import Row, cell, verdict
from fidelity_rows.model_runs import Case
from fidelity_rows.torch_rank import SCHEDULES
from fidelity_rows.torch_runs import LONG_CASES, TorchRuns, torch_runs
from pipesched import Profile
from pipesched.simulator.analysis import readable_s

LIMIT = 0.05
Makespans = Mapping[str, tuple[float, float]]
"""Predicted and measured makespan of each schedule [s]."""


def makespans(traces: Mapping[str, Sequence[Path]], case: Case, profile: Profile) -> Makespans:
    """Return the makespans of all schedules, predicted with the costs of the first schedule."""
    timelines = {name: pipesched.import_traces(files).timeline for name, files in traces.items()}
    first, *others = timelines
    what_ifs = {
        name: pipesched.what_if(
            timelines[first],
            schedule=name,
            num_chunks=SCHEDULES[name][1] if SCHEDULES[name][1] > 1 else None,
            partition="uniform",
            profile=profile,
            run_partition="uniform",
            microbatch_size=case.microbatch_size,
            draws=1,
        )
        for name in others
    }
    predicted_s = {first: what_ifs[others[0]].before.makespan_s}
    predicted_s |= {name: what_if.after.makespan_s for name, what_if in what_ifs.items()}
    return {name: (predicted_s[name], timeline.makespan_s) for name, timeline in timelines.items()}


def lines(num_rounds: int) -> Iterator[str]:
    """Yield the lines of this row's section."""
    runs = torch_runs(num_rounds)
    yield "PyTorch's Schedule1F1B, ScheduleGPipe and ScheduleInterleaved1F1B run one after the other in the same two"
    yield "processes, which keep freed memory as ours do, each under torch.profiler; the traces are imported. The"
    yield "costs are those of the trace of 1F1B (its own line says how well they give that back). Medians of the"
    yield "rounds (of the quarter with the shortest steps)."
    yield ""
    yield "| model | schedule | measured, shortest | error | order of the two right |"
    yield "|---|---|---|---|---|"
    limited: dict[str, list[tuple[float, float]]] = {}
    orders: list[bool] = []
    for case in LONG_CASES:
        errors: dict[str, list[tuple[float, float]]] = defaultdict(list)
        rounds = list(_rounds(case, runs))
        ordered = [_is_order_right(measured_round) for measured_round in rounds]
        for measured_round in rounds:
            (_, first_s), *_ = measured_round.values()
            for name, (predicted_s, measured_s) in measured_round.items():
                errors[name].append((first_s + measured_s, predicted_s / measured_s - 1))
        for name, several in errors.items():
            shortest_s = readable_s(min(measured_round[name][1] for measured_round in rounds))
            yield f"| {case.kind} | {name} | {shortest_s} | {cell(several)} | {sum(ordered)} of {len(ordered)} |"
        limited |= {f"{case.kind} {name}": several for name, several in errors.items() if name != next(iter(SCHEDULES))}
        orders += ordered
    yield ""
    yield from verdict(LIMIT, limited)
    yield f"GPipe and Interleaved1F1B are in the right order in {sum(orders)} of {len(orders)} rounds."
    yield from runs.bench.lines()


def _rounds(case: Case, runs: TorchRuns) -> Iterator[Makespans]:
    """Yield the makespans of every round with runs of all schedules."""
    profile = runs.bench.tried(f"profile {case.model}", case.profile)
    if profile is None:
        return
    for cases in runs.rounds:
        if case in cases:
            case_makespans = runs.bench.tried(f"import {case.kind}", partial(makespans, cases[case], case, profile))
            if case_makespans is not None:
                yield case_makespans


def _is_order_right(measured_round: Makespans) -> bool:
    """Return whether the two predictions have the same order as the measurements."""
    (_, gpipe, interleaved) = measured_round.values()
    return (gpipe[0] < interleaved[0]) == (gpipe[1] < interleaved[1])


ROW = Row(
    "Costs from a torch.profiler trace of PyTorch's own 1F1B",
    "its GPipe and Interleaved1F1B at most 5 % off, and in the right order",
    8,
    40.0,
    lines,
    torch_runs,
)
