"""How many settings a sweep predicts per second, beside a loop of `simulate` over some of the same, in one run.

    python benchmarks/sweep.py --out benchmarks/results/sweep.md    # a minute or two

Both are asked the same of every setting: makespan, bubble, steady pace and peak memory. Sweeps and loops take turns,
and of each the median counts, so that what else the machine does is in both.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from report import arguments_of, provenance, show

import pipesched

COSTS = pipesched.DeviceCost(
    0.010, backward_input_s=0.010, backward_weight_s=0.010, step_s=0.005,
    output_bytes=8_000_000, saved_bytes=400_000_000, weight_bytes=1_000_000_000,
)  # fmt: skip
RANKS, ROUNDS, LOOPED = 8, 3, 5
"""Ranks of all pipelines, turns that sweeps and loops take, and settings of a loop."""


@dataclass(frozen=True, slots=True)
class Case:
    """A sweep."""

    what: str
    schedules: Sequence[str]
    microbatches: Sequence[int]
    link: Mapping[str, Sequence[float]]

    def sweep(self) -> pipesched.SweepResult:
        return pipesched.sweep(
            self.schedules,
            COSTS,
            num_ranks=[RANKS],
            num_microbatches=self.microbatches,
            link=self.link,
            num_workers=1,
        )

    def simulated(self, row: Mapping[str, Any]) -> None:
        """Ask `simulate` what a row of the sweep says."""
        link = pipesched.Link(**{name: row[name] for name in self.link})
        cluster = pipesched.flat(RANKS, link)
        counts = {"num_ranks": RANKS, "num_microbatches": row["num_microbatches"]}
        simulation = pipesched.simulate(row["schedule"], COSTS, cluster, **counts)
        peak_bytes = max(device.peak_memory_bytes or 0 for device in simulation.metrics.devices)
        if abs(simulation.makespan_s / row["makespan_s"] - 1) > 1e-9 or peak_bytes != row["peak_memory_bytes"]:
            raise SystemExit(f"{row}: simulate says {simulation.makespan_s} s and {peak_bytes} bytes")
        _ = simulation.steady_s_per_microbatch


def cases() -> Iterator[Case]:
    counts, names = range(61, 65), ("gpipe", "1f1b", "interleaved", "zb_h1", "zbv")
    yield Case("each with lists of its own", names, counts, {})
    for count in (100, 1_000):
        bandwidths = [1e9 * (1 + number / 100) for number in range(count)]
        yield Case(f"the same lists, {count:,} bandwidths", ["1f1b"], [64], {"bandwidth_bytes_per_s": bandwidths})


def timed(work: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s


def report() -> Iterator[str]:
    yield "# Sweeps"
    yield ""
    yield from provenance("sweep.py", os.getloadavg()[0], f"median of {ROUNDS}; p = {RANKS}, m = 61 to 64, with bytes")
    yield ""
    yield "| settings | number | a sweep | settings/s | a loop of `simulate`, settings/s | ratio |"
    yield "|---|---|---|---|---|---|"
    for case in cases():
        rows = case.sweep().to_rows()
        some = rows[:: max(1, len(rows) // LOOPED)][:LOOPED]
        sweeps_s, loops_s = list[float](), list[float]()
        for _ in range(ROUNDS):
            sweeps_s.append(timed(case.sweep))
            loops_s.append(timed(lambda some=some, case=case: [case.simulated(row) for row in some]))  # type: ignore[misc]
        sweep_s = statistics.median(sweeps_s)
        rate, looped = len(rows) / sweep_s, len(some) / statistics.median(loops_s)
        yield f"| {case.what} | {len(rows):,} | {sweep_s:.2f} s | {rate:,.0f} | {looped:.1f} | {rate / looped:,.1f} |"


def main() -> None:
    show(report(), arguments_of(__doc__).parse_args().out)


if __name__ == "__main__":
    main()
