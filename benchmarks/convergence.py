"""The accuracy of every scheme: PipeOptim's setting (arXiv:2312.00839, section V-B) in small, on digits and on text.

    python benchmarks/convergence.py --data digits-4 [--seeds 12] [--out benchmarks/results/convergence.md]

Each scheme trains the same network from the same weights on the same samples, seed by seed, with several optimizers.
All seeds train at once (`stacked_seeds`), all ranks run in this process: only the lists differ. The verdict on a pair
of schemes is by paired differences (`paired_statistics`). ``digits-4`` and ``text-4`` have PipeOptim's four stages,
``digits-8`` has eight.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from paired_statistics import Numbers, Verdict, interval, verdicts
from published_results import ORDERINGS, WHOLE, Ordering
from report import provenance, show_seeds, spread
from stacked_seeds import stacked

import pipesched
from pipesched.profiles import OptimizerName
from pipesched.profiles.models import resolve_model
from pipesched.schedules.transforms import ScheduleSpec
from pipesched.schedules.weights import staleness

HALVES = "un-pipelined, in halves"
"""Un-pipelined, with the gradient as the sum of two: equal but for rounding."""
SCHEMES = (
    WHOLE, HALVES, "gpipe", "pipedream", "pipedream_2bw", "wpipe", "spectrain", "xpipe", "pipeoptim", "vanilla_1f1b",
    "stale_weights", "hybrid",
)  # fmt: skip
CONTROLS = (Ordering(WHOLE, HALVES, "control: equal"), Ordering(WHOLE, "gpipe", "control: equal"))
PAIRS = (*CONTROLS, *ORDERINGS)


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
        """Return the specification of a scheme's lists; un-pipelined is one rank."""
        if scheme in (WHOLE, HALVES):
            return ScheduleSpec(name="gpipe", num_ranks=1, num_microbatches=1 + (scheme == HALVES))
        num_ranks = self.wpipe_ranks if scheme == "wpipe" else self.ranks
        return ScheduleSpec(name=scheme, num_ranks=num_ranks, num_microbatches=self.ranks)


_DIGITS = Setting(
    title="digits, four stages",
    model="digits:blocks=14",
    batch_size=64,
    rates={"momentum": 0.01, "adam": 3e-4, "adamw": 1e-3},
    steps=120,
    every=20,
    ranks=4,
    wpipe_ranks=4,
    held_out="297 scans kept from training",
)
SETTINGS = {
    "digits-4": _DIGITS,
    "digits-8": replace(_DIGITS, title="digits, eight stages", ranks=8, wpipe_ranks=8),
    "text-4": Setting(
        title="text, four stages",
        model="gpt:layers=2,width=32,heads=4,context=32",
        batch_size=32,
        rates={"adamw": 1e-3},
        steps=200,
        every=20,
        ranks=4,
        wpipe_ranks=2,
        held_out="the next byte of text kept from training",
    ),
}


@dataclass(frozen=True, slots=True)
class Score:
    """The scores of one training run of all seeds, each of shape (seeds,).

    Attributes:
        maximum: The best held-out accuracy during the training [%].
        final: The held-out accuracy of the final weights [%].
        loss: The mean training loss of the last tenth of the steps.
    """

    maximum: Numbers
    final: Numbers
    loss: Numbers


Scores = dict[tuple[str, OptimizerName], Score]
"""By scheme and optimizer."""


def score(setting: Setting, scheme: str, optimizer: OptimizerName, num_seeds: int) -> Score:
    """Return the scores of one training run."""
    model, seeds = stacked(resolve_model(setting.model), num_seeds)
    spec = setting.schedule_spec(scheme)
    result = pipesched.train(
        model,
        spec,
        num_steps=setting.steps,
        batch_size=setting.batch_size,
        held_out_every=setting.every,
        optimizer=optimizer,
        lr=setting.rates[optimizer],
    )
    if result.diverged_at is not None:
        raise RuntimeError(f"{scheme}, {optimizer}: got a loss that diverged at step {result.diverged_at}")
    looks = 100.0 * np.stack([look.numpy() for look in seeds.looks])
    last = setting.steps // 10 * spec.run(setting.steps).microbatches_per_step
    return Score(looks.max(axis=0), looks[-1], seeds.final_losses(last))


def table(setting: Setting, scores: Scores) -> Iterator[str]:
    """Yield a row per scheme: mean and standard deviation over the seeds, of each optimizer."""
    yield f"| scheme | staleness | {' | '.join(f'{name}, {lr:g}' for name, lr in setting.rates.items())} |"
    yield "|---|---:|" + "---|" * len(setting.rates)
    for scheme in SCHEMES:
        stages = staleness(setting.schedule_spec(scheme).run(setting.steps).lists(setting.steps)).stages
        most = max(stage.forward.staleness for stage in stages)
        cells = [_cell(scores[scheme, optimizer]) for optimizer in setting.rates]
        yield f"| {scheme} | {most} | {' | '.join(cells)} |"


