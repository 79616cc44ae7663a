"""Prediction beside measurement: emulated ranks on gloo, and a real GPT on two processes.

    python benchmarks/verify.py [--runs 3] [--out benchmarks/results/verify.md]

Emulated ranks sleep for the time of their ops and send real messages; links are measured first. The GPT is profiled,
predicted and run; profiles and runs take turns, so that a drift of the machine affects both. `fidelity.py --rows
emulated` emulates all schedules of the catalogue.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Sequence

from emulated_stages import uneven_stages
from report import arguments_of, beside, provenance, show

import pipesched
from pipesched import Cluster, Link, build, flat
from pipesched.workflows.measuring import profile_links

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
OP_S = 0.020

Cases = Iterator[tuple[str, float, Sequence[float]]]
"""Cases as (name, predicted makespan, measured makespans) [s]."""


def emulated(runs: int, link: Link) -> Cases:
    """Emulate ranks whose F, I and W take `OP_S` each."""
    for name, num_ranks, options in EMULATED:
        schedule = build(name, num_ranks, 2 * num_ranks, **options)
        costs = uneven_stages(schedule, OP_S, MESSAGE_BYTES, WEIGHT_BYTES)
        yield (
            f"{schedule.name}, p = {schedule.num_ranks}, m = {schedule.num_microbatches}",
            pipesched.simulate(schedule, pipesched.Setup(costs, flat(schedule.num_ranks, link))).makespan_s,
            pipesched.run(schedule, costs, iterations=runs).makespans_s,
        )


def real(runs: int, cluster: Cluster) -> Cases:
    """Run the GPT; each run has its own profile, measured just before."""
    for name, options in GPT:
        schedule = build(name, 2, 8, **options)
        pairs = [
            pipesched.verify(
                MODEL, [schedule], microbatch_size=MICROBATCH_SIZE, cluster=cluster, iterations=3
            ).schedules[0]
            for _ in range(runs)
        ]
        predicted_s = statistics.median(pair.predicted.makespan_s for pair in pairs)
        yield f"{name}, p = 2, m = 8", predicted_s, [pair.measured.makespan_s for pair in pairs]


def rows(cases: Cases) -> Iterator[str]:
    """Yield each line of a table as soon as it is known."""
    yield "| case | predicted | measured, median | error | measured, all |"
    yield "|---|---|---|---|---|"
    for case, predicted_s, measured_s in cases:
        yield f"| {case} | {beside(predicted_s, measured_s)} |"


def report(runs: int) -> Iterator[str]:
    """Yield each line of the report as soon as it is known."""
    link = profile_links().cluster.intra
    yield "# Prediction beside measurement"
    yield ""
    yield from provenance(f"verify.py --runs {runs}", os.getloadavg()[0], "gloo, 1 thread per rank")
    yield f"Link by `profile-links`: {link.latency_s * 1e6:.0f} us, {link.bandwidth_bytes_per_s / 1e9:.2f} GB/s;"
    yield (
        f"of {MESSAGE_BYTES // 1024} KiB a Send keeps its rank {link.sending_s(MESSAGE_BYTES) * 1e6:.0f} us, a Recv "
        f"{link.post_s * 1e6:.0f} us, taking it {link.receiving_s(MESSAGE_BYTES) * 1e6:.0f} us."
    )
    yield ""
    yield f"## Emulated ranks, messages of {MESSAGE_BYTES // 1024} KiB"
    yield ""
    yield from rows(emulated(runs, link))
    yield ""
    yield f"## {MODEL} (10 M parameters), micro-batches of {MICROBATCH_SIZE}"
    yield ""
    yield from rows(real(runs, flat(2, link)))


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    show(report(arguments.runs), arguments.out)


if __name__ == "__main__":
    main()
