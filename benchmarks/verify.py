"""Prediction beside measurement: emulated ranks on gloo, and a real GPT on two processes.

    python benchmarks/verify.py [--runs 3] [--out benchmarks/results/verify.md]

Emulated ranks sleep as long as the costs say and send real messages; links are measured first on idle ranks. The GPT is
profiled, predicted and run; profile and runs take turns, so that a machine that drifts does not speak for one of them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import torch

from executor.job import Job
from executor.launcher import launch
from profiles.cluster import Cluster, Link, flat
from profiles.files import load_cluster
from profiles.host import device_name, num_cores
from profiles.models.resolve import resolve_model
from profiles.partition import balanced_partition
from profiles.profile import layer_seconds, stage_costs
from profiles.profiler import profile_model
from profiles.stage_costs import StageCost, StageCosts
from schedules.catalogue import build
from schedules.formats.schedule_json import to_json
from simulator.simulate import simulate

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


def measured_link() -> Link:
    """Measure the link between two processes of this machine."""
    from typer.testing import CliRunner

    from pipesched.__main__ import app

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cluster.json"
        CliRunner().invoke(app, ["profile-links", "--out", str(path)], catch_exceptions=False)
        return load_cluster(path).intra


def emulated(runs: int, link: Link) -> Iterator[tuple[str, float, list[float]]]:
    """Yield (case, predicted makespan, measured makespans) [s]; stages are uneven on purpose."""
    for name, p, options in EMULATED:
        schedule = build(name, p, 2 * p, **options)
        share = p / schedule.num_stages
        stages = tuple(
            StageCost(0.020 * share * (1 + 0.25 * (s % 3)), 0.040 * share, output_bytes=MESSAGE_BYTES, step_s=0.002)
            for s in range(schedule.num_stages)
        )
        costs = StageCosts(stages, origin="by hand")
        cluster = flat(p, link)
        job = Job(schedule=to_json(schedule), emulate=costs, iterations=runs)
        yield (
            f"{name}, p = {p}, m = {2 * p}",
            simulate(schedule, costs, cluster).makespan_s,
            list(launch(job).makespans_s),
        )


def real(runs: int, cluster: Cluster) -> Iterator[tuple[str, float, list[float]]]:
    """Yield the same for the GPT: each run has its own profile, measured just before."""
    model = resolve_model(MODEL)
    for name, options in GPT:
        schedule = build(name, 2, 8, **options)
        predicted, found = [], []
        for _ in range(runs):
            profile = profile_model(model, microbatch_sizes=[MICROBATCH_SIZE], companions=min(2, num_cores()) - 1)
            bounds = balanced_partition(layer_seconds(profile, MICROBATCH_SIZE), schedule.num_stages)
            predicted.append(simulate(schedule, stage_costs(profile, bounds, MICROBATCH_SIZE), cluster).makespan_s)
            job = Job(
                schedule=to_json(schedule), model=MODEL, bounds=bounds, microbatch_size=MICROBATCH_SIZE, iterations=3
            )
            found.append(launch(job).timeline.makespan_s)
        yield f"{name}, p = 2, m = 8", statistics.median(predicted), found


def rows(cases: Iterator[tuple[str, float, list[float]]]) -> Iterator[str]:
    for case, predicted_s, measured_s in cases:
        median_s = statistics.median(measured_s)
        yield (
            f"| {case} | {predicted_s * 1e3:.1f} ms | {median_s * 1e3:.1f} ms | {predicted_s / median_s - 1:+.1%} "
            f"| {min(measured_s) * 1e3:.1f} to {max(measured_s) * 1e3:.1f} ms |"
        )


def report(runs: int) -> Iterator[str]:
    """Yield the report line by line, as it comes."""
    link = measured_link()
    head = ("| case | predicted | measured, median | error | measured, all |", "|---|---|---|---|---|")
    yield "# Prediction beside measurement"
    yield ""
    yield f"`python benchmarks/verify.py --runs {runs}`, {datetime.now(UTC):%Y-%m-%d}, torch {torch.__version__}, gloo,"
    machine = f"{device_name(torch.device('cpu'))}, {num_cores()} cores, load before {os.getloadavg()[0]:.2f}"
    yield f"{machine}, 1 thread per rank."
    yield f"Link measured on idle ranks: {link.latency_s * 1e6:.0f} us, {link.bandwidth_bytes_per_s / 1e9:.2f} GB/s."
    yield ""
    yield f"## Emulated ranks, messages of {MESSAGE_BYTES // 1024} KiB"
    yield ""
    yield from head
    yield from rows(emulated(runs, link))
    yield ""
    yield f"## {MODEL} (10 M parameters), micro-batches of {MICROBATCH_SIZE}"
    yield ""
    yield from head
    yield from rows(real(runs, flat(2, link)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, help="also write the report here")
    arguments = parser.parse_args()
    lines = []
    for line in report(arguments.runs):
        print(line, flush=True)
        lines.append(line)
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
