"""Two Timelines of one schedule, as a table: a prediction and a measurement, or two of a kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipesched.cli.output.terminal import print_result

if TYPE_CHECKING:
    from pipesched.simulator.analysis import Comparison


def print_comparisons(comparisons: Sequence[Comparison]) -> None:
    """Print one table: every quantity of every schedule in both runs, and how far apart they are."""
    from pipesched.workflows import comparison_table

    print_result(comparison_table(comparisons))
