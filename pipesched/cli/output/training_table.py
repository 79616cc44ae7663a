"""Trained runs as tables: measurements, and predictions for a machine per rank."""

from __future__ import annotations

from collections.abc import Sequence

from pipesched.cli.terminal import print_result
from pipesched.workflows.training import TrainedRun, forecast_table, trained_table


def print_outcomes(outcomes: Sequence[TrainedRun], costs: str, target_loss: float | None) -> None:
    """Print the measurements and the forecasts, a row per run each."""
    for table in (trained_table(outcomes, target_loss), forecast_table(outcomes, costs, target_loss)):
        print_result(table)
