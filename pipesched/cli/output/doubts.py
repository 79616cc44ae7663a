"""Cautions about a prediction, or about a machine before a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pipesched.cli.errors import in_flags
from pipesched.schedules.formats import suffix_of
from pipesched.workflows import busy_machine, crowded_cores, other_device, unitless_times

if TYPE_CHECKING:
    from pipesched.cli.options.machine_options import MachineOptions
    from pipesched.executor import RunSettings
    from pipesched.profiles.processes import LoadMeter
    from pipesched.workflows.simulating import Prediction


def doubts_of_prediction(prediction: Prediction, machines: MachineOptions) -> list[str]:
    """Return the notes on a prediction, and on the device of its profile."""
    return [*map(in_flags, prediction.notes), *other_device(prediction.setup.loaded_costs, machines.machine)]


def doubts_of_table(file: str | Path | None) -> list[str]:
    """Return the note on a table of layers whose times lack a unit; empty for another file, or None."""
    if file is None or suffix_of(file) != ".csv":
        return []
    from pipesched.profiles.io import load_layer_costs

    return unitless_times(load_layer_costs(file))


def doubts_of_machine(num_ranks: int, settings: RunSettings, meter: LoadMeter) -> list[str]:
    """Return the notes on this machine before `num_ranks` ranks compute."""
    if settings.device != "cpu":
        return []
    others = meter.others()
    return [
        *crowded_cores(num_ranks, settings.threads),
        *busy_machine(others, num_ranks * settings.threads),
    ]
