"""Predictions beside published measurements: errors of rows, and statistics of many rows."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations

from pipesched.workflows.tuning import rank_correlation
from published_rows.prediction import Prediction, time_trap
from published_rows.row import PublishedRun

LEAST_GROUP = 3
"""Rows of the smallest group with a rank correlation."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A published run beside its prediction."""

    run: PublishedRun
    prediction: Prediction

    @property
    def time_error(self) -> float | None:
        """The relative error of the predicted seconds; None if the time does not measure the setting."""
        if self.run.iter_s is None or self.prediction.predicted_s is None or time_trap(self.run):
            return None
        return self.prediction.predicted_s / self.run.iter_s - 1

    @property
    def memory_error(self) -> float | None:
        """The relative error of the predicted peak memory, or None."""
        if self.run.peak_gib is None or self.prediction.predicted_peak_gib is None:
            return None
        return self.prediction.predicted_peak_gib / self.run.peak_gib - 1

    @property
    def is_fit_right(self) -> bool | None:
        """Whether the run fits or fails as predicted; None if the row says neither, or has no prediction."""
        has_run = self.run.iter_s is not None or self.run.tflops_per_gpu is not None or bool(self.run.peak_gib_per_rank)
        if self.prediction.fits is None or not (has_run or self.run.has_failed):
            return None
        return self.prediction.fits != self.run.has_failed


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Relative errors of several rows.

    Attributes:
        count: Number of errors.
        median_size: Median of the absolute errors.
        ninth_size: 90th percentile of the absolute errors.
        median: Median of the signed errors.
    """

    count: int
    median_size: float
    ninth_size: float
    median: float


def summary_of(errors: Iterable[float | None]) -> ErrorSummary | None:
    """Return the summary of the errors that are not None, or None without any."""
    known = [error for error in errors if error is not None]
    if not known:
        return None
    sizes = [abs(error) for error in known]
    return ErrorSummary(len(known), statistics.median(sizes), percentile(sizes, 0.9), statistics.median(known))


def percentile(values: Iterable[float], share: float) -> float:
    """Return the value below which a share of the values lies, linear between neighbours."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


@dataclass(frozen=True, slots=True)
class Group:
    """Comparable settings: the order of their times, predicted and measured.

    Attributes:
        name: Fields that the settings share.
        count: Number of settings.
        correlation: Spearman's rank correlation, or None if all times of one kind are equal.
        regret: Measured seconds of the predicted best setting over those of the best, minus 1.
    """

    name: str
    count: int
    correlation: float | None
    regret: float


def same_setting(run: PublishedRun) -> tuple[Hashable, ...]:
    """Return the fields that comparable settings share: machine, model, GPUs, batch, tokens, number type."""
    return run.gpu, run.model, run.n_gpus, run.global_batch, run.seq, run.dtype


def groups_of(
    rows: Iterable[Compared], key: Callable[[PublishedRun], tuple[Hashable, ...]] = same_setting
) -> list[Group]:
    """Return the groups of at least `LEAST_GROUP` rows with a time error, by their key."""
    return [_group(", ".join(map(str, name)), several) for name, several in _members(rows, key).items()]


def _members(
    rows: Iterable[Compared], key: Callable[[PublishedRun], tuple[Hashable, ...]]
) -> dict[tuple[Hashable, ...], list[Compared]]:
    """Return the rows of each group of at least `LEAST_GROUP` rows with a time error, by their key."""
    members = defaultdict(list)
    for row in rows:
        if row.time_error is not None:
            members[key(row.run)].append(row)
    return {name: several for name, several in members.items() if len(several) >= LEAST_GROUP}


def same_layout(run: PublishedRun) -> tuple[Hashable, ...]:
    """Return the fields that runs of one layout share, whatever their copies and batch."""
    return run.gpu, run.model, run.seq, run.dtype, run.tp, run.pp, run.vpp, run.cp, run.ep, run.micro_batch


def fitted_errors(
    rows: Iterable[Compared], key: Callable[[PublishedRun], tuple[Hashable, ...]]
) -> list[tuple[float, float]]:
    """Return pairs of errors of time: of a row, and of the row once another row of its group has given its factor.

    The factor is the published over the predicted seconds of the other row.
    """
    return [
        (error, (1 + error) / (1 + known) - 1)
        for several in _members(rows, key).values()
        for known, error in permutations([row.time_error or 0.0 for row in several], 2)
    ]


def _group(name: str, rows: Sequence[Compared]) -> Group:
    measured = [row.run.iter_s or 0.0 for row in rows]
    predicted = [row.prediction.predicted_s or 0.0 for row in rows]
    return Group(name, len(rows), rank_correlation(predicted, measured), regret(predicted, measured))


def regret(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Return the measured seconds of the predicted best over the least measured seconds, minus 1."""
    best = min(range(len(predicted)), key=predicted.__getitem__)
    return measured[best] / min(measured) - 1


def mean_correlation(groups: Sequence[Group]) -> float | None:
    """Return the mean of the rank correlations, weighted by the rows of each group, or None without any."""
    known = [(group.correlation, group.count) for group in groups if group.correlation is not None]
    if not known:
        return None
    return sum(value * count for value, count in known) / sum(count for _, count in known)


@dataclass(frozen=True, slots=True)
class Ratio:
    """The throughput of a schedule over the throughput of a reference schedule of the same run set.

    Attributes:
        name: Model, schedule and reference schedule.
        measured: Published ratio.
        predicted: Predicted ratio.
    """

    name: str
    measured: float
    predicted: float


def schedule_ratios(rows: Iterable[Compared]) -> list[Ratio]:
    """Return the ratios of runs whose batch is unknown to 1F1B of the same set, or to its first row."""
    sets = defaultdict(list)
    for row in rows:
        if row.run.iter_s is None and row.run.tflops_per_gpu and row.prediction.predicted_s:
            sets[row.run.gpu, row.run.model, row.run.n_gpus].append(row)
    ratios = []
    for several in sets.values():
        reference = next((row for row in several if row.run.schedule == "1f1b"), several[0])
        ratios += [_ratio(row, reference) for row in several if row is not reference]
    return ratios


def _ratio(row: Compared, reference: Compared) -> Ratio:
    name = f"{row.run.model}, {row.run.schedule} to {reference.run.schedule}"
    measured = (row.run.tflops_per_gpu or 0.0) / (reference.run.tflops_per_gpu or 1.0)
    predicted = (reference.prediction.predicted_s or 0.0) / (row.prediction.predicted_s or 1.0)
    return Ratio(name, measured, predicted)
