"""Memory of real processes beside what is predicted of it: on each device, three models, M micro-batches, N pipelines.

Every rank is a process, over gloo. What it holds is malloc's count after every op and inside it (`core.memory_meter`),
added up over the ranks of a device; predicted are a simulated iteration, and AvgPipe's Eq. 8 from M = 8 and N = 1 in
both accountings.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pipesched.executor.launch import Measure, RunSpec
from pipesched.executor.runs import launch
from pipesched.profiles.clusters import flat
from pipesched.profiles.costs import Profile, StageCosts, costs_of_stages
from pipesched.profiles.measuring import profile_model
from pipesched.profiles.models import resolve_model
from pipesched.profiles.partitioning import parse_partition
from pipesched.schedules import Schedule, Timeline, repeat
from pipesched.schedules.builders import build
from pipesched.schedules.formats import to_json
from pipesched.schedules.lowering import lower
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.memory import memory, peak_memory
from pipesched.simulator.tuner import Accounting, SettingProfile, predict_setting, profile_setting

from report import arguments_of, provenance, show  # isort: skip  # it lies beside this file

MODELS = {  # with the samples of a batch
    "gpt": ("gpt:layers=4,width=128,heads=4,context=64", 16),
    "conv": ("conv:channels=32,blocks=4,image=16", 32),
    "lstm": ("lstm:layers=4,width=128,context=32", 32),
}
MICROBATCHES, PIPELINES, DEVICES = (1, 2, 4, 8), (1, 2, 3), 2


@dataclass(frozen=True, slots=True)
class Case:
    """A model, and its batch."""

    profile: Profile
    batch: int

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """As many layers on each device."""
        return parse_partition("uniform", [1.0] * len(self.profile.layers), DEVICES)

    def costs(self, m: int) -> StageCosts:
        """Of a micro-batch, if there are so many."""
        return costs_of_stages(self.profile, self.bounds, self.batch // m)

    def simulated(self, schedule: Schedule, m: int) -> Timeline:
        """Return an iteration with the memory of all devices."""
        timeline = simulate_lists(schedule, self.costs(m), flat(DEVICES))
        return replace(timeline, memory=memory(timeline, self.costs(m), schedule))

    def measured(self, schedule: Schedule, m: int, iterations: int) -> Timeline:
        """Return a run of so many iterations, one behind the other."""
        lists = to_json(repeat(schedule, iterations).held())
        job = Measure(schedule=lists, microbatch_size=self.batch // m, warmup=0, iterations=1)
        return launch(RunSpec(job=job, model=self.profile.model, bounds=self.bounds)).timeline


def lists(m: int, n: int) -> Schedule:
    """Return N pipelines in 1F1B."""
    return lower(build("avgpipe", DEVICES, m * n, pipelines=n, advance=0))


def peaks(timeline: Timeline) -> Mapping[int, int]:
    """Return the most that each device holds [bytes]."""
    return {device: peak.total_bytes for device, peak in peak_memory(timeline.memory).items()}


def report(names: list[str], iterations: int) -> Iterator[str]:
    """Yield the lines of the report."""
    yield "# Memory predicted and held"
    yield ""
    yield from provenance("memory.py", os.getloadavg()[0], f"{iterations} iterations, 2 devices, adamw, float32")
    yield ""
    yield "| model | M | N | device | held, MB | simulated | Eq. 8, consistent | Eq. 8, paper |"
    yield "|---|---|---|---|---|---|---|---|"
    for name in names:
        model, batch = MODELS[name]
        sizes = [batch // m for m in MICROBATCHES]
        case = Case(profile_model(resolve_model(model), microbatch_sizes=sizes, repeats=1, warmup=1), batch)
        setting = profile_setting(case.simulated(lists(8, 1), 8), case.costs(8), 1)
        for n in PIPELINES:
            for m in MICROBATCHES:
                yield from rows(case, setting, name, m, n, iterations)


def rows(case: Case, setting: SettingProfile, name: str, m: int, n: int, iterations: int) -> Iterator[str]:
    """Yield a line for each device."""
    held, simulated = peaks(case.measured(lists(m, n), m, iterations)), peaks(case.simulated(lists(m, n), m))
    consistent, paper = (
        predict_setting(setting, m, n, how).devices for how in (Accounting.CONSISTENT, Accounting.PAPER)
    )
    for device, num_bytes in held.items():
        found = (simulated[device], consistent[device].held_bytes, paper[device].held_bytes)
        errors = " | ".join(f"{each / num_bytes - 1:+.1%}" for each in found)
        yield f"| {name} | {m} | {n} | {device} | {num_bytes / 1e6:.2f} | {errors} |"


def main() -> None:
    """Measure all."""
    parser = arguments_of(__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="some of gpt, conv, lstm")
    parser.add_argument("--iterations", type=int, default=8, help="in each of which all pipelines may peak at once")
    arguments = parser.parse_args()
    show(report(arguments.models.split(","), arguments.iterations), arguments.out)


if __name__ == "__main__":
    main()
