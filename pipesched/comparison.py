"""Prediction beside measurement, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipesched.output import num_bytes, percent, print_table, seconds

if TYPE_CHECKING:
    from simulator.compare import Comparison


def print_comparison(found: Comparison) -> None:
    """Print one table: every quantity predicted, measured, and how far off; the caption says where the error comes from."""
    rows = []
    for quantity in found.quantities:
        show = seconds if quantity.name.endswith("_s") else num_bytes if quantity.name.endswith("_bytes") else percent
        where = "" if quantity.device is None else f" of device {quantity.device}"
        rows.append(
            {
                found.name: quantity.name.removesuffix("_s").removesuffix("_bytes").replace("_", " ") + where,
                "predicted": "-" if quantity.predicted is None else show(quantity.predicted),
                "measured": "-" if quantity.measured is None else show(quantity.measured),
                "error": "-" if quantity.error is None else f"{quantity.error:+.1%}",
            }
        )
    worst = found.largest_disagreement
    caption = "error = (predicted - measured) / measured"
    if worst is not None:
        caption += (
            f"; furthest off: {worst.kind} of stage {worst.stage}, {seconds(worst.predicted_s)} predicted, "
            f"{seconds(worst.measured_s)} measured, {worst.count} times"
        )
    print_table("", rows, caption)
