"""How well every scheme learns: PipeOptim's setting (arXiv:2312.00839, section V-B) in small, on digits or on text.

    python benchmarks/convergence.py [--data digits | text] [--seeds 3] [--out benchmarks/results/convergence.md]

Each scheme trains the same network on eight stages from the same weights on the same samples, beside the un-pipelined
network; with several optimizers and seeds. All ranks run in this process: only the lists differ.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from report import provenance, show_seeds

from pipesched.executor.course import Trained
from pipesched.executor.training import Training, train
from pipesched.profiles.models.resolve import resolve_model
from pipesched.profiles.partition import uniform_partition
from pipesched.schedules.staleness import staleness
from pipesched.schedules.training_run import TrainingRun, training_run

RANKS, MICROBATCHES = 8, 8
WHOLE = "un-pipelined"
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
class Claim:
    """What a paper found: that one scheme ends better than another, with some optimizers."""

    better: str
    worse: str
    optimizers: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Setting:
    """What is trained, and how.

    Attributes:
        rates: Learning rate by optimizer.
        steps: Optimizer steps.
        wpipe_ranks: WPipe has two stages on each.
        held_out: What the accuracy is measured on.
    """

    model: str
    batch_size: int
    rates: dict[str, float]
    steps: int
    wpipe_ranks: int
    held_out: str

    def run(self, scheme: str) -> TrainingRun:
        """Return the run of a scheme; un-pipelined is one rank with one micro-batch."""
        if scheme == WHOLE:
            return training_run("naive", 1, 1, self.steps)
        ranks = self.wpipe_ranks if scheme == "wpipe" else RANKS
        return training_run(scheme, ranks, MICROBATCHES, self.steps)


SETTINGS = {
    "digits": Setting(
        "digits:blocks=14", 64, {"momentum": 0.01, "adam": 3e-4, "adamw": 3e-4}, 200, 8, "297 scans kept from training"
    ),
    "text": Setting(
        "gpt:layers=6,width=32,heads=4,context=32",
        32,
        {"adamw": 1e-3},
        300,
        4,
        "the next byte of text kept from training",
    ),
}

ALL = ("momentum", "adam", "adamw")
CLAIMS = (
    Claim("pipeoptim", "pipedream", ALL, "PipeOptim, Table IV"),
    Claim("pipeoptim", "pipedream_2bw", ALL, "PipeOptim, Table IV"),
    Claim("pipeoptim", "vanilla_1f1b", ALL, "PipeOptim, Figure 7"),
    Claim("pipeoptim", "xpipe", ("momentum",), "PipeOptim, Table IV"),
    Claim("spectrain", "pipedream", ("momentum",), "PipeOptim, Table IV"),
    Claim("spectrain", "pipedream_2bw", ("momentum",), "PipeOptim, Table IV"),
    Claim(WHOLE, "pipedream", ALL, "PipeOptim, Table IV"),
    Claim("wpipe", "pipedream_2bw", ALL, "WPipe, Figure 7"),
    Claim(WHOLE, "stale_weights", ALL, "stale weights, Table 2, eight stages"),
    Claim("hybrid", "stale_weights", ALL, "stale weights, Table 4"),
)


@dataclass(frozen=True, slots=True)
class Score:
    """Of one run; the loss is the mean of the last tenth of its steps."""

    loss: float
    accuracy: float
    diverged_at: int | None


def score(setting: Setting, scheme: str, optimizer: str, seed: int) -> Score:
    """Train once."""
    run, model = setting.run(scheme), resolve_model(setting.model)
    lists = run.lists(setting.steps)
    training = Training(
        model=model,
        bounds=uniform_partition(len(model.layers), lists.num_stages),
        batch_size=setting.batch_size,
        microbatches_per_step=run.microbatches_per_step,
        optimizer=optimizer,
        lr=setting.rates[optimizer],
        seed=seed,
        dtype=torch.float32,
        device=torch.device("cpu"),
        prediction=run.prediction,
    )
    return _scored(train(lists, training))


def _scored(trained: Trained) -> Score:
    tail = trained.steps[-max(1, len(trained.steps) // 10) :]
    accuracy = 0.0 if trained.held_out is None or trained.held_out.accuracy is None else trained.held_out.accuracy
    return Score(
        statistics.fmean(scores.loss for scores in tail),
        accuracy,
        None if trained.diverged is None else trained.diverged.step,
    )


Scores = dict[tuple[str, str], list[Score]]
"""By scheme and optimizer, one per seed."""


def table(setting: Setting, found: Scores) -> Iterator[str]:
    """Yield a row per scheme: final training loss, and accuracy on what was kept from training."""
    yield "| scheme | staleness | " + " | ".join(f"{name}: loss | accuracy" for name in setting.rates) + " |"
    yield "|---|---:|" + "---:|---:|" * len(setting.rates)
    for scheme in SCHEMES:
        stages = staleness(setting.run(scheme).lists(setting.steps)).stages
        cells = [cell for optimizer in setting.rates for cell in _cells(found[scheme, optimizer])]
        yield f"| {scheme} | {max(stage.forward.staleness for stage in stages)} | {' | '.join(cells)} |"


def _cells(scores: Sequence[Score]) -> tuple[str, str]:
    diverged = [each for each in scores if each.diverged_at is not None]
    if diverged:
        where = ", ".join(f"step {each.diverged_at}" for each in diverged)
        return (f"{len(diverged)} of {len(scores)} diverged ({where})", "-")
    losses, accuracies = [each.loss for each in scores], [each.accuracy for each in scores]
    return (
        f"{statistics.fmean(losses):.3f} +- {_spread(losses):.3f}",
        f"{statistics.fmean(accuracies):.1%} +- {_spread(accuracies):.1%}",
    )


def _spread(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def verdicts(optimizers: Collection[str], found: Scores) -> Iterator[str]:
    """Yield a row per claim of a paper: whether it holds here."""
    yield "| found by a paper | where | " + " | ".join(optimizers) + " |"
    yield "|---|---|" + "---|" * len(optimizers)
    for claim in CLAIMS:
        cells = [_verdict(claim, optimizer, found) if optimizer in claim.optimizers else "" for optimizer in optimizers]
        yield f"| {claim.better} ends better than {claim.worse} | {claim.source} | {' | '.join(cells)} |"


def _verdict(claim: Claim, optimizer: str, found: Scores) -> str:
    """Compare mean losses; a difference below the spread of either is none."""
    better, worse = ([each.loss for each in found[name, optimizer]] for name in (claim.better, claim.worse))
    gain = statistics.fmean(worse) - statistics.fmean(better)
    if abs(gain) <= max(_spread(better), _spread(worse)):
        return "no difference"
    return "yes" if gain > 0 else "no"


def report(data: str, num_seeds: int) -> Iterator[str]:
    """Yield the report line by line."""
    setting, load, started_s = SETTINGS[data], os.getloadavg()[0], time.monotonic()
    found = {
        (scheme, optimizer): [score(setting, scheme, optimizer, seed) for seed in range(num_seeds)]
        for scheme in SCHEMES
        for optimizer in setting.rates
    }
    took_s = time.monotonic() - started_s
    rates = ", ".join(f"{name} {lr:g}" for name, lr in setting.rates.items())
    yield f"# How well every scheme learns: {data}"
    yield ""
    yield from provenance(f"convergence.py --data {data} --seeds {num_seeds}", load, f"one thread, {took_s:.0f} s")
    yield ""
    yield f"`{resolve_model(setting.model).name}` on {RANKS} ranks (wpipe on {setting.wpipe_ranks}, two stages each),"
    yield f"{setting.steps} optimizer steps on {setting.batch_size} samples each; gpipe, pipedream_2bw and wpipe cut"
    yield f"them into {MICROBATCHES} micro-batches, the others take them whole."
    yield f"Learning rates: {rates}; momentum is SGD with 0.9; all else is PyTorch's default."
    yield f"Loss: mean of the last tenth of the steps. Accuracy: of the final weights, on {setting.held_out}."
    yield f"Mean and standard deviation of {num_seeds} seeds. Staleness: the most steps that a forward's weights are"
    yield "behind."
    yield ""
    yield from table(setting, found)
    yield ""
    yield "## Beside the papers"
    yield ""
    yield "By mean loss; a difference not above the spread of the seeds of either is called none."
    yield ""
    yield from verdicts(setting.rates, found)


def main() -> None:
    show_seeds(__doc__, SETTINGS, report)


if __name__ == "__main__":
    main()
