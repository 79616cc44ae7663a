"""Runs of GPT, conv and LSTM under several schedules, in rounds: what two rows look at, so that they are made once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial

import pipesched
from fidelity_rows.bench import NUM_RANKS, Bench
from pipesched import CATALOGUE, Profile, Schedule, build
from pipesched.workflows.measuring import RunResult

NUM_MICROBATCHES = 8
SCHEDULES = ("gpipe", "1f1b", "interleaved", "pipedream", "zb_h1", "wpipe")


@dataclass(frozen=True, slots=True)
class Case:
    """A model whose ops are of one size.

    Attributes:
        ops: How long they take, in words.
        model: As `pipesched.run` takes it, with as many layers as four stages can share.
        microbatch_size: In samples.
        iterations: Iterations of a run, of which the one of median makespan counts: what disturbs a single one is left
            out, and with short ops many take no longer than the start of the processes.
    """

    ops: str
    model: str
    microbatch_size: int
    iterations: int

    @property
    def kind(self) -> str:
        """The model's name without its arguments."""
        return self.model.partition(":")[0]

    def profile(self) -> Profile:
        """Return what the layers take; of the runs' stages, only shares and bytes are taken from it."""
        return pipesched.profile(self.model, [self.microbatch_size], repeats=5, companions=1).profile

    def run(self, name: str) -> RunResult:
        """Return the median iteration, after two that nobody looks at."""
        return pipesched.run(
            schedule_of_name(name),
            self.model,
            microbatch_size=self.microbatch_size,
            partition="uniform",
            iterations=self.iterations,
            warmup=2,
        )


LONG, SHORT = "5 ms and more", "1 to 2 ms"
CASES = (
    Case(LONG, "gpt:layers=6,width=128,heads=4,context=64", 16, 3),
    Case(LONG, "conv:channels=32,blocks=6,image=16", 32, 3),
    Case(LONG, "lstm:layers=6,width=128,context=32", 32, 3),
    Case(SHORT, "gpt:layers=6,width=128,heads=4,context=48", 1, 9),
    Case(SHORT, "conv:channels=16,blocks=6,image=16", 2, 9),
    Case(SHORT, "lstm:layers=6,width=128,context=24", 2, 9),
)


@dataclass(frozen=True, slots=True)
class ModelRuns:
    """The runs of the models: their profiles, and what each schedule gave in every round.

    Attributes:
        bench: How it went.
        profiles: One of each case.
        rounds: What a case and a schedule gave, of each round; what failed is missing.
    """

    bench: Bench
    profiles: Mapping[Case, Profile]
    rounds: tuple[Mapping[tuple[Case, str], RunResult], ...]


def schedule_of_name(name: str) -> Schedule:
    """Return the lists, with two stages on a rank where the schedule takes several."""
    num_chunks = 2 if CATALOGUE[name].traits.takes_chunks else None
    return build(name, NUM_RANKS, NUM_MICROBATCHES, num_chunks)


@cache
def model_runs(num_rounds: int) -> ModelRuns:
    """Run every case under every schedule, once in each round; to and fro, so that what changes steadily cancels."""
    bench = Bench()
    profiles = {case: bench.run(f"profile {case.model}", case.profile) for case in CASES}
    rounds = []
    for index in bench.rounds(num_rounds):
        runs = {
            (case, name): bench.run(f"{name} {case.model}", partial(case.run, name))
            for case in CASES
            for name in (SCHEDULES if index % 2 == 0 else SCHEDULES[::-1])
        }
        rounds.append({key: run for key, run in runs.items() if run is not None})
    return ModelRuns(bench, {case: profile for case, profile in profiles.items() if profile}, tuple(rounds))
