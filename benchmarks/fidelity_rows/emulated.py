"""Emulated ranks under every schedule of the catalogue: ops take given times, so all error is the schedule model's."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from emulated_stages import uneven_stages

import pipesched
from fidelity_rows.bench import Bench, Row, StepErrors, cell, verdict
from pipesched import CATALOGUE, Cluster, build
from pipesched.simulator.analysis import readable_bytes, readable_s
from pipesched.workflows.measuring import profile_links

NUM_EMULATED, NUM_MICROBATCHES, OP_S = 4, 8, 0.080
MESSAGE_BYTES, WEIGHT_BYTES = 64 * 1024, 1024 * 1024
LIMIT = 0.01


def errors_of(name: str, links: Cluster, iterations: int) -> StepErrors:
    """Return the seconds of each iteration after a warm-up, with the relative error of the prediction."""
    schedule = build(name, NUM_EMULATED, NUM_MICROBATCHES)
    costs = uneven_stages(schedule, OP_S, MESSAGE_BYTES, WEIGHT_BYTES)
    machines = Cluster((links.devices[0],) * schedule.num_ranks, links.intra)
    predicted_s = pipesched.simulate(schedule, pipesched.Setup(costs, machines)).makespan_s
    steps_s = pipesched.run(schedule, costs, iterations=iterations).makespans_s
    return [(step_s, predicted_s / step_s - 1) for step_s in steps_s]


def lines(num_rounds: int) -> Iterator[str]:
    """Yield the lines of this row's section."""
    bench = Bench()
    links = profile_links().cluster
    yield f"{NUM_EMULATED} ranks, {NUM_MICROBATCHES} micro-batches, messages of {readable_bytes(MESSAGE_BYTES)};"
    yield f"F, I and W of all that a rank holds take {readable_s(OP_S)} each, F of some stages 25 or 50 % more."
    yield f"Medians of {num_rounds} iterations (and the shortest)."
    yield ""
    yield "| schedule | measured | error |"
    yield "|---|---|---|"
    errors: dict[str, StepErrors] = {}
    for name in CATALOGUE:
        several = bench.run(name, partial(errors_of, name, links, num_rounds))
        if several is not None:
            errors[name] = several
            yield f"| {name} | {readable_s(min(several)[0])} to {readable_s(max(several)[0])} | {cell(several)} |"
    yield ""
    yield from verdict(LIMIT, errors)
    yield from bench.lines()


ROW = Row("Emulated ranks, all schedules of the catalogue", "at most 1 % off", 3, 145.0, lines)
