"""The gap of schedules to the fastest order of their ops in the same memory, as CP-SAT proves it.

    python benchmarks/optimum.py --out benchmarks/results/optimum.md    # ten minutes

The planner orders the ops of every schedule again, with at most the micro-batches in flight of its fullest rank. If the
best known order is above the bound, the least time is between the two. Schedules with more stages than a profile has
layers are left out.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from report import arguments_of, provenance, show

import pipesched
from pipesched.profiles.clusters import Cluster, Device, flat
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
from pipesched.workflows.optimizing import Optimum

SECONDS, LARGE_SECONDS, PROFILE_SECONDS, WORKERS = 8.0, 3.0, 1.5, 2
"""Time limits of a search: for equal costs up to 4 ranks, for more ranks, and for profiles [s]; number of threads."""
SPLIT = pipesched.DeviceCost(1.0, backward_input_s=1.0, backward_weight_s=1.0)
WHOLE = pipesched.DeviceCost(1.0, backward_s=2.0)
WITH_BYTES = pipesched.DeviceCost(1.0, 2.0, 1.0, 1.0, saved_bytes=10**9, output_bytes=10**8)
SPLIT_SCHEDULES = ("zb_h1", "zb_h2", "zb_auto", "interleaved_zb", "zbv", "v_half", "v_min", "dualpipe_v")
WHOLE_SCHEDULES = ("naive", "gpipe", "1f1b", "1f1b_afp", "interleaved", "looped_bfs", "hanayo")
UNFLUSHED = ("pipedream", "pipedream_2bw", "vanilla_1f1b", "stale_weights", "spectrain", "xpipe", "pipeoptim")
UNORDERED = ("avgpipe", "data_parallel", "chimera", "gems", "dualpipe", "1f1b_rr", "wpipe", "hybrid")
"""Schedules with replicas, versions, overlap or shared devices, which the planner does not support."""
REPEATED = (("1f1b", 4, 8), ("zb_h1", 4, 8), ("zb_h2", 4, 8), ("zbv", 4, 8), ("v_half", 4, 8), ("v_min", 4, 8))
RECOMPUTED = (("1f1b", 4, 8, 1.2), ("1f1b", 4, 8, 2), ("1f1b", 4, 8, 3), ("zb_h1", 4, 8, 2), ("v_min", 4, 8, 1.2))
"""Schedule, p, m and the most micro-batches in flight."""
PROFILED = {
    "gpt-10m-epyc.json": ("1f1b", "interleaved", "zb_h1", "zbv", "v_half", "v_min"),
    "conv-epyc.json": ("1f1b", "interleaved", "zb_h1", "zbv", "v_half", "v_min"),
    "pipedream/gnmt.graph.txt": ("gpipe", "1f1b", "interleaved", "hanayo"),
}
"""Schedules of each profile; the profile of PipeDream's authors has only B."""
BYTE_SCHEDULES = ("zb_h1", "1f1b", "zbv", "v_half", "interleaved", "hanayo")
BYTE_LIMITS = ((4, 8, 3.5), (4, 8, 4.5), (4, 8, 6))
"""p, m and the memory of each device [GB]; weights and gradients of its stages take 1 GB each."""
DRAWS, DRAWN_SECONDS = 100, 3.0
DRAWN_SCHEDULES, DRAWN_SIZES = ("1f1b", "zb_h1", "zb_h2", "zbv", "v_half", "v_min"), ((2, 6), (3, 5), (4, 6), (4, 8))
SIZES = tuple((p, m) for p in (2, 4, 8) for m in (4, 8, 16, 32) if m >= p)
CHUNKED = ("interleaved", "interleaved_zb", "looped_bfs")
"""Schedules that take any number of stages per rank; here two."""
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

    @property
    def counts(self) -> dict[str, Any]:
        return {"num_ranks": self.p, "num_microbatches": self.m, "num_chunks": self.num_chunks}

    def optimum(self, *, cluster: Cluster | None = None, **options: Any) -> Optimum:
        is_uniform = isinstance(self.costs, pipesched.DeviceCost)
        options.setdefault("seconds", PROFILE_SECONDS if not is_uniform else SECONDS if self.p <= 4 else LARGE_SECONDS)
        setup = pipesched.Setup(self.costs, cluster)
        return pipesched.optimize(pipesched.build(self.name, **self.counts), setup, num_workers=WORKERS, **options)