def _cell(score: Score) -> str:
    parts = ((score.maximum, ".1f"), (score.final, ".1f"), (score.loss, ".3f"))
    return "; ".join(f"{values.mean():{form}} ± {spread(values.tolist()):{form}}" for values, form in parts)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A pair of schemes with an optimizer: the paired differences of maximum accuracy [points], and the verdict."""

    ordering: Ordering
    optimizer: OptimizerName
    differences: Numbers
    verdict: Verdict

    @property
    def agreement(self) -> int | None:
        """Whether the verdict has the sign of the paper (1), the opposite (-1), or none (0); None without a sign."""
        published = self.ordering.sign(self.optimizer)
        return {"ahead": 1, "behind": -1, "undecided": 0}[self.verdict] * published if published else None

    def cell(self) -> str:
        """Return the paper's differences, and the mean difference here with its interval and the verdict."""
        low, high = interval(self.differences.tolist())
        published = ", ".join(f"{points:+.2f}" for points in self.ordering.differences.get(self.optimizer, ()))
        here = f"{self.differences.mean():+.2f} [{low:+.2f}, {high:+.2f}]"
        return f"{published} | {here} {f'**{self.verdict}**' if self.verdict != 'undecided' else self.verdict}"


def compared(optimizers: Sequence[OptimizerName], scores: Scores) -> list[Comparison]:
    """Return all comparisons of a data set, which are one family."""
    pairs = [(pair, optimizer) for pair in PAIRS for optimizer in optimizers]
    differences = np.stack(
        [scores[pair.first, optimizer].maximum - scores[pair.second, optimizer].maximum for pair, optimizer in pairs],
        axis=1,
    )
    told = verdicts(differences)
    return [
        Comparison(*pair, column, verdict) for pair, column, verdict in zip(pairs, differences.T, told, strict=True)
    ]


def pairs_table(optimizers: Sequence[OptimizerName], comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yield a row per pair of schemes, and the number of cases that agree with the papers."""
    yield f"| first | second | where | {' | '.join(f'{name}: paper | here' for name in optimizers)} |"
    yield "|---|---|---|" + "---|" * 2 * len(optimizers)
    for pair in PAIRS:
        cells = [comparison.cell() for comparison in comparisons if comparison.ordering is pair]
        yield f"| {pair.first} | {pair.second} | {pair.source} | {' | '.join(cells)} |"
    agreement = Counter(comparison.agreement for comparison in comparisons)
    del agreement[None]
    yield ""
    yield f"Of the {agreement.total()} cases (a pair, an optimizer) with one sign in all models of the paper,"
    yield f"{agreement[1]} come out so here, {agreement[0]} are undecided, {agreement[-1]} come out the other way"
    yield "round."


def scores_of(setting: Setting, num_seeds: int) -> Scores:
    """Train under every scheme with every optimizer; return the scores."""
    return {
        (scheme, optimizer): score(setting, scheme, optimizer, num_seeds)
        for optimizer in setting.rates
        for scheme in SCHEMES
    }


def report(data: str, num_seeds: int) -> Iterator[str]:
    """Yield the report line by line."""
    setting, load, started_s = SETTINGS[data], os.getloadavg()[0], time.process_time()
    scores = scores_of(setting, num_seeds)
    how = f"one thread, {num_seeds} seeds, {time.process_time() - started_s:.0f} s of a core"
    yield f"# How well every scheme learns: {setting.title}"
    yield ""
    yield from provenance(f"convergence.py --data {data} --seeds {num_seeds}", load, how)
    yield from page(setting, scores, num_seeds)


def page(setting: Setting, scores: Scores, num_seeds: int) -> Iterator[str]:
    """Yield the setting and the two tables of a data set."""
    yield ""
    yield f"`{resolve_model(setting.model).name}` on {setting.ranks} ranks (wpipe on {setting.wpipe_ranks}, two stages"
    yield f"each), {setting.steps} optimizer steps on {setting.batch_size} samples each; gpipe, pipedream_2bw and wpipe"
    yield f"cut them into {setting.ranks} micro-batches, the others take them whole. Momentum is SGD with 0.9, without"
    yield "weight decay; all else is PyTorch's default, and learning rates do not fall. Staleness: the most steps that"
    yield "a forward's weights are behind."
    yield ""
    yield f"Below each optimizer and its learning rate: the best accuracy [%] of a look every {setting.every} steps, on"
    yield f"{setting.held_out}; the accuracy of the final weights [%]; the training loss, mean of the last"
    yield f"tenth of the steps. Mean ± standard deviation over {num_seeds} seeds of weights and samples."
    yield ""
    yield from table(setting, scores)
    comparisons = compared([*setting.rates], scores)
    yield ""
    yield "Pairs of the papers, by the best accuracy of a run:"
    yield "how far the first is ahead of the second, in points: in the paper, with each of its models; here, the mean"
    yield f"difference over {num_seeds} seeds, each with the same weights and samples under both, and its 95 % interval"
    yield "(bootstrap, BCa). A verdict is the exact sign-flip test at 5 %, after Holm's correction for all"
    yield f"{len(comparisons)} comparisons of the table: an interval without 0 is not enough."
    yield ""
    yield from pairs_table([*setting.rates], comparisons)


def main() -> None:
    show_seeds(__doc__, SETTINGS, report)


if __name__ == "__main__":
    main()
