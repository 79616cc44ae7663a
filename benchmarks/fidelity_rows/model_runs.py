"""Runs of GPT, conv and LSTM under several schedules, in rounds; two rows share them."""

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
        ops: Size of the ops, in words.
        model: The model's name, with layers for four stages.
        microbatch_size: Samples.
        iterations: Iterations of a run. The iteration with the median makespan counts, so that a single disturbance
            does not; short ops allow many iterations.
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
        """Return the profile of the model; only shares and bytes of the stages come from it."""
        return pipesched.profile(self.model, [self.microbatch_size], repeats=5, companions=1).profile

    def run(self, name: str) -> RunResult:
        """Return the iteration with the median makespan, after two warm-up iterations."""
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
    """The runs of the models, with their profiles.

    Attributes:
        bench: Yardsticks and failures.
        profiles: Profile of each case.
        rounds: For each round, the run of each case and schedule; failed runs are missing.
    """

    bench: Bench
    profiles: Mapping[Case, Profile]
    rounds: tuple[Mapping[tuple[Case, str], RunResult], ...]


def schedule_of_name(name: str) -> Schedule:
    """Return the lists of a schedule, with two stages per rank if it takes chunks."""
    num_chunks = 2 if CATALOGUE[name].traits.takes_chunks else None
    return build(name, NUM_RANKS, NUM_MICROBATCHES, num_chunks)


@cache
def model_runs(num_rounds: int) -> ModelRuns:
    """Run every case under every schedule once in each round; the order alternates, so that a steady drift cancels."""
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
