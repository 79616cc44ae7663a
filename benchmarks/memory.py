"""Measured memory of processes beside its prediction: N pipelines of three models, and every schedule.

    python benchmarks/memory.py [--models gpt,conv] [--iterations 20] [--out benchmarks/results/memory.md]
    python benchmarks/memory.py --schedules --out benchmarks/results/memory.md    # that part alone, in three minutes

Every rank is a process, over gloo. Its memory is malloc's count after and inside every op (`core.memory_meter`), summed
over the ranks of a device. There are two predictions: a simulated iteration, and AvgPipe's Eq. 8 from M = 8 and N = 1
in both accountings.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from report import arguments_of, provenance, show

import pipesched
from pipesched.schedules import Schedule, repeat
from pipesched.schedules.lowering import lower
from pipesched.simulator.analysis import Metrics
from pipesched.simulator.tuner import Accounting, SettingProfile, predict_setting, profile_setting
from pipesched.workflows.simulating import Simulation

MODELS = {  # with the samples of a batch
    "gpt": ("gpt:layers=4,width=128,heads=4,context=64", 16),
    "conv": ("conv:channels=32,blocks=4,image=16", 32),
    "lstm": ("lstm:layers=4,width=128,context=32", 32),
}
MICROBATCHES, PIPELINES, DEVICES = (1, 2, 4, 8), (1, 2, 3), 2
SCHEDULES_MODEL = "gpt:layers=16,width=64,heads=4,context=64"
RANKS, SIZE = 4, 4
"""Ranks of each schedule, with twice as many micro-batches; samples of a micro-batch."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model with equally many layers on each device, and its batch."""

    profile: pipesched.Profile
    batch: int

    def simulated(self, m: int, n: int) -> Simulation:
        """Return an iteration of N pipelines with M micro-batches each."""
        return pipesched.simulate(
            lists(m, n), pipesched.Setup(self.profile, microbatch_size=self.batch // m, partition="uniform")
        )

    def measured(self, m: int, n: int, iterations: int) -> Metrics:
        """Return the measurement of a run of `iterations` iterations in sequence."""
        size = self.batch // m
        whole = repeat(lists(m, n), iterations)
        run = pipesched.run(
            whole, self.profile.model, microbatch_size=size, partition="uniform", iterations=1, warmup=0
        )
        return run.metrics


def lists(m: int, n: int) -> Schedule:
    """Return N pipelines in 1F1B."""
    return lower(pipesched.build("avgpipe", DEVICES, m * n, pipelines=n, advance=0))


def peaks(metrics: Metrics) -> Mapping[int, int]:
    """Return the peak memory of each device [bytes]."""
    return {device.device: device.peak_memory_bytes or 0 for device in metrics.devices}


def report(names: list[str], iterations: int) -> Iterator[str]:
    """Yield the lines of the report."""
    yield "# Memory predicted and held, several pipelines"
    yield ""
    yield from provenance("memory.py", os.getloadavg()[0], f"{iterations} iterations, 2 devices, adamw, float32")
    yield ""
    yield "| model | M | N | device | held, MB | simulated | Eq. 8, consistent | Eq. 8, paper |"
    yield "|---|---|---|---|---|---|---|---|"
    for name in names:
        model, batch = MODELS[name]
        sizes = [batch // m for m in MICROBATCHES]
        case = Case(pipesched.profile(model, sizes, repeats=1, warmup=1).profile, batch)
        known = case.simulated(8, 1)
        setting = profile_setting(known.timeline, known.costs, 1)
        for n in PIPELINES:
            for m in MICROBATCHES:
                yield from rows(case, setting, name, m, n, iterations)


def rows(case: Case, setting: SettingProfile, name: str, m: int, n: int, iterations: int) -> Iterator[str]:
    """Yield a line for each device."""
    held, simulated = peaks(case.measured(m, n, iterations)), peaks(case.simulated(m, n).metrics)
    consistent, paper = (
        predict_setting(setting, m, n, how).devices for how in (Accounting.CONSISTENT, Accounting.PAPER)
    )
    for device, num_bytes in held.items():
        predictions = (simulated[device], consistent[device].held_bytes, paper[device].held_bytes)
        errors = " | ".join(f"{prediction / num_bytes - 1:+.1%}" for prediction in predictions)
        yield f"| {name} | {m} | {n} | {device} | {num_bytes / 1e6:.2f} | {errors} |"


def schedules() -> Iterator[str]:
    """Yield the lines of the part on schedules: the error of the fullest device, and the largest of any device."""
    yield "# Memory predicted and held, every schedule"
    yield ""
    yield from provenance("memory.py --schedules", os.getloadavg()[0], f"{RANKS} ranks, adamw, float32")
    yield ""
    yield f"`{SCHEDULES_MODEL}`, {2 * RANKS} micro-batches of {SIZE} samples, after a warm-up run of the same lists."
    yield "Only dualpipe and dualpipe_v overlap F and B: a prediction counts both at once, a CPU computes them in turn."
    yield ""
    yield "| schedule | held by the fullest device, MB | simulated | largest error of a device |"
    yield "|---|---|---|---|"
    profile = pipesched.profile(SCHEDULES_MODEL, [SIZE], repeats=1, warmup=1).profile
    for name in pipesched.CATALOGUE:
        schedule = pipesched.build(name, RANKS, 2 * RANKS)
        run = pipesched.run(
            schedule, SCHEDULES_MODEL, microbatch_size=SIZE, partition="uniform", iterations=1, warmup=1
        )
        setup = pipesched.Setup(profile, microbatch_size=SIZE, partition="uniform")
        held, simulated = peaks(run.metrics), peaks(pipesched.simulate(schedule, setup).metrics)
        errors = {device: simulated[device] / num_bytes - 1 for device, num_bytes in held.items()}
        fullest = max(held, key=lambda device: held[device])
        largest = max(errors.values(), key=abs)
        yield f"| {name} | {held[fullest] / 1e6:.2f} | {errors[fullest]:+.1%} | {largest:+.1%} |"


def main() -> None:
    """Measure the memory of all models, or of all schedules, and write the report."""
    parser = arguments_of(__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="some of gpt, conv, lstm")
    parser.add_argument("--iterations", type=int, default=8, help="in each of which all pipelines may peak at once")
    parser.add_argument("--schedules", action="store_true", help="every schedule of the catalogue instead")
    arguments = parser.parse_args()
    if arguments.schedules:
        show(schedules(), arguments.out)
        return
    show(report(arguments.models.split(","), arguments.iterations), arguments.out)


if __name__ == "__main__":
    main()
