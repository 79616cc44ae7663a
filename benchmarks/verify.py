"""Prediction beside measurement: emulated ranks on gloo, and a real GPT on two processes.

    python benchmarks/verify.py [--runs 3] [--out benchmarks/results/verify.md]
    python benchmarks/verify.py --schedules all [--runs 5] [--out benchmarks/results/schedules.md]

Emulated ranks sleep as long as the costs say and send real messages; links are measured first on idle ranks. The GPT is
profiled, predicted and run; profile and runs take turns, so that a machine that drifts does not speak for one of them.
With --schedules all those of the catalogue, or those named, are emulated on four ranks, and nothing else is done.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Iterator, Sequence

from report import arguments_of, provenance, show

import pipesched
from pipesched.executor.launch import Measure, RunSpec
from pipesched.executor.runs import launch
from pipesched.profiles.clusters import Cluster, Link, flat
from pipesched.profiles.costs import StageCost, StageCosts, layer_seconds
from pipesched.profiles.measuring import profile_model
from pipesched.profiles.models import resolve_model
from pipesched.profiles.partitioning import balanced_partition
from pipesched.profiles.processes import num_cores
from pipesched.schedules import Schedule
from pipesched.schedules.builders import CATALOGUE, build
from pipesched.schedules.formats import to_json

MODEL, MICROBATCH_SIZE = "gpt", 2
GPT: tuple[tuple[str, dict[str, int]], ...] = (
    ("gpipe", {}),
    ("1f1b", {}),
    ("1f1b_afp", {}),
    ("interleaved", {"num_chunks": 2}),
    ("pipedream", {}),
)
EMULATED = tuple((name, p, chunks) for p in (4, 8) for name, chunks in GPT)
MESSAGE_BYTES = 64 * 1024
WEIGHT_BYTES = 1024 * 1024
LIMIT = 0.03
"""How far off a prediction of an emulated run may be."""

Cases = Iterator[tuple[str, float, list[float]]]
"""(case, predicted makespan, measured makespans) [s], one after the other."""


def emulated(schedules: Iterable[Schedule], runs: int, link: Link, op_s: float = 0.020) -> Cases:
    """Emulate; F, I and W of all that a rank holds take `op_s` each, but stages are uneven on purpose."""
    for schedule in schedules:
        p = schedule.num_ranks
        op_share_s = op_s * p / schedule.num_stages
        stages = tuple(
            StageCost(
                forward_s=op_share_s * (1 + 0.25 * (s % 3)),
                backward_input_s=op_share_s,
                backward_weight_s=op_share_s,
                step_s=0.002,
                output_bytes=MESSAGE_BYTES,
                weight_bytes=WEIGHT_BYTES,
            )
            for s in range(schedule.num_stages)
        )
        costs = StageCosts(stages, origin="by hand")
        cluster = flat(p, link)
        job = Measure(schedule=to_json(schedule), emulate=costs, iterations=runs)
        yield (
            f"{schedule.name}, p = {p}, m = {schedule.num_microbatches}",
            pipesched.simulate(schedule, costs, cluster).makespan_s,
            list(launch(RunSpec(job=job)).makespans_s),
        )


def real(runs: int, cluster: Cluster) -> Cases:
    """Run the GPT; each run has its own profile, measured just before."""
    model = resolve_model(MODEL)
    for name, options in GPT:
        schedule = build(name, 2, 8, **options)
        predicted, found = [], []
        for _ in range(runs):
            profile = profile_model(model, microbatch_sizes=[MICROBATCH_SIZE], companions=min(2, num_cores()) - 1)
            bounds = balanced_partition(layer_seconds(profile, MICROBATCH_SIZE), schedule.num_stages)
            predicted.append(pipesched.simulate(schedule, profile, cluster, microbatch_size=MICROBATCH_SIZE).makespan_s)
            job = Measure(schedule=to_json(schedule), microbatch_size=MICROBATCH_SIZE, iterations=3)
            found.append(launch(RunSpec(job=job, model=MODEL, bounds=bounds)).timeline.makespan_s)
        yield f"{name}, p = 2, m = 8", statistics.median(predicted), found


def rows(cases: Cases) -> Iterator[str]:
    """Yield a table, line by line as it comes."""
    yield "| case | predicted | measured, median | error | measured, all |"
    yield "|---|---|---|---|---|"
    for case, predicted_s, measured_s in cases:
        median_s = statistics.median(measured_s)
        yield (
            f"| {case} | {predicted_s * 1e3:.1f} ms | {median_s * 1e3:.1f} ms | {predicted_s / median_s - 1:+.1%} "
            f"| {min(measured_s) * 1e3:.1f} to {max(measured_s) * 1e3:.1f} ms |"
        )


def head(command: str, link: Link) -> Iterator[str]:
    """Yield what was run where."""
    yield from provenance(f"verify.py {command}", os.getloadavg()[0], "gloo, 1 thread per rank")
    yield f"Link measured on idle ranks: {link.latency_s * 1e6:.0f} us, {link.bandwidth_bytes_per_s / 1e9:.2f} GB/s."
    yield ""


def report(runs: int) -> Iterator[str]:
    """Yield the report line by line, as it comes."""
    link = pipesched.profile_links().intra
    yield "# Prediction beside measurement"
    yield ""
    yield from head(f"--runs {runs}", link)
    yield f"## Emulated ranks, messages of {MESSAGE_BYTES // 1024} KiB"
    yield ""
    yield from rows(emulated((build(name, p, 2 * p, **options) for name, p, options in EMULATED), runs, link))
    yield ""
    yield f"## {MODEL} (10 M parameters), micro-batches of {MICROBATCH_SIZE}"
    yield ""
    yield from rows(real(runs, flat(2, link)))


def report_of(names: Sequence[str], runs: int, p: int, m: int, op_s: float) -> Iterator[str]:
    """Yield the same of schedules emulated on `p` ranks, and how many are within the limit."""
    schedules = [build(name, p, m) for name in names]
    link = pipesched.profile_links().intra
    yield "# Schedules, predicted and emulated"
    yield ""
    yield from head(f"--schedules {','.join(names)} --runs {runs} -p {p} -m {m} --op-s {op_s:g}", link)
    yield f"Messages of {MESSAGE_BYTES // 1024} KiB, gradients of {WEIGHT_BYTES // 1024} KiB per stage. F, I and W"
    yield f"of all that a rank holds take {op_s * 1e3:g} ms each per micro-batch, but F of stages 1, 4, .. takes 25 %"
    yield "more and of stages 2, 5, .. 50 % more."
    yield ""
    errors: dict[str, float] = {}
    yield from rows(_noted(emulated(schedules, runs, link, op_s), errors))
    beyond = [f"{case} ({error:+.1%})" for case, error in errors.items() if abs(error) > LIMIT]
    yield ""
    yield f"Within {LIMIT:.0%}: {len(errors) - len(beyond)} of {len(errors)}. Beyond: {', '.join(beyond) or 'none'}."


def _noted(cases: Cases, errors: dict[str, float]) -> Cases:
    """Hand on the cases, and note how far off each is."""
    for case, predicted_s, measured_s in cases:
        errors[case] = predicted_s / statistics.median(measured_s) - 1
        yield case, predicted_s, measured_s


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--schedules", help="all, or names: emulate these instead")
    parser.add_argument("-p", type=int, default=4, help="ranks, with --schedules")
    parser.add_argument("-m", type=int, default=8, help="micro-batches, with --schedules")
    parser.add_argument("--op-s", type=float, default=0.040, help="seconds of F, I and W of a rank, with --schedules")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.schedules:
        names = arguments.schedules.split(",")
        if arguments.schedules == "all":
            names = list(CATALOGUE)
        lines = report_of(names, arguments.runs, arguments.p, arguments.m, arguments.op_s)
    else:
        lines = report(arguments.runs)
    show(lines, arguments.out)


if __name__ == "__main__":
    main()
