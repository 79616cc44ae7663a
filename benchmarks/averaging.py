"""The accuracy of parallel pipelines (AvgPipe, PPoPP 2023, section 7): elastic averaging beside plain training.

    python benchmarks/averaging.py [--data digits|text] [--seeds 12] [--out benchmarks/results/averaging.md]

All runs see the same number of samples. N pipelines take N batches of B samples in an iteration, each with its own
update. They are compared with plain training on batches of B, with N times as many successive updates, and on batches
of N B, with as many updates as each pipeline. The reference model of N pipelines is scored. All seeds train at once
(`stacked_seeds`); the verdict on two ways of training is by paired differences (`paired_statistics`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from paired_statistics import Numbers, interval, verdicts
from report import provenance, show_seeds, spread
from stacked_seeds import stacked

import pipesched
from pipesched.executor import Averaging
from pipesched.profiles import OptimizerName
from pipesched.profiles.models import resolve_model
from pipesched.schedules.transforms import ScheduleSpec

STAGES = 2


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
    """One way to train: N pipelines, or one model on batches of several B.

    Attributes:
        batches: Batches of B samples in an iteration, each with a pipeline of its own or all in one batch.
        averaging: How the pipelines are averaged; None if there is one.
        microbatches: Micro-batches of each batch.
    """

    batches: int = 1
    averaging: Averaging | None = None
    microbatches: int = 2

    def __str__(self) -> str:
        if self.averaging:
            return f"N = {self.batches}, {self.averaging}"
        size = "B" if self.batches == 1 else f"{self.batches} B"
        return f"plain, {size}" + (", uncut" if self.microbatches == 1 else "")

    @property
    def schedule_spec(self) -> ScheduleSpec:
        if self.averaging is None:
            return ScheduleSpec(name="gpipe", num_ranks=STAGES, num_microbatches=self.microbatches)
        return ScheduleSpec(
            name="avgpipe",
            num_ranks=STAGES,
            num_microbatches=self.microbatches * self.batches,
            parameters={"pipelines": self.batches},
        )

    def num_steps(self, setting: Setting) -> int:
        """Return the number of iterations that see all samples."""
        return setting.samples // (setting.batch_size * self.batches)


PLAIN, UNCUT = Way(), Way(microbatches=1)
PIPELINES = (2, 4)
WAYS = (
    PLAIN,
    UNCUT,
    *(way for count in PIPELINES for way in (Way(count, "asynchronous"), Way(count, "synchronous"), Way(count))),
)
PAIRS = (
    (PLAIN, UNCUT),
    *(
        pair
        for count in PIPELINES
        for pair in (
            (Way(count, "asynchronous"), Way(count, "synchronous")),
            (Way(count, "asynchronous"), Way(count)),
            (Way(count, "synchronous"), Way(count)),
            (Way(count, "asynchronous"), PLAIN),
        )
    ),
)


@dataclass(frozen=True, slots=True)
class Score:
    """The scores of the final model, each of shape (seeds,).

    Attributes:
        accuracy: Share of right answers on samples kept from training [%].
        loss: Mean training loss of the last tenth of the samples.
    """

    accuracy: Numbers
    loss: Numbers


Scores = dict[tuple[Way, OptimizerName], Score]


def score(setting: Setting, way: Way, optimizer: OptimizerName, num_seeds: int) -> Score:
    """Return the scores of one training run of all seeds.

    Raises:
        RuntimeError: The run diverged.
    """
    model, seeds = stacked(resolve_model(setting.model), num_seeds)
    num_steps = way.num_steps(setting)
    result = pipesched.train(
        model,
        way.schedule_spec,
        batch_size=setting.batch_size * (1 if way.averaging else way.batches),
        num_steps=num_steps,
        optimizer=optimizer,
        lr=setting.rates[optimizer],
        averaging=way.averaging or "asynchronous",
    )
    if result.diverged_at is not None:
        raise RuntimeError(f"{way}, {optimizer}: got a loss that diverged at step {result.diverged_at}")
    return Score(100.0 * seeds.looks[-1].numpy(), seeds.final_losses(len(seeds.losses) // 10))


def table(setting: Setting, scores: Scores) -> Iterator[str]:
    """Yield a row per way: mean and standard deviation over the seeds."""
    yield "| training | iterations | " + " | ".join(f"{name}: accuracy, % | loss" for name in setting.rates) + " |"
    yield "|---|---:|" + "---:|---:|" * len(setting.rates)
    for way in WAYS:
        cells = []
        for optimizer in setting.rates:
            way_score = scores[way, optimizer]
            for form, values in ((".1f", way_score.accuracy), (".3f", way_score.loss)):
                cells.append(f"{values.mean():{form}} ± {spread(values.tolist()):{form}}")
        yield f"| {way} | {way.num_steps(setting)} | {' | '.join(cells)} |"


def pairs_table(setting: Setting, scores: Scores) -> Iterator[str]:
    """Yield a row per pair of ways: the paired difference of accuracies, its interval and the verdict."""
    yield "| first | second | " + " | ".join(f"{name}: points" for name in setting.rates) + " |"
    yield "|---|---|" + "---|" * len(setting.rates)
    cases = [(pair, optimizer) for pair in PAIRS for optimizer in setting.rates]
    differences = np.stack(
        [scores[first, name].accuracy - scores[second, name].accuracy for (first, second), name in cases], axis=1
    )
    cells: dict[tuple[Way, Way], list[str]] = {pair: [] for pair in PAIRS}
    for (pair, _), column, verdict in zip(cases, differences.T, verdicts(differences), strict=True):
        low, high = interval(column.tolist())
        cells[pair].append(f"{column.mean():+z.2f} [{low:+z.2f}, {high:+z.2f}] {verdict}")
    for (first, second), row in cells.items():
        yield f"| {first} | {second} | {' | '.join(row)} |"


def report(data: str, num_seeds: int) -> Iterator[str]:
    """Yield the report line by line."""
    setting, load, started_s = SETTINGS[data], os.getloadavg()[0], time.process_time()
    scores = {
        (way, optimizer): score(setting, way, optimizer, num_seeds) for optimizer in setting.rates for way in WAYS
    }
    rates = ", ".join(f"{name} {lr:g}" for name, lr in setting.rates.items())
    yield f"# How well parallel pipelines learn: {data}"
    yield ""
    how = f"one thread, {time.process_time() - started_s:.0f} s of a core"
    yield from provenance(f"averaging.py --data {data} --seeds {num_seeds}", load, how)
    yield ""
    yield f"`{resolve_model(setting.model).name}` on {STAGES} stages, {setting.samples} samples in every run, batches"
    yield f"of B = {setting.batch_size}. Learning rates: {rates}, the same for every row. Accuracy: of the final model"
    yield "(of N pipelines: their reference) on samples kept from training. Loss: in training, mean of the last tenth"
    yield f"of the samples. Mean ± standard deviation over {num_seeds} seeds."
    yield ""
    yield from table(setting, scores)
    yield ""
    yield f"How far the first is ahead of the second in accuracy: the mean difference over {num_seeds} seeds with its"
    yield "95 % interval (bootstrap, BCa), and the verdict of the exact sign-flip test at 5 % after Holm's correction"
    yield f"for the {len(PAIRS) * len(setting.rates)} comparisons. The first row is a control: equal but for rounding."
    yield ""
    yield from pairs_table(setting, scores)


def main() -> None:
    show_seeds(__doc__, SETTINGS, report)


if __name__ == "__main__":
    main()
