"""The page of predictions beside published runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from textwrap import fill

from published_rows.comparison import (
    Compared,
    ErrorSummary,
    Group,
    fitted_errors,
    groups_of,
    mean_correlation,
    percentile,
    same_layout,
    same_setting,
    schedule_ratios,
    summary_of,
)
from published_rows.families import family_errors, family_lines
from published_rows.goals import GOALS, fit_share, is_host_bound
from published_rows.machines import MACHINES
from published_rows.prediction import Prediction
from published_rows.row import PublishedRun
from published_rows.trainers import TRAINERS, trainer_of

NUM_WORST = 10
HALVES = ((False, "Rows that were not fitted"), (True, "Rows of the fitted half"))


def table_lines(compared: Sequence[Compared]) -> Iterator[str]:
    """Yield the lines of a CSV file: a row per run, with its numbers and their predictions; times that measure it."""
    yield "id,trainer,gpu,is_fitted,published_s,predicted_s,published_peak_gib,predicted_peak_gib"
    for row in compared:
        run, prediction = row.run, row.prediction
        measured_s = run.iter_s if row.time_error is not None else None
        numbers = (measured_s, prediction.predicted_s, run.peak_gib, prediction.predicted_peak_gib)
        cells = ("" if number is None else f"{number:.4g}" for number in numbers)
        yield ",".join((run.id, trainer_of(run).name, run.gpu.replace(",", ""), str(run.is_fitted), *cells))


def page(rows: Sequence[Compared], unread: Sequence[Prediction], command: str, seconds: float) -> Iterator[str]:
    """Yield the page line by line.

    Args:
        rows: The rows that could be read, with their predictions.
        unread: The predictions of the other rows.
        command: The command without ``python benchmarks/``.
        seconds: Time of all predictions [s].
    """
    yield "# Predictions beside published runs"
    yield ""
    yield fill(
        f"`python benchmarks/{command}`, {datetime.now(UTC):%Y-%m-%d}: {len(rows) + len(unread)} rows in "
        f"{seconds:.0f} s. `benchmarks/data/README.md` names the sources. Constants may be fitted to half of the rows; "
        "the other half is the test. Rows of one source, model, GPU and layout are in the same half. An error of -20 % "
        "is a prediction that is a fifth too low. Rows whose time does not measure their setting count for memory "
        "alone. All seconds and bytes come from `estimated_profile`, the cut of the trainer, and the array engine.",
        118,
    )
    halves = {is_fitted: [row for row in rows if row.run.is_fitted == is_fitted] for is_fitted, _ in HALVES}
    yield from goal_lines(halves)
    yield from family_lines(family_errors(halves[False]))
    for is_fitted, title in HALVES:
        yield from error_lines(title, halves[is_fitted])
        yield from group_lines(title, halves[is_fitted])
    yield from fit_lines(rows)
    yield from ratio_lines(rows)
    yield from worst_lines("time", halves[False], lambda row: row.time_error, _seconds)
    yield from worst_lines("peak memory", halves[False], lambda row: row.memory_error, _bytes)
    yield from missing_lines(rows, unread)
    yield from trainer_lines()
    yield from machine_lines()


def goal_lines(halves: dict[bool, list[Compared]]) -> Iterator[str]:
    """Yield the table of goals."""
    yield ""
    yield "## Goals"
    yield ""
    yield "| figure | goal | rows not fitted | fitted half | all rows |"
    yield "|---|---|---|---|---|"
    for goal in GOALS:
        cells = []
        for several in (halves[False], halves[True], halves[False] + halves[True]):
            figure = goal.figure(goal.rows_of(several))
            cells.append("-" if figure is None else _number(figure, goal.limit) + (" ✓" if goal.is_met(figure) else ""))
        sign = "≥" if goal.is_least else "≤"
        yield f"| {goal.text} | {sign} {_number(goal.limit, goal.limit)} | {' | '.join(cells)} |"


def _number(figure: float, limit: float) -> str:
    return f"{figure:.2f}" if limit in (0.85, 0.9) else f"{figure:.1%}"


def error_lines(title: str, rows: Sequence[Compared]) -> Iterator[str]:
    """Yield the errors of time and memory of each source."""
    yield ""
    yield f"## {title}: errors by source"
    yield ""
    yield "| source | rows | times | median | 90 % | signed | peaks | median | 90 % | signed | fits or fails |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for name, several in _by_trainer(rows):
        times = summary_of(row.time_error for row in several)
        peaks = summary_of(row.memory_error for row in several)
        share = fit_share(several)
        right = "-" if share is None else f"{share:.1%}"
        yield f"| {name} | {len(several)} | {_cells(times)} | {_cells(peaks)} | {right} |"
        hosts = summary_of(row.time_error for row in several if is_host_bound(row.run))
        if hosts:
            yield f"| {name}: rows that the host binds | {hosts.count} | {_cells(hosts)} | {_cells(None)} | - |"


def _by_trainer(rows: Sequence[Compared]) -> Iterator[tuple[str, list[Compared]]]:
    names = {id(row): trainer_of(row.run).name for row in rows}
    for name in dict.fromkeys(names.values()):
        yield name, [row for row in rows if names[id(row)] == name]


def _cells(summary: ErrorSummary | None) -> str:
    if summary is None:
        return "0 | - | - | -"
    return f"{summary.count} | {summary.median_size:.1%} | {summary.ninth_size:.1%} | {summary.median:+.1%}"


def group_lines(title: str, rows: Sequence[Compared]) -> Iterator[str]:
    """Yield the rank correlations and regrets of each source."""
    yield ""
    yield f"## {title}: order within groups of comparable settings"
    yield ""
    yield fill(
        "Settings of a group share machine, model, number type, GPUs, batch and tokens of a sample. The goals group "
        "runs of BigScience by GPUs and batch, and runs of Megatron-Bridge by GPU.",
        118,
    )
    yield ""
    yield "| source | groups | settings | correlation, mean | smallest | regret, median | largest |"
    yield "|---|---|---|---|---|---|---|"
    for name, several in _by_trainer(rows):
        groups = groups_of(several)
        if groups:
            yield f"| {name} | {_group_cells(groups)} |"


def _group_cells(groups: Sequence[Group]) -> str:
    mean = mean_correlation(groups)
    smallest = min((group.correlation for group in groups if group.correlation is not None), default=None)
    regrets = [group.regret for group in groups]
    cells = [
        str(len(groups)),
        str(sum(group.count for group in groups)),
        *("-" if value is None else f"{value:.2f}" for value in (mean, smallest)),
        f"{percentile(regrets, 0.5):.1%}",
        f"{max(regrets):.1%}",
    ]
    return " | ".join(cells)


def fit_lines(rows: Sequence[Compared]) -> Iterator[str]:
    """Yield the errors of time after a fit of one factor to another row of a group, by source."""
    yield ""
    yield "## One known run"
    yield ""
    yield fill(
        "Each row of a group in turn is the known run: the ratio of its published to its predicted seconds multiplies "
        "the predictions of the others, as the factor of `simulate --fit-iteration` does but for messages between "
        "stages. Runs of one layout share model, splits and micro-batch, and differ in copies and batch; comparable "
        "settings differ in layout. Medians and 90th percentiles of absolute errors, of all rows.",
        118,
    )
    yield ""
    yield "| source | one layout: pairs | without | with the factor | comparable: pairs | without | with the factor |"
    yield "|---|---|---|---|---|---|---|"
    for name, several in _by_trainer(rows):
        cells = [cell for key in (same_layout, same_setting) for cell in _fit_cells(fitted_errors(several, key))]
        if cells != ["0", "-", "-"] * 2:
            yield f"| {name} | {' | '.join(cells)} |"


def _fit_cells(pairs: Sequence[tuple[float, float]]) -> list[str]:
    """Return the number of pairs, and the errors without and with the factor."""
    if not pairs:
        return ["0", "-", "-"]
    summaries = [summary_of(errors) for errors in zip(*pairs, strict=True)]
    return [
        str(len(pairs)),
        *(f"{summary.median_size:.1%}, {summary.ninth_size:.1%}" for summary in summaries if summary),
    ]


def ratio_lines(rows: Sequence[Compared]) -> Iterator[str]:
    """Yield the ratios of schedules whose batch is unknown."""
    ratios = schedule_ratios(rows)
    if not ratios:
        return
    yield ""
    yield "## Ratios of schedules"
    yield ""
    yield "| throughput | published | predicted | difference |"
    yield "|---|---|---|---|"
    for ratio in ratios:
        difference = ratio.predicted - ratio.measured
        yield f"| {ratio.name} | {ratio.measured:.3f} | {ratio.predicted:.3f} | {difference:+.3f} |"


def worst_lines(
    what: str,
    rows: Sequence[Compared],
    error_of: Callable[[Compared], float | None],
    numbers_of: Callable[[Compared], str],
) -> Iterator[str]:
    """Yield the rows with the largest errors; a factor of two too high is as bad as one too low."""
    yield ""
    yield f"## The {NUM_WORST} largest errors of {what}, of rows that were not fitted"
    yield ""
    yield "| row | setting | published | predicted | error | reason or doubts |"
    yield "|---|---|---|---|---|---|"
    errors = [(error, row) for row in rows if (error := error_of(row)) is not None]
    errors.sort(key=lambda pair: -abs(math.log(max(1 + pair[0], 1e-9))))
    for error, row in errors[:NUM_WORST]:
        reason = "; ".join(filter(None, (slow_version(row.run), row.prediction.reason))) or "-"
        yield f"| {row.run.id} | {_setting(row)} | {numbers_of(row)} | {error:+.1%} | {reason} |"


SLOW_VERSION_S = 2.6e-3
"""Least seconds of a block for each GPU of the tensor group, of nanotron's version that gathers inputs again."""


