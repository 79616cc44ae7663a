"""Two Timelines of one schedule, as tables: a prediction and a measurement, or two of a kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipesched.cli.terminal import print_result, terminal_line

if TYPE_CHECKING:
    from pipesched.simulator.analysis import Comparison
    from pipesched.workflows import Table


def print_comparisons(comparisons: Sequence[Comparison]) -> None:
    """Print one table: every quantity of every schedule in both runs, and how far apart they are."""
    from pipesched.workflows.timelines import comparison_table

    print_result(comparison_table(comparisons))


def print_parts(parts: Table | None) -> None:
    """Print the parts of the errors of predictions, or where none can be split the reasons alone."""
    if parts is None:
        return
    if parts.rows:
        print_result(parts)
    else:
        print(terminal_line(parts.caption))
