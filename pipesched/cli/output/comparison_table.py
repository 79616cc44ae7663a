"""Two Timelines of one schedule, as tables: a prediction and a measurement, or two of a kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipesched.cli.terminal import print_lines, print_result

if TYPE_CHECKING:
    from pipesched.simulator.analysis import Comparison
    from pipesched.workflows import Table


def print_comparisons(comparisons: Sequence[Comparison]) -> None:
    """Print a table for each schedule: every quantity in both runs, and the difference."""
    from pipesched.workflows.timelines import comparison_table

    for comparison in comparisons:
        print_result(comparison_table([comparison]))


def print_parts(parts: Table | None) -> None:
    """Print the parts of the errors of predictions, or only the reasons if no error can be split."""
    if parts is None:
        return
    if parts.rows:
        print_result(parts)
    else:
        print_lines([parts.caption])
