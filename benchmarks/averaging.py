"""The accuracy of parallel pipelines (AvgPipe, PPoPP 2023, section 7): elastic averaging beside plain training.

    python benchmarks/averaging.py [--data digits|text] [--seeds 3] [--out benchmarks/results/averaging.md]

All runs see the same number of samples. N pipelines take N batches of B samples in an iteration, each with its own
update. They are compared with plain training on batches of B, with N times as many successive updates, and on batches
of N B, with as many updates as each pipeline. The reference model of N pipelines is scored.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

from report import provenance, show_seeds, spread

import pipesched
from pipesched.executor import Averaging
from pipesched.profiles import OptimizerName
from pipesched.profiles.models import resolve_model

STAGES, MICROBATCHES = 2, 2
PIPELINES = (2, 4)


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of the benchmark: the model, and its training.

    Attributes:
        batch_size: B.
        rates: Learning rate by optimizer.
        samples: Samples of every run.
    """

    model: str
    batch_size: int
    rates: dict[OptimizerName, float]
    samples: int


SETTINGS = {
    "digits": Setting("digits:blocks=4", 16, {"momentum": 0.01, "adamw": 1e-3}, 12_800),
    "text": Setting("gpt:layers=2,width=32,heads=4,context=32", 8, {"adamw": 2e-3}, 6_400),
}


@dataclass(frozen=True, slots=True)
class Way:
    """One way to train: N pipelines, or one model on batches of several B."""

    pipelines: int = 1
    averaging: Averaging | None = None
    batches: int = 1

    def __str__(self) -> str:
        if self.averaging is None:
            return "plain, B" if self.batches == 1 else f"plain, {self.batches} B"
        return f"N = {self.pipelines}, {self.averaging}"

    def steps(self, setting: Setting) -> int:
        """Return the number of iterations that see all samples."""
        return setting.samples // (setting.batch_size * self.pipelines * self.batches)


def ways() -> Iterator[Way]:
    """Yield plain training, and for each N the pipelines with their plain counterparts."""
    yield Way()
    for count in PIPELINES:
        yield Way(count, "asynchronous")
        yield Way(count, "synchronous")
        yield Way(batches=count)


@dataclass(frozen=True, slots=True)
class Score:
    """The held-out loss and accuracy of the final model of a run; infinite and 0 if the run diverged."""

    loss: float
    accuracy: float


def score(setting: Setting, way: Way, optimizer: OptimizerName, seed: int) -> Score:
    """Return the score of one training run."""
    spec = pipesched.ScheduleSpec(
        name="gpipe" if way.averaging is None else "avgpipe",
        num_ranks=STAGES,
        num_microbatches=MICROBATCHES * way.pipelines,
        parameters={} if way.averaging is None else {"pipelines": way.pipelines},
    )
    result = pipesched.train(
        setting.model,
        spec,
        batch_size=setting.batch_size * way.batches,
        num_steps=way.steps(setting),
        optimizer=optimizer,
        lr=setting.rates[optimizer],
        seed=seed,
        averaging=way.averaging or "asynchronous",
    )
    if result.held_out_loss is None or result.held_out_accuracy is None:
        return Score(float("inf"), 0.0)
    return Score(result.held_out_loss, result.held_out_accuracy)


def table(setting: Setting, num_seeds: int) -> Iterator[str]:
    """Yield a row per way."""
    yield "| training | iterations | " + " | ".join(f"{name}: loss | accuracy" for name in setting.rates) + " |"
    yield "|---|---:|" + "---:|---:|" * len(setting.rates)
    for way in ways():
        cells = []
        for optimizer in setting.rates:
            scores = [score(setting, way, optimizer, seed) for seed in range(num_seeds)]
            for form, values in ((".3f", [step.loss for step in scores]), (".1%", [step.accuracy for step in scores])):
                cells.append(f"{statistics.fmean(values):{form}} +- {spread(values):{form}}")
        yield f"| {way} | {way.steps(setting)} | {' | '.join(cells)} |"


def report(data: str, num_seeds: int) -> Iterator[str]:
    """Yield the report line by line."""
    setting, load, started_s = SETTINGS[data], os.getloadavg()[0], time.monotonic()
    rows = list(table(setting, num_seeds))
    rates = ", ".join(f"{name} {lr:g}" for name, lr in setting.rates.items())
    yield f"# How well parallel pipelines learn: {data}"
    yield ""
    took_s = time.monotonic() - started_s
    yield from provenance(f"averaging.py --data {data} --seeds {num_seeds}", load, f"one thread, {took_s:.0f} s")
    yield ""
    yield f"`{resolve_model(setting.model).name}` on {STAGES} stages, {setting.samples} samples in every run, batches"
    yield f"of B = {setting.batch_size}. Learning rates: {rates}, the same for every row. Loss and accuracy: of the"
    yield "final model (of N pipelines: their reference) on samples kept from training; mean and deviation of"
    yield f"{num_seeds} seeds."
    yield ""
    yield from rows


def main() -> None:
    show_seeds(__doc__, SETTINGS, report)


if __name__ == "__main__":
    main()
