"""Time to a target accuracy: Figs 9 and 10, Table VI.

The time is the product of two measurements: steps to the accuracy of a network on digits, and seconds of a batch on
four processes whose stages sleep for a given time, as four GPUs would compute.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from report import spread

import pipesched
from paper_rows.figure import Outcome, verdict_of
from paper_rows.pipeoptim.throughput_rows import APPROACHES
from paper_rows.two_at_once import two_at_once
from pipesched.schedules import Schedule
from pipesched.schedules.transforms import ScheduleSpec

_MODEL, _TARGET, _BATCH, _RATE, _MOST_STEPS, _EVERY = "digits:blocks=6", 0.95, 64, 0.01, 240, 8
_STAGES, _SEEDS, _ROUNDS = 4, (0, 1, 2), 3
_FORWARD_S, _BACKWARD_S, _BATCHES = 0.02, 0.04, (4, 12)
"""Seconds of a stage for a batch; batches of a short and of a long run, which differ by the pace."""
_CUT = ("gpipe", "pipedream_2bw")
"""Schedules that cut a batch into four micro-batches."""

_EPOCH_S = {
    "ResNet-101": (1554.07, 918.15, 911.35, 914.78, 920.21, 915.48),
    "Inception-V3": (1106.46, 656.29, 664.21, 671.02, 679.84, 667.16),
}
_TOTAL_H = {
    "ResNet-101": (26.00, 13.47, 15.14, 16.77, 16.34, 12.91),
    "Inception-V3": (13.12, 8.57, 11.25, 8.57, 8.25, 7.76),
}
_NAMES = [name for name in APPROACHES if name != "Vanilla-1F1B"]


def _spec(scheme: str) -> ScheduleSpec:
    return ScheduleSpec(name=scheme, num_ranks=_STAGES, num_microbatches=_STAGES)


@dataclass(frozen=True, slots=True)
class Run:
    """A training run to the target accuracy."""

    scheme: str
    seed: int


def steps_to_target(run: Run) -> int:
    """Return the steps until the held-out accuracy reaches the target, or the most steps."""
    torch.set_num_threads(1)
    result = pipesched.train(
        _MODEL,
        _spec(run.scheme),
        num_steps=_MOST_STEPS,
        batch_size=_BATCH,
        held_out_every=_EVERY,
        target_accuracy=_TARGET,
        optimizer="momentum",
        lr=_RATE,
        seed=run.seed,
    )
    return result.steps_to_accuracy or _MOST_STEPS


@cache
def steps() -> Mapping[str, tuple[int, ...]]:
    """Return the steps to the target by approach, one per seed."""
    runs = [Run(APPROACHES[name], seed) for name in _NAMES for seed in _SEEDS]
    taken = iter(two_at_once(steps_to_target, runs))
    return {name: tuple(next(taken) for _ in _SEEDS) for name in _NAMES}


@dataclass(frozen=True, slots=True)
class Pace:
    """The measured pace of an approach.

    Attributes:
        short: Seconds of a run of few batches, one per round.
        long: The same of many batches.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]

    @property
    def batch_s(self) -> float:
        """Seconds of a batch: the shortest runs count, as other work of the machine only makes them longer."""
        return (min(self.long) - min(self.short)) / (_BATCHES[1] - _BATCHES[0])

    @property
    def range_ms(self) -> str:
        """Range of the long runs, per batch, with filling and draining [ms]."""
        return f"{min(self.long) / _BATCHES[1] * 1e3:.0f} to {max(self.long) / _BATCHES[1] * 1e3:.0f}"


@cache
def paces() -> Mapping[str, Pace]:
    """Return the measured pace by approach; approaches take turns."""
    spans: dict[str, list[tuple[float, float]]] = {name: [] for name in _NAMES}
    for _ in range(_ROUNDS):
        for name in _NAMES:
            short_s, long_s = (_measured_s(APPROACHES[name], batches) for batches in _BATCHES)
            spans[name].append((short_s, long_s))
    pipesched.close()
    return {name: Pace(*zip(*rounds, strict=True)) for name, rounds in spans.items()}


def _measured_s(scheme: str, batches: int) -> float:
    parts = _STAGES if scheme in _CUT else 1
    cost = pipesched.DeviceCost(forward_s=_FORWARD_S / parts, backward_s=_BACKWARD_S / parts)
    return pipesched.run(_lists(scheme, batches), pipesched.Setup(cost), iterations=1, warmup=0).makespan_s


def _lists(scheme: str, batches: int) -> Schedule:
    return _spec(scheme).run(batches).lists(batches)


