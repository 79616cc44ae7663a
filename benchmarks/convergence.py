"""The accuracy of every scheme: PipeOptim's setting (arXiv:2312.00839, section V-B) in small, on digits or on text.

    python benchmarks/convergence.py --data digits-4 [--seeds 3] [--out benchmarks/results/convergence.md]

Each scheme trains the same network from the same weights on the same samples, beside the un-pipelined network, with
several optimizers and seeds. ``digits-4`` has PipeOptim's four stages and learning rates, ``digits`` and ``text`` have
eight stages. Held-out accuracy is also measured during the training, because the paper gives the best of a run. All
ranks run in this process: only the lists differ.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from published_results import ORDERINGS, WHOLE, Ordering
from report import provenance, show_seeds, spread

import pipesched
from pipesched.profiles import OptimizerName
from pipesched.profiles.models import resolve_model
from pipesched.schedules.transforms import ScheduleSpec
from pipesched.schedules.weights import staleness

SCHEMES = (
    WHOLE,
    "gpipe",
    "pipedream",
    "pipedream_2bw",
    "wpipe",
    "spectrain",
    "xpipe",
    "pipeoptim",
    "vanilla_1f1b",
    "stale_weights",
    "hybrid",
)


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of the benchmark: the model, and its training.

    Attributes:
        rates: Learning rate by optimizer.
        steps: Optimizer steps.
        every: Steps between two scores on the held-out samples.
        ranks: Number of ranks with one stage each, and of micro-batches of a batch that is cut.
        wpipe_ranks: Number of WPipe's ranks, with two stages each.
        held_out: The samples of the accuracy, in words.
    """

    title: str
    model: str
    batch_size: int
    rates: dict[OptimizerName, float]
    steps: int
    every: int
    ranks: int
    wpipe_ranks: int
    held_out: str

    def schedule_spec(self, scheme: str) -> ScheduleSpec:
        """Return the specification of a scheme's lists; un-pipelined is one rank with one micro-batch."""
        if scheme == WHOLE:
            return ScheduleSpec(name="naive")
        num_ranks = self.wpipe_ranks if scheme == "wpipe" else self.ranks
        return ScheduleSpec(name=scheme, num_ranks=num_ranks, num_microbatches=self.ranks)


_DIGITS = Setting(
    title="digits, four stages",
    model="digits:blocks=14",
    batch_size=64,
    rates={"momentum": 0.01, "adam": 3e-4, "adamw": 1e-3},
    steps=600,
    every=24,
    ranks=4,
    wpipe_ranks=4,
    held_out="297 scans kept from training",
)
SETTINGS = {
    "digits-4": _DIGITS,
    "digits": replace(
        _DIGITS, title="digits, eight stages", rates=_DIGITS.rates | {"adamw": 3e-4}, steps=200, ranks=8, wpipe_ranks=8
    ),
    "text": Setting(
        title="text, eight stages",
        model="gpt:layers=6,width=32,heads=4,context=32",
        batch_size=32,
        rates={"adamw": 1e-3},
        steps=300,
        every=25,
        ranks=8,
        wpipe_ranks=4,
        held_out="the next byte of text kept from training",
    ),
}


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one training run.

    Attributes:
        maximum: The best held-out accuracy during the training.
        final: The held-out accuracy of the final weights.
        loss: The mean loss of the last tenth of the steps.
    """

    maximum: float
    final: float
    loss: float
    diverged_at: int | None


def score(setting: Setting, scheme: str, optimizer: OptimizerName, seed: int) -> Score:
    """Return the score of one training run."""
    result = pipesched.train(
        setting.model,
        setting.schedule_spec(scheme),
        num_steps=setting.steps,
        batch_size=setting.batch_size,
        held_out_every=setting.every,
        optimizer=optimizer,
        lr=setting.rates[optimizer],
        seed=seed,
    )
    tail = result.losses[-max(1, len(result.losses) // 10) :]
    final = result.held_out_accuracy or 0.0
    looks = [scores.accuracy or 0.0 for scores in result.held_out_on_the_way.values()]
    return Score(max([final, *looks]), final, statistics.fmean(tail), result.diverged_at)


Scores = dict[tuple[str, OptimizerName], list[Score]]
"""By scheme and optimizer, one per seed."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A measure of a run; the larger value is better.

    Attributes:
        form: Format of a value, after multiplication by `unit`.
    """

    name: str
    of: Callable[[Score], float]
    unit: float
    form: str

    def values(self, scores: Sequence[Score]) -> list[float]:
        return [self.unit * self.of(score) for score in scores]

    def cell(self, scores: Sequence[Score]) -> str:
        """Return mean and standard deviation over the seeds."""
        values = self.values(scores)
        return f"{abs(statistics.fmean(values)):{self.form}} +- {spread(values):{self.form}}"

    def gain(self, first: Sequence[Score], second: Sequence[Score]) -> tuple[float, int]:
        """Return the gain of the first over the second, and its sign: 0 unless the gain is above both spreads."""
        a, b = self.values(first), self.values(second)
        gain = statistics.fmean(a) - statistics.fmean(b)
        return gain, 0 if abs(gain) <= max(spread(a), spread(b)) else 1 if gain > 0 else -1


MEASURES = (
    Measure("maximum accuracy", lambda score: score.maximum, 100, ".1f"),
    Measure("final accuracy", lambda score: score.final, 100, ".1f"),
    Measure("training loss", lambda score: score.loss, -1, ".3f"),
)
WORDS = {1: "ahead", 0: "level", -1: "behind"}


def table(setting: Setting, optimizer: OptimizerName, scores: Scores) -> Iterator[str]:
    """Yield a row per scheme."""
    yield f"| scheme | staleness | {' | '.join(measure.name for measure in MEASURES)} |"
    yield "|---|---:|" + "---:|" * len(MEASURES)
    for scheme in SCHEMES:
        stages = staleness(setting.schedule_spec(scheme).run(setting.steps).lists(setting.steps)).stages
        most = max(stage.forward.staleness for stage in stages)
        yield f"| {scheme} | {most} | {' | '.join(_cells(scores[scheme, optimizer]))} |"


def _cells(scores: Sequence[Score]) -> list[str]:
    diverged = [score for score in scores if score.diverged_at is not None]
    if diverged:
        where = ", ".join(f"step {score.diverged_at}" for score in diverged)
        return [MEASURES[0].cell(scores), "-", f"{len(diverged)} of {len(scores)} diverged ({where})"]
    return [measure.cell(scores) for measure in MEASURES]


def orderings(measure: Measure, optimizers: Sequence[OptimizerName], scores: Scores, beside: bool) -> Iterator[str]:
    """Yield a row per pair of schemes, `beside` the papers' findings or without, and the number that agree."""
    heads = [f"{name}: paper | here" if beside else name for name in optimizers]
    yield f"| first | second | where | {' | '.join(heads)} |"
    yield "|---|---|---|" + "---|" * len(optimizers) * (1 + beside)
    agreement: Counter[int] = Counter()
    for ordering in ORDERINGS:
        cells = []
        for name in optimizers:
            gain, sign = measure.gain(scores[ordering.first, name], scores[ordering.second, name])
            published = ordering.sign(name)
            agreement[sign * published] += bool(published)
            cells += [_published(ordering, name)] * beside + [f"{gain:+{measure.form}} {WORDS[sign]}"]
        yield f"| {ordering.first} | {ordering.second} | {ordering.source} | {' | '.join(cells)} |"
    yield ""
    yield f"Of the {agreement.total()} cases (a pair, an optimizer) with one sign in all models of the paper,"
    yield f"{agreement[1]} come out so here, {agreement[0]} are level, {agreement[-1]} come out the other way round."