def table(cases: Iterator[Case], better: list[str]) -> Iterator[str]:
    """Yield a row for each case, and add to `better` the charts of the first better order of each schedule."""
    yield "| p | m | schedule | in flight | makespan | bound | above | best order | above | planner above it | search |"
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
            f"{seconds[PLANNER] / result.makespan_s - 1:.1%} | {search_s:.1f} s |"
        )
        if result.makespan_s < own_s * (1 - 1e-9) and case.label + case.name not in charted:
            charted.add(case.label + case.name)
            better += chart(case, result, own_s)


def chart(case: Case, result: Optimum, own_s: float) -> Iterator[str]:
    """Yield the chart of the schedule's own order above the chart of the better order."""
    own = pipesched.simulate(pipesched.build(case.name, **case.counts), case.costs)
    yield f"### {case.label}{case.name}, p = {case.p}, m = {case.m}: {own_s:.4g} s, or {result.makespan_s:.4g} s"
    yield from ("", "```text")
    yield pipesched.gantt(own, result.simulation).to_text(COLUMNS)
    yield from ("```", "")


def of_uniform(costs: pipesched.DeviceCost, schedules: Sequence[str]) -> Iterator[Case]:
    for (p, m), name in product(SIZES, schedules):
        if name != "dualpipe_v" or m >= 2 * p:  # it needs as many micro-batches as stages
            yield Case(name, p, m, 2 if name in CHUNKED else None, costs)


def of_profiles() -> Iterator[Case]:
    for file, schedules in PROFILED.items():
        profile = pipesched.load_profile(FOLDER / file)
        for (p, m), name in product(SIZES, schedules):
            case = Case(name, p, m, 2 if name in CHUNKED else None, profile, label=f"{file.partition('.')[0]}: ")
            if pipesched.build(name, p, m, case.num_chunks).num_stages <= len(profile.layers):
                yield case


def repeated() -> Iterator[str]:
    yield "| p | m | schedule | in flight | period | bound | above | best order | above |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for name, p, m in REPEATED:
        result = Case(name, p, m, None, WHOLE if name == "1f1b" else SPLIT).optimum(is_repeated=True)
        own_s, least = {row["name"]: row["period_s"] for row in result.to_rows()}[name], result.least
        yield (
            f"| {p} | {m} | {name} | {least.in_flight:.4g} | {own_s:.4g} s | {least.bound_s:.4g} s | "
            f"{least.gap_of(own_s):.1%} | {result.period_s:.4g} s | {least.gap:.1%} |"
        )


def unflushed() -> Iterator[str]:
    yield "| p | m | schedule | in flight | period | bound | above | in flight of the best | its period |"
    yield "|---|---|---|---|---|---|---|---|---|"
    cluster = flat(4, pipesched.Link(latency_s=1.0))
    for name in UNFLUSHED:
        case = Case(name, 4, 32, None, WHOLE)
        own, best = case.optimum(cluster=cluster), case.optimum(cluster=cluster, in_flight=8)
        seconds, least = {row["name"]: row["period_s"] for row in own.to_rows()}, own.least
        yield (
            f"| 4 | 32 | {name} | {least.in_flight:.4g} | {seconds[name]:.4g} s | {least.bound_s:.4g} s | "
            f"{least.gap_of(seconds[name]):.1%} | {best.least.in_flight:.4g} | {best.period_s:.4g} s |"
        )


