"""Time to a target accuracy: Figs 9 and 10, Table VI.

The time is the product of two measurements: epochs to the accuracy of a network on digits, and seconds of a batch on
four processes whose stages sleep for a given time, as four GPUs would compute. Training has the paper's settings: 70
epochs, SGD with momentum at 0.01, a tenth of it after 40 and after 60 epochs. All seeds train at once.

The paper does not say how it chose its targets. Both are the lowest of its maximum accuracies, rounded down to half a
point: 66.0 of 66.12 and 55.5 of 55.55 %. Our target follows this rule.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from report import spread
from stacked_seeds import stacked

import pipesched
from paper_rows.figure import Outcome, verdict_of
from paper_rows.pipeoptim.throughput_rows import APPROACHES
from paper_rows.two_at_once import two_at_once
from pipesched.profiles.models import resolve_model
from pipesched.schedules import Schedule
from pipesched.schedules.transforms import ScheduleSpec

_MODEL, _BATCH, _RATE, _DECAY = "digits:blocks=6", 64, 0.01, 5e-4
_EPOCHS, _FALLS, _EPOCH_STEPS = 70, (40, 60), 23
"""Epochs of the paper; epochs after which the rate falls to a tenth; steps of an epoch of 1,500 scans."""
_STAGES, _SEEDS, _ROUNDS = 4, 6, 3
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


def accuracies(scheme: str) -> tuple[tuple[float, ...], ...]:
    """Return the held-out accuracy after each epoch, for each seed."""
    model, scores = stacked(resolve_model(_MODEL), _SEEDS)
    pipesched.train(
        model,
        _spec(scheme),
        num_steps=_EPOCHS * _EPOCH_STEPS,
        batch_size=_BATCH,
        held_out_every=_EPOCH_STEPS,
        optimizer="momentum",
        lr=_RATE,
        weight_decay=_DECAY,
        lr_schedule="step",
        lr_milestones=tuple(epoch * _EPOCH_STEPS for epoch in _FALLS),
    )
    return tuple(map(tuple, torch.stack(scores.looks[:_EPOCHS], 1).tolist()))


@cache
def curves() -> Mapping[str, tuple[tuple[float, ...], ...]]:
    """Return the accuracies after each epoch by approach, for each seed."""
    schemes = [APPROACHES[name] for name in _NAMES]
    return dict(zip(_NAMES, two_at_once(accuracies, schemes), strict=True))


@dataclass(frozen=True, slots=True)
class Reached:
    """The target, and the epochs to it.

    Attributes:
        target: The lowest of the maximum accuracies, rounded down to half a point; a share.
        epochs: Epochs until the mean accuracy over the seeds has reached it, by approach.
        maxima: Maximum of the mean accuracy, by approach.
    """

    target: float
    epochs: Mapping[str, int]
    maxima: Mapping[str, float]


@cache
def reached(without: int | None = None) -> Reached:
    """Return the epochs to the target over all seeds, or over all but one."""
    means = {
        name: [statistics.fmean(now) for now in zip(*(c for seed, c in enumerate(of) if seed != without), strict=True)]
        for name, of in curves().items()
    }
    maxima = {name: max(curve) for name, curve in means.items()}
    target = math.floor(200 * min(maxima.values())) / 200
    epochs = {name: 1 + next(e for e, now in enumerate(curve) if now >= target) for name, curve in means.items()}
    return Reached(target, epochs, maxima)


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


def gains(without: int | None = None) -> dict[str, float]:
    """Return the time to the target over PipeOptim's, by approach."""
    times = {name: reached(without).epochs[name] * paces()[name].batch_s for name in _NAMES}
    return {name: seconds / times["PipeOptim"] for name, seconds in times.items()}


