"""Prediction beside measurement: emulated ranks on gloo, and a real GPT on two processes.

    python benchmarks/verify.py [--runs 3] [--out benchmarks/results/verify.md]
    python benchmarks/verify.py --schedules all [--runs 5] [--out benchmarks/results/schedules.md]

Emulated ranks sleep for the time of their ops and send real messages; links are measured first. The GPT is profiled,
predicted and run; profiles and runs take turns, so that a drift of the machine affects both. With --schedules only the
given schedules, or all of the catalogue, are emulated, on four ranks.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Iterator, Sequence

from emulated_stages import uneven_stages
from report import arguments_of, beside, provenance, show, within

import pipesched
from pipesched import CATALOGUE, Cluster, Link, Schedule, build, flat

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
"""Largest relative error of a prediction of an emulated run."""

Cases = Iterator[tuple[str, float, Sequence[float]]]
"""Cases as (name, predicted makespan, measured makespans) [s]."""


def emulated(schedules: Iterable[Schedule], runs: int, link: Link, op_s: float = 0.020) -> Cases:
    """Emulate ranks whose F, I and W take `op_s` each."""
    for schedule in schedules:
        costs = uneven_stages(schedule, op_s, MESSAGE_BYTES, WEIGHT_BYTES)
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


def head(command: str, link: Link) -> Iterator[str]:
    """Yield the provenance: the command, the machine and the link."""
    yield from provenance(f"verify.py {command}", os.getloadavg()[0], "gloo, 1 thread per rank")
    yield f"Link by `profile-links`: {link.latency_s * 1e6:.0f} us, {link.bandwidth_bytes_per_s / 1e9:.2f} GB/s;"
    yield (
        f"of {MESSAGE_BYTES // 1024} KiB a Send keeps its rank {link.sending_s(MESSAGE_BYTES) * 1e6:.0f} us, a Recv "
        f"{link.post_s * 1e6:.0f} us, taking it {link.receiving_s(MESSAGE_BYTES) * 1e6:.0f} us."
    )
    yield ""


def report(runs: int) -> Iterator[str]:
    """Yield each line of the report as soon as it is known."""
    link = pipesched.profile_links().cluster.intra
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
    """Yield the report of schedules emulated on `p` ranks, with the number of schedules within the limit."""
    schedules = [build(name, p, m) for name in names]
    link = pipesched.profile_links().cluster.intra
    yield "# Schedules, predicted and emulated"
    yield ""
    yield from head(f"--schedules {','.join(names)} --runs {runs} -p {p} -m {m} --op-s {op_s:g}", link)
    yield f"Messages of {MESSAGE_BYTES // 1024} KiB, gradients of {WEIGHT_BYTES // 1024} KiB per stage. F, I and W"
    yield f"of all that a rank holds take {op_s * 1e3:g} ms each per micro-batch, but F of stages 1, 4, .. takes 25 %"
    yield "more and of stages 2, 5, .. 50 % more."
    yield ""
    errors: dict[str, float] = {}
    yield from rows(_noted(emulated(schedules, runs, link, op_s), errors))
    yield ""
    yield within(LIMIT, errors)


def _noted(cases: Cases, errors: dict[str, float]) -> Cases:
    """Yield the cases, and add the error of each to `errors`."""
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