def table_vi() -> Outcome:
    epochs = {name: paces()[name].batch_s for name in _NAMES}
    ratio = epochs["GPipe"] / epochs["PipeOptim"]
    others = max(epochs[name] for name in _NAMES[1:]) / min(epochs[name] for name in _NAMES[1:])
    gains = _gains()
    published_epochs = [epoch_s[0] / epoch_s[-1] for epoch_s in _EPOCH_S.values()]
    published_totals = [hours[0] / hours[-1] for hours in _TOTAL_H.values()]
    return Outcome(
        f"an epoch of GPipe takes {_two(published_epochs)} x PipeOptim's; to the target {_two(published_totals)} x",
        f"{ratio:.2f} x; to the target {gains['GPipe']:.2f} x",
        verdict_of([ratio, gains["GPipe"]], [published_epochs[0], published_totals[0]], 0.2),
        f"Within 20 % of ResNet-101. The epochs of the others differ by at most {others - 1:.0%} here. Times are of "
        "processes whose stages sleep, so that two cores do for four; accuracy is of another run, of the same lists.",
        _table(),
    )


def _two(ratios: Sequence[float]) -> str:
    return " and ".join(f"{ratio:.2f}" for ratio in ratios)


def _gains() -> dict[str, float]:
    """Return the mean time to the target over PipeOptim's, by approach."""
    times = {name: statistics.fmean(steps()[name]) * paces()[name].batch_s for name in _NAMES}
    return {name: seconds / times["PipeOptim"] for name, seconds in times.items()}


def _table() -> list[str]:
    gains = _gains()
    return [
        f"`{_MODEL}` to {_TARGET:.0%} of held-out scans, {_BATCH} a step, momentum 0.9, learning rate {_RATE:g}, an "
        f"evaluation every {_EVERY} steps,",
        f"{len(_SEEDS)} seeds; at most {_MOST_STEPS} steps. A stage sleeps {_FORWARD_S * 1e3:.0f} and "
        f"{_BACKWARD_S * 1e3:.0f} ms for a batch; {_ROUNDS} rounds in turns.",
        "A batch: a run of 12 less one of 4, the shortest of each, as other work only makes them longer. Whole run:",
        "the range of runs of 12, per batch. Last columns: the paper's time over PipeOptim's.",
        "",
        "| | steps to the target | batch, ms | whole run, ms | over PipeOptim's | ResNet-101 | Inception-V3 |",
        "|---|---:|---:|---:|---:|---:|---:|",
        *(
            f"| {name} | {statistics.fmean(steps()[name]):.0f} +- {spread(steps()[name]):.0f} | "
            f"{paces()[name].batch_s * 1e3:.0f} | {paces()[name].range_ms} | {gains[name]:.2f} | "
            f"{' | '.join(f'{hours[index] / hours[-1]:.2f}' for hours in _TOTAL_H.values())} |"
            for index, name in enumerate(_NAMES)
        ),
    ]


def curve(model: str) -> Outcome:
    """Return the outcome of the figure of a model: times to the target over PipeOptim's."""
    published = [hours / _TOTAL_H[model][-1] for hours in _TOTAL_H[model][:-1]]
    gains = _gains()
    results = [gains[name] for name in _NAMES[:-1]]
    slower = [name for name in _NAMES[:-1] if gains[name] < 1]
    epochs = [3600 * hours / epoch_s for hours, epoch_s in zip(_TOTAL_H[model], _EPOCH_S[model], strict=True)]
    taken = {name: statistics.fmean(steps()[name]) for name in ("GPipe", "PipeOptim")}
    return Outcome(
        "time over PipeOptim's: " + ", ".join(f"{ratio:.2f}" for ratio in published),
        ", ".join(f"{ratio:.2f}" for ratio in results),
        verdict_of(results, published, 0.15),
        "GPipe, PipeDream, 2BW, SpecTrain, XPipe; within 15 %. "
        + (f"Before PipeOptim here: {', '.join(slower)}. " if slower else "PipeOptim is first. ")
        + f"GPipe takes {taken['GPipe']:.0f} steps to the target, PipeOptim {taken['PipeOptim']:.0f}: this training is "
        "short, and stale or predicted weights cost most at its begin. In the paper all take about the same number of "
        f"epochs: {min(epochs):.0f} to {max(epochs):.0f}, by its times.",
    )


def fig_9() -> Outcome:
    return curve("ResNet-101")


def fig_10() -> Outcome:
    return curve("Inception-V3")