def unordered() -> Iterator[str]:
    yield "| p | m | schedule | makespan | simple bound | above |"
    yield "|---|---|---|---|---|---|"
    for name, (p, m) in product(UNORDERED, ((4, 8), (8, 32))):
        case = Case(name, p, m, None, replace(SPLIT, backward_s=2.0))
        result = pipesched.simulate(pipesched.build(name, **case.counts), case.costs, bound_seconds=0)
        least = result.least
        assert least is not None
        yield (
            f"| {p} | {m} | {name} | {result.makespan_s:.4g} s | {least.bound_s:.4g} s | "
            f"{least.gap_of(result.makespan_s):.1%} |"
        )


def in_bytes() -> Iterator[str]:
    yield "| p | m | ops of | memory | makespan | bound | best order | above | planner above it |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for name, (p, m, parts) in product(BYTE_SCHEDULES, BYTE_LIMITS):
        costs = replace(WITH_BYTES, weight_bytes=10**9, output_bytes=10**6)
        cluster = replace(flat(p), devices=(Device(memory_bytes=int(parts * 10**9)),) * p)
        result = Case(name, p, m, 2 if name in CHUNKED else None, costs).optimum(cluster=cluster)
        seconds = {row["name"]: row["makespan_s"] for row in result.to_rows()}
        own = f"{seconds[name]:.4g} s" if name in seconds else "too large"
        yield (
            f"| {p} | {m} | {name} | {parts:g} GB | {own} | {result.least.bound_s:.4g} s | {result.makespan_s:.4g} s | "
            f"{result.least.gap:.1%} | {seconds[PLANNER] / result.makespan_s - 1:.1%} |"
        )


def recomputed() -> Iterator[str]:
    yield "| p | m | ops of | in flight, at most | without | above bound | by choice | above bound | stages that do |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for name, p, m, most in RECOMPUTED:
        case = Case(name, p, m, None, WITH_BYTES)
        without, by_choice = (case.optimum(in_flight=most, may_recompute=is_open) for is_open in (False, True))
        stages = ", ".join(map(str, by_choice.recomputed)) or "none"
        yield (
            f"| {p} | {m} | {name} | {most} | {without.makespan_s:.4g} s | {without.gap:.1%} | "
            f"{by_choice.makespan_s:.4g} s | {by_choice.gap:.1%} | {stages} |"
        )


def drawn_excess(draw: Random) -> float:
    """Return the excess of the planner's time over a schedule's best order, for random costs, links and memory."""
    name, (p, m) = draw.choice(DRAWN_SCHEDULES), draw.choice(DRAWN_SIZES)
    forward_s, input_s, weight_s = (draw.choice((0.75, 1.0, 1.0, 1.5, 2.0)) for _ in range(3))
    weights, most = draw.choice((0.0, 0.1, 0.4, 1.0, 1.5)), draw.choice((2.0, 2.5, 3.0, 3.5, 4.0))
    costs = pipesched.DeviceCost(forward_s, input_s + weight_s, saved_bytes=10**9, output_bytes=10**6)
    if name not in WHOLE_SCHEDULES:
        costs = replace(costs, backward_input_s=input_s, backward_weight_s=weight_s)
    cluster = flat(p, pipesched.Link(latency_s=draw.choice((0.0, 0.0, 0.25, 0.5))))
    if draw.random() < 0.4:
        options: dict[str, Any] = {"cluster": cluster, "in_flight": most}
    else:
        costs = replace(costs, weight_bytes=int(weights * 10**9))
        device = Device(memory_bytes=int((2 * weights + most) * 10**9))
        options = {"cluster": replace(cluster, devices=(device,) * p)}
    result = Case(name, p, m, None, costs).optimum(seconds=DRAWN_SECONDS, **options)
    seconds = {row["name"]: row["makespan_s"] for row in result.to_rows()}
    return float(seconds[PLANNER] / result.makespan_s - 1)


def drawn() -> Iterator[str]:
    excesses = [drawn_excess(Random(number)) for number in range(DRAWS)]
    yield "| draws | not above it | at most 1% above | most above |"
    yield "|---|---|---|---|"
    within = [sum(excess <= limit for excess in excesses) for limit in (1e-9, 0.01)]
    yield f"| {DRAWS} | {within[0]} | {within[1]} | {max(excesses):.1%} |"