def _range(name: str) -> str:
    """Return the range of an approach's gain over leaving out each of the seeds."""
    ratios = [gains(seed)[name] for seed in range(_SEEDS)]
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def table_vi() -> Outcome:
    batches_s = {name: paces()[name].batch_s for name in _NAMES}
    ratio = batches_s["GPipe"] / batches_s["PipeOptim"]
    others = max(batches_s[name] for name in _NAMES[1:]) / min(batches_s[name] for name in _NAMES[1:])
    published_epochs = [epoch_s[0] / epoch_s[-1] for epoch_s in _EPOCH_S.values()]
    published_totals = [hours[0] / hours[-1] for hours in _TOTAL_H.values()]
    return Outcome(
        f"an epoch of GPipe takes {_two(published_epochs)} x PipeOptim's; to the target {_two(published_totals)} x",
        f"{ratio:.2f} x; to the target {gains()['GPipe']:.2f} x ({_range('GPipe')})",
        verdict_of([ratio, gains()["GPipe"]], [published_epochs[0], published_totals[0]], 0.2),
        f"Within 20 % of ResNet-101; the range leaves out each of {_SEEDS} seeds. Epoch times of the others differ by "
        f"at most {others - 1:.0%} here. Times are of processes whose stages sleep, so that two cores do for four; "
        "accuracy is of another run, of the same lists. The paper does not say how it chose its targets: 66.0 and "
        "55.5 % are its lowest maxima, 66.12 and 55.55 %, rounded down to half a point, and ours follows this rule. "
        "Before the paper's 70 epochs, 240 steps at a constant rate to 95 % were tried: 1.06 x there, as GPipe took "
        "59 steps and PipeOptim 101.",
        _table(),
    )


def _two(ratios: Sequence[float]) -> str:
    return " and ".join(f"{ratio:.2f}" for ratio in ratios)


def _table() -> list[str]:
    return [
        f"`{_MODEL}` to {reached().target:.1%} of held-out scans; {_EPOCHS} epochs of {_EPOCH_STEPS} steps of "
        f"{_BATCH}, momentum 0.9, learning rate {_RATE:g},",
        f"a tenth after {_FALLS[0]} and {_FALLS[1]} epochs, weight decay {_DECAY:g}; mean of {_SEEDS} seeds, and the "
        "spread of their maxima.",
        f"A stage sleeps {_FORWARD_S * 1e3:.0f} and {_BACKWARD_S * 1e3:.0f} ms for a batch; {_ROUNDS} rounds in turns.",
        "A batch: a run of 12 less one of 4, the shortest of each, as other work only makes them longer. Whole run:",
        "the range of runs of 12, per batch. Over PipeOptim's: time to the target, and its range without one seed.",
        "Last columns: the paper's time over PipeOptim's.",
        "",
        "| | maximum accuracy | epochs | batch, ms | whole run, ms | over PipeOptim's | ResNet-101 | Inception-V3 |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
        *(
            f"| {name} | {reached().maxima[name]:.1%} +- {spread([max(of) for of in curves()[name]]):.1%} | "
            f"{reached().epochs[name]} | {paces()[name].batch_s * 1e3:.0f} | {paces()[name].range_ms} | "
            f"{gains()[name]:.2f} ({_range(name)}) | "
            f"{' | '.join(f'{hours[index] / hours[-1]:.2f}' for hours in _TOTAL_H.values())} |"
            for index, name in enumerate(_NAMES)
        ),
    ]


def curve(model: str) -> Outcome:
    """Return the outcome of the figure of a model: times to the target over PipeOptim's."""
    published = [hours / _TOTAL_H[model][-1] for hours in _TOTAL_H[model][:-1]]
    results = [gains()[name] for name in _NAMES[:-1]]
    slower = [name for name in _NAMES[:-1] if gains()[name] < 1]
    published_epochs = [3600 * hours / epoch_s for hours, epoch_s in zip(_TOTAL_H[model], _EPOCH_S[model], strict=True)]
    epochs = reached().epochs
    taken = ", ".join(f"{name} {epochs[name]}" for name in _NAMES)
    return Outcome(
        "time over PipeOptim's: " + ", ".join(f"{ratio:.2f}" for ratio in published),
        ", ".join(f"{ratio:.2f}" for ratio in results),
        verdict_of(results, published, 0.15),
        "GPipe, PipeDream, 2BW, SpecTrain, XPipe; within 15 %. "
        + (f"Before PipeOptim here: {', '.join(slower)}. " if slower else "PipeOptim is first. ")
        + f"Epochs to the target: {taken}. In the paper all take {min(published_epochs):.0f} to "
        f"{max(published_epochs):.0f}, by its times: its target is reached after the rate has fallen, at epoch "
        f"{_FALLS[0]} or {_FALLS[1]}. Digits reach theirs "
        + ("before, " if max(epochs.values()) <= _FALLS[0] else "earlier, ")
        + "where stale weights and predictions cost most.",
    )


def fig_9() -> Outcome:
    return curve("ResNet-101")


def fig_10() -> Outcome:
    return curve("Inception-V3")