def slow_version(run: PublishedRun) -> str:
    """Return the reason of a time that is known from the measurement alone, or an empty text."""
    if not (run.id.startswith("nanotron-") and run.iter_s and run.global_batch and run.micro_batch and run.dp):
        return ""
    passes = run.global_batch / run.dp / run.micro_batch * run.layers
    is_slow = run.pp == 1 and run.tp > 1 and run.iter_s / passes > SLOW_VERSION_S * run.tp
    return "as slow as the version that gathers inputs again" if is_slow else ""


def _setting(row: Compared) -> str:
    run = row.run
    parts = [run.model, f"{run.n_gpus or '?'} GPUs", f"tp {run.tp}", f"pp {run.pp}", f"dp {run.dp or '?'}"]
    parts += [f"{name} {size}" for name, size in (("cp", run.cp), ("ep", run.ep), ("vpp", run.vpp)) if size > 1]
    parts.append(f"batch {run.global_batch or '?'}/{run.micro_batch or '?'}")
    return ", ".join(parts)


def _seconds(row: Compared) -> str:
    return f"{row.run.iter_s:.4g} s | {row.prediction.predicted_s:.4g} s"


def _bytes(row: Compared) -> str:
    return f"{row.run.peak_gib:.4g} GiB | {row.prediction.predicted_peak_gib:.4g} GiB"