def _published(ordering: Ordering, optimizer: OptimizerName) -> str:
    return ", ".join(f"{difference:+.2f}" for difference in ordering.differences.get(optimizer, ()))


def report(data: str, num_seeds: int) -> Iterator[str]:
    """Yield the report line by line."""
    setting, load, started_s = SETTINGS[data], os.getloadavg()[0], time.monotonic()
    scores = {
        (scheme, optimizer): [score(setting, scheme, optimizer, seed) for seed in range(num_seeds)]
        for scheme in SCHEMES
        for optimizer in setting.rates
    }
    how = f"one thread, seeds 0 to {num_seeds - 1}, {time.monotonic() - started_s:.0f} s"
    yield f"# How well every scheme learns: {setting.title}"
    yield ""
    yield from provenance(f"convergence.py --data {data} --seeds {num_seeds}", load, how)
    yield ""
    yield from _described(setting, num_seeds)
    for name, lr in setting.rates.items():
        yield from ("", f"## {name}, learning rate {lr:g}", "", *table(setting, name, scores))
    for measure in MEASURES if num_seeds > 1 else ():
        yield from ("", f"## Pairs of the papers, by {measure.name}", "")
        if measure is MEASURES[0]:
            yield "How far the first is ahead of the second, in points: in the paper, with each of its models, and"
            yield "here, by the means. A difference not above the spread of the seeds of either is level."
            yield ""
        yield from orderings(measure, [*setting.rates], scores, beside=measure is MEASURES[0])


def _described(setting: Setting, num_seeds: int) -> Iterator[str]:
    yield f"`{resolve_model(setting.model).name}` on {setting.ranks} ranks (wpipe on {setting.wpipe_ranks}, two stages"
    yield f"each), {setting.steps} optimizer steps on {setting.batch_size} samples each; gpipe, pipedream_2bw and wpipe"
    yield f"cut them into {setting.ranks} micro-batches, the others take them whole. Momentum is SGD with 0.9, without"
    yield "weight decay; all else is PyTorch's default, and learning rates do not fall."
    yield ""
    yield f"Accuracy: in %, on {setting.held_out}. Maximum: the best of"
    yield f"one look every {setting.every} steps and one at the end; final: the last. Training loss: mean of the last"
    yield f"tenth of the steps. Mean and standard deviation over {num_seeds} seeds, which draw weights and samples."
    yield "Staleness: the most steps that a forward's weights are behind."


def main() -> None:
    show_seeds(__doc__, SETTINGS, report)


if __name__ == "__main__":
    main()
