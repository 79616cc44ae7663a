"""Two Timelines of one schedule, as a table: a prediction and a measurement, or two of a kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipesched.cli.output.terminal import num_bytes, percent, print_table, seconds

if TYPE_CHECKING:
    from pipesched.simulator.analysis import Comparison, Quantity


def print_comparisons(found: Sequence[Comparison]) -> None:
    """Print one table: every quantity of every schedule in both runs, and how far apart they are."""
    rows: dict[str, dict[str, str]] = {}
    for comparison in found:
        for quantity in comparison.quantities:
            name = quantity.name.removesuffix("_s").removesuffix("_bytes").replace("_", " ")
            where = "" if quantity.device is None else f" of device {quantity.device}"
            row = rows.setdefault(name + where, {"": name + where})
            whose = f"{comparison.name} " if comparison.names is None else ""
            row |= {whose + column: cell for column, cell in _cells(quantity, comparison.names).items()}
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    caption = dict.fromkeys(map(_meaning, found)) | dict.fromkeys(filter(None, map(_furthest_off, found)))
    print_table("", [{column: row.get(column, "") for column in columns} for row in rows.values()], "\n".join(caption))


def _meaning(comparison: Comparison) -> str:
    if comparison.names is None:
        return "error = (predicted - measured) / measured"
    first, second = comparison.names
    return f"difference = ({second} - {first}) / {first}"


def _cells(quantity: Quantity, names: tuple[str, str] | None) -> dict[str, str]:
    show = seconds if quantity.name.endswith("_s") else num_bytes if quantity.name.endswith("_bytes") else percent
    first, second = names or ("predicted", "measured")
    relative = quantity.error if names is None else quantity.difference
    return {
        first: "-" if quantity.predicted is None else show(quantity.predicted),
        second: "-" if quantity.measured is None else show(quantity.measured),
        "error" if names is None else "difference": "-" if relative is None else f"{relative:+.1%}",
    }


def _furthest_off(comparison: Comparison) -> str | None:
    worst = comparison.largest_disagreement
    if worst is None:
        return None
    what = f"{worst.kind} of stage {worst.stage}, {worst.count} times"
    if comparison.names is None:
        times = f"{seconds(worst.predicted_s)} predicted, {seconds(worst.measured_s)} measured"
        return f"{comparison.name}: furthest off is {what}: {times}"
    first, second = comparison.names
    times = f"{seconds(worst.predicted_s)} in {first}, {seconds(worst.measured_s)} in {second}"
    return f"{comparison.name}: furthest apart is {what}: {times}"