def missing_lines(rows: Sequence[Compared], unread: Sequence[Prediction]) -> Iterator[str]:
    """Yield the reasons of rows without a prediction."""
    predictions = [*(row.prediction for row in rows), *unread]
    missing = [prediction for prediction in predictions if prediction.fits is None]
    yield ""
    yield "## Rows without a prediction"
    yield ""
    if not missing:
        yield "Every row has a prediction."
        return
    reasons = Counter(prediction.reason for prediction in missing)
    first = {prediction.reason: prediction.id for prediction in reversed(missing)}
    yield "| rows | first | reason |"
    yield "|---|---|---|"
    for reason, count in reasons.most_common():
        yield f"| {count} | {first[reason]} | {reason} |"


def trainer_lines() -> Iterator[str]:
    """Yield the software of each source."""
    yield ""
    yield "## Software of each source"
    yield ""
    yield fill(
        "Settings of `LayerSharding` other than their defaults, and rules of the trainer. Those without a repository "
        "and a file are supposed.",
        118,
    )
    for trainer in TRAINERS:
        yield ""
        yield f"**{trainer.name}**"
        yield ""
        yield "| setting | value | origin |"
        yield "|---|---|---|"
        for name, known in trainer.settings.items():
            yield f"| {name} | {_shown(known.value)} | {known.origin} |"
        for name, origin in trainer.origins.items():
            value = getattr(trainer, name)
            yield f"| {name} | {'by row' if callable(value) else _shown(value)} | {origin} |"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def machine_lines() -> Iterator[str]:
    """Yield the machines."""
    yield ""
    yield "## Machines"
    yield ""
    yield "| column gpu has | data sheet | GPUs per node | network of a GPU | origin |"
    yield "|---|---|---|---|---|"
    for machine in MACHINES:
        yield (
            f"| {', '.join(machine.patterns)} | {machine.gpu} | {machine.gpus_per_node} | "
            f"{machine.network_bytes_per_s / 1e9:g} GB/s | {machine.origin} |"
        )
