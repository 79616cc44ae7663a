"""Prediction beside measurement, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipesched.output import num_bytes, percent, print_table, seconds

if TYPE_CHECKING:
    from pipesched.simulator.compare import Comparison, Quantity


def print_comparisons(found: Sequence[Comparison]) -> None:
    """Print one table: every quantity of every schedule predicted, measured, and how far off."""
    rows: dict[str, dict[str, str]] = {}
    for comparison in found:
        for quantity in comparison.quantities:
            name = quantity.name.removesuffix("_s").removesuffix("_bytes").replace("_", " ")
            where = "" if quantity.device is None else f" of device {quantity.device}"
            row = rows.setdefault(name + where, {"": name + where})
            row |= {f"{comparison.name} {column}": cell for column, cell in _cells(quantity).items()}
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    caption = ["error = (predicted - measured) / measured", *filter(None, map(_furthest_off, found))]
    print_table("", [{column: row.get(column, "") for column in columns} for row in rows.values()], "\n".join(caption))


def _cells(quantity: Quantity) -> dict[str, str]:
    show = seconds if quantity.name.endswith("_s") else num_bytes if quantity.name.endswith("_bytes") else percent
    return {
        "predicted": "-" if quantity.predicted is None else show(quantity.predicted),
        "measured": "-" if quantity.measured is None else show(quantity.measured),
        "error": "-" if quantity.error is None else f"{quantity.error:+.1%}",
    }


def _furthest_off(comparison: Comparison) -> str | None:
    worst = comparison.largest_disagreement
    if worst is None:
        return None
    return (
        f"{comparison.name}: furthest off is {worst.kind} of stage {worst.stage}, {worst.count} times: "
        f"{seconds(worst.predicted_s)} predicted, {seconds(worst.measured_s)} measured"
    )
