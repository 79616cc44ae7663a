"""The errors of predictions by family of GPUs, on the page and as package data for the outputs of estimates."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from textwrap import fill

from pipesched.profiles.costs import ErrorRange, EstimateErrors
from pipesched.profiles.io import load_gpu
from published_rows.comparison import Compared, summary_of
from published_rows.machines import machine_of

FEWEST_RUNS = 3
"""Runs of the smallest error range."""
DIGITS = 3
"""Decimal places of an error, as the page prints them in percent."""


def family_errors(rows: Sequence[Compared]) -> dict[str, EstimateErrors]:
    """Return the errors of rows by family of GPUs, for families with at least `FEWEST_RUNS` errors of a kind."""
    members = defaultdict(list)
    for row in rows:
        if row.time_error is not None or row.memory_error is not None:
            members[load_gpu(machine_of(row.run).gpu).family or ""].append(row)
    families = {name: _errors(members[name]) for name in sorted(members)}
    return {name: errors for name, errors in families.items() if errors.time or errors.memory}


def errors_text(families: Mapping[str, EstimateErrors]) -> str:
    """Return errors by family of GPUs as JSON, as the package has them."""
    return json.dumps({name: asdict(errors) for name, errors in families.items()}, indent=1) + "\n"


def _errors(rows: Sequence[Compared]) -> EstimateErrors:
    known = [row for row in rows if row.run.global_batch and row.run.micro_batch]
    gpus = sorted({machine_of(row.run).gpu for row in known})
    times, peaks = [row.time_error for row in known], [row.memory_error for row in known]
    return EstimateErrors(tuple(gpus), _range(times), _range(peaks))


def _range(errors: Sequence[float | None]) -> ErrorRange | None:
    summary = summary_of(errors)
    if summary is None or summary.count < FEWEST_RUNS:
        return None
    return ErrorRange(summary.count, round(summary.median_size, DIGITS), round(summary.ninth_size, DIGITS))


def family_lines(families: Mapping[str, EstimateErrors]) -> Iterator[str]:
    """Yield the table of errors by family."""
    yield ""
    yield "## Rows that were not fitted: errors by family of GPUs"
    yield ""
    yield fill(
        "Absolute errors, which each output of an estimate prints. Rows with a supposed batch do not count, and "
        f"fewer than {FEWEST_RUNS} rows have no range.",
        118,
    )
    yield ""
    yield "| family | GPUs | times | median | 90 % | peaks | median | 90 % |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, errors in families.items():
        yield f"| {name} | {', '.join(errors.gpus)} | {_cells(errors.time)} | {_cells(errors.memory)} |"


def _cells(errors: ErrorRange | None) -> str:
    return "- | - | -" if errors is None else f"{errors.count} | {errors.median:.1%} | {errors.ninth:.1%}"
