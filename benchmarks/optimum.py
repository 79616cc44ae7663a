"""How far schedules are from the least time of any order of their ops under the same memory, as CP-SAT proves it.

    python benchmarks/optimum.py --out benchmarks/results/optimum.md    # five minutes

Every schedule's ops are ordered anew with as many micro-batches in flight as it has on the rank where it has most.
Where the best order that is known is above the bound, the least time is between the two.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from report import arguments_of, provenance, show

import pipesched
from pipesched.profiles.clusters import flat
from pipesched.simulator.optimum import (
    PLANNER,
    counted_room,
    least_ticks,
    most_in_flight,
    objective_ticks,
    order_problem,
    orderable,
    planned_times,
)

SECONDS, WORKERS = 8.0, 2
"""How long a search may last, and its threads."""
SPLIT = pipesched.DeviceCost(1.0, backward_input_s=1.0, backward_weight_s=1.0)
WHOLE = pipesched.DeviceCost(1.0, backward_s=2.0)
SPLIT_SCHEDULES = {"zb_h1": None, "zb_h2": None, "interleaved_zb": 2, "zbv": None, "v_half": None, "v_min": None}
WHOLE_SCHEDULES = {"gpipe": None, "1f1b": None, "interleaved": 2, "looped_bfs": 2, "hanayo": None}
PROFILED = {"1f1b": None, "interleaved": 2, "zb_h1": None, "zbv": None}
SIZES = ((2, 4), (4, 4), (4, 8), (4, 16), (8, 16), (8, 32))
PROFILES = ("gpt-10m-epyc.json", "conv-epyc.json")
FOLDER = Path(__file__).parents[1] / "profiles" / "data"
COLUMNS = 78


@dataclass(frozen=True, slots=True)
class Case:
    """A schedule of the catalogue with its counts and costs."""

    name: str
    p: int
    m: int
    num_chunks: int | None
    costs: pipesched.DeviceCost | pipesched.Profile
    label: str = ""

    def optimum(self) -> pipesched.Optimum:
        counts = {"num_ranks": self.p, "num_microbatches": self.m, "num_chunks": self.num_chunks}
        return pipesched.optimize(self.name, self.costs, **counts, seconds=SECONDS, num_workers=WORKERS)  # type: ignore[arg-type]


def table(cases: Iterator[Case], better: list[str]) -> Iterator[str]:
    """Yield a row for each case, and add to `better` the charts of the first better order of each schedule."""
    yield "| p | m | schedule | in flight | makespan | bound | above | best order | above | planner above | search |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    charted = set[str]()
    for case in cases:
        begun_s = time.monotonic()
        result = case.optimum()
        search_s = time.monotonic() - begun_s
        seconds = {row["name"]: row["makespan_s"] for row in result.to_rows()}
        own_s, least = seconds[case.name], result.least
        yield (
            f"| {case.p} | {case.m} | {case.label}{case.name} | {least.in_flight:.4g} | {own_s:.4g} s | "
            f"{least.bound_s:.4g} s | {least.gap_of(own_s):.1%} | {result.makespan_s:.4g} s | {least.gap:.1%} | "
            f"{least.gap_of(seconds[PLANNER]):.1%} | {search_s:.1f} s |"
        )
        if result.makespan_s < own_s * (1 - 1e-9) and case.name not in charted and case.p > 2:
            charted.add(case.name)
            better += chart(case, result, own_s)


def chart(case: Case, result: pipesched.Optimum, own_s: float) -> Iterator[str]:
    """Yield the schedule's own order above the better one."""
    counts = {"num_ranks": case.p, "num_microbatches": case.m, "num_chunks": case.num_chunks}
    own = pipesched.simulate(case.name, case.costs, **counts)  # type: ignore[arg-type]
    yield f"### {case.label}{case.name}, p = {case.p}, m = {case.m}: {own_s:.4g} s, or {result.makespan_s:.4g} s"
    yield from ("", "```text")
    yield pipesched.gantt(own, result.simulation).to_text(COLUMNS)
    yield from ("```", "")


def of_uniform(costs: pipesched.DeviceCost, schedules: Mapping[str, int | None]) -> Iterator[Case]:
    for (p, m), (name, num_chunks) in product(SIZES, schedules.items()):
        yield Case(name, p, m, num_chunks, costs)


def of_profiles() -> Iterator[Case]:
    for file, (name, num_chunks) in product(PROFILES, PROFILED.items()):
        profile = pipesched.load_profile(FOLDER / file)
        yield Case(name, 4, 8, num_chunks, profile, label=f"{file.removesuffix('.json')}: ")


def planner_times() -> Iterator[str]:
    yield "| p | m | stages | in flight | planner | above the simple bound | its time |"
    yield "|---|---|---|---|---|---|---|"
    for name in ("zb_h1", "zb_h2", "zbv", "v_half"):
        schedule = pipesched.build(name, 8, 64)
        costs = SPLIT.stage_costs(schedule)
        lists = orderable(schedule, costs)
        most = most_in_flight(lists, costs)
        problem = order_problem(lists, costs, flat(8), counted_room(lists, costs, most))
        spent_s = list[float]()
        for _ in range(5):
            begun_s = time.process_time()
            ticks = objective_ticks(problem, planned_times(problem))
            spent_s.append(time.process_time() - begun_s)
        stages = "one per rank" if schedule.num_stages == schedule.num_ranks else "a V"
        yield (
            f"| 8 | 64 | {stages} | {most:.4g} | {ticks * problem.tick_s:.4g} s | "
            f"{ticks / least_ticks(problem) - 1:.1%} | {statistics.median(spent_s) * 1e3:.0f} ms |"
        )


def report() -> Iterator[str]:
    better = list[str]()
    yield "# Optimum"
    yield ""
    how = f"searches of at most {SECONDS:g} s on {WORKERS} threads"
    yield from provenance("optimum.py", os.getloadavg()[0], how)
    yield from ("", "F, I and W of a device take 1 s each:", "")
    yield from table(of_uniform(SPLIT, SPLIT_SCHEDULES), better)
    yield from ("", "F takes 1 s, and B, which is not split, 2 s:", "")
    yield from table(of_uniform(WHOLE, WHOLE_SCHEDULES), better)
    yield from ("", "Measured profiles, links that take no time:", "")
    yield from table(of_profiles(), better)
    yield from ("", "The planner alone, with F, I and W of 1 s; the median of 5 times of the processor:", "")
    yield from planner_times()
    yield from ("", "## Better orders", "")
    yield "The first of each schedule that is better than its own order, which stands above it, with the same memory."
    yield ""
    yield from better


def main() -> None:
    show(report(), arguments_of(__doc__).parse_args().out)


if __name__ == "__main__":
    main()