def planner_times() -> Iterator[str]:
    yield "| p | m | ops of | in flight | planner | above the simple bound | its time |"
    yield "|---|---|---|---|---|---|---|"
    names = ("zb_h1", "zb_h2", "zbv", "v_half", "v_min", "1f1b", "interleaved", "hanayo")
    for (p, m), name in product(((4, 8), (8, 64)), names):
        schedule = pipesched.build(name, p, m, 2 if name in CHUNKED else None)
        costs = (WHOLE if name in WHOLE_SCHEDULES else SPLIT).stage_costs(schedule)
        lists = orderable(schedule, costs)
        most = most_in_flight(lists, costs)
        problem = order_problem(lists, costs, flat(p), counted_room(lists, costs, most))
        planned_times(problem)  # loads machine code
        spent_s = list[float]()
        for _ in range(5):
            begun_s = time.process_time()
            starts = planned_times(problem)
            spent_s.append(time.process_time() - begun_s)
        assert starts is not None, "what counts micro-batches always has an order"
        ticks = objective_ticks(problem, starts)
        yield (
            f"| {p} | {m} | {name} | {most:.4g} | {ticks * problem.tick_s:.4g} s | "
            f"{ticks / least_ticks(problem) - 1:.1%} | {statistics.median(spent_s) * 1e3:.0f} ms |"
        )


def report() -> Iterator[str]:
    better = list[str]()
    yield "# Optimum"
    yield ""
    how = (
        f"searches of at most {SECONDS:g} s, {LARGE_SECONDS:g} s with more than 4 ranks, {PROFILE_SECONDS:g} s with "
        f"profiles, on {WORKERS} threads"
    )
    yield from provenance("optimum.py", os.getloadavg()[0], how)
    yield from ("", "F, I and W of a device take 1 s each:", "")
    yield from table(of_uniform(SPLIT, SPLIT_SCHEDULES), better)
    yield from ("", "F takes 1 s, and B, which is not split, 2 s:", "")
    yield from table(of_uniform(WHOLE, WHOLE_SCHEDULES), better)
    yield from ("", "Measured profiles, links that take no time:", "")
    yield from table(of_profiles(), better)
    yield from ("", "A batch that is repeated without a pause, F, I and W of 1 s, or B of 2 s:", "")
    yield from repeated()
    yield ""
    yield "Without a flush, F of 1 s, B of 2 s and messages of 1 s: the period of a micro-batch with as many in"
    yield "flight as the schedule has, and with up to 8:"
    yield ""
    yield from unflushed()
    yield ""
    yield "Schedules with replicas, versions, overlap or shared devices have the simple bound of each device alone;"
    yield "F, I and W of 1 s, or B of 2 s:"
    yield ""
    yield from unordered()
    yield ""
    yield "Devices of so many bytes, of which weights, gradients and each micro-batch take 1 GB; F, I and W as above:"
    yield ""
    yield from in_bytes()
    yield ""
    yield "Stages that may recompute, F of 1 s, B of 2 s or I and W of 1 s, inputs a tenth of what is saved:"
    yield ""
    yield from recomputed()
    yield ""
    yield "How far the planner is above the best order known, of drawn schedules of a V or one stage, counts, costs,"
    yield f"links and memory; searches of {DRAWN_SECONDS:g} s:"
    yield ""
    yield from drawn()
    yield ""
    yield "The planner alone, with F, I and W of 1 s, or B of 2 s; the median of 5 times of the processor:"
    yield ""
    yield from planner_times()
    yield from ("", "## Better orders", "")
    yield "The first of each schedule that is better than its own order, which stands above it, with the same memory."
    yield ""
    yield from better


def main() -> None:
    show(report(), arguments_of(__doc__).parse_args().out)


if __name__ == "__main__":
    main()
