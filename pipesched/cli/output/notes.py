"""Cautions about a prediction, a machine before a run, and the memory of the machines."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pipesched.cli.errors import NEGATIVE, NotThereError, in_flags
from pipesched.cli.terminal import complain
from pipesched.profiles import io
from pipesched.schedules.formats import suffix_of
from pipesched.simulator.analysis import readable_bytes, readable_reason
from pipesched.workflows import busy_machine, crowded_cores, other_device, unitless_times

if TYPE_CHECKING:
    from pipesched.cli.options.machine_options import MachineOptions
    from pipesched.executor import RunSettings
    from pipesched.profiles.clusters import Cluster
    from pipesched.profiles.costs import CostSource
    from pipesched.profiles.processes import LoadMeter
    from pipesched.simulator.analysis import Metrics
    from pipesched.simulator.memory import OverCapacity
    from pipesched.workflows.simulating import Prediction


def doubts_of_prediction(prediction: Prediction, machines: MachineOptions) -> list[str]:
    """Return the notes on a prediction, and on the device of its profile."""
    return [*map(in_flags, prediction.notes), *other_device(prediction.setup.loaded_costs, machines.machine)]


def doubts_of_own_machine(costs: CostSource, machine: str | None) -> list[str]:
    """Return the note on CPU seconds for GPUs of a --machine file; results for named machines have their own note."""
    if machine is None or io.machine_name_of(io.load_machine(machine)) is not None:
        return []
    return other_device(costs, machine)


def doubts_of_table(file: str | Path | None) -> list[str]:
    """Return the note on a table of layers whose times lack a unit; empty for another file, or None."""
    if file is None or suffix_of(file) != ".csv":
        return []
    return unitless_times(io.load_layer_costs(file))


def doubts_of_machine(num_ranks: int, settings: RunSettings, meter: LoadMeter) -> list[str]:
    """Return the notes on this machine before `num_ranks` ranks compute."""
    if settings.device != "cpu":
        return []
    others = meter.others()
    return [
        *crowded_cores(num_ranks, settings.threads),
        *busy_machine(others, num_ranks * settings.threads),
    ]


def limit_lines(machines: MachineOptions, prediction: Prediction) -> list[str]:
    """Return a line on the memory limit of a prediction, or nothing without a limit."""
    devices, has_bytes = prediction.schedule.rank_to_device, prediction.costs.has_bytes
    return device_limit_lines(machines, prediction.cluster, devices, has_bytes=has_bytes)


def device_limit_lines(
    machines: MachineOptions, cluster: Cluster, devices: Iterable[int], *, has_bytes: bool = True
) -> list[str]:
    """Return a line on the memory limit of every device, with its unit, or nothing without a limit."""
    limits = {device: cluster.devices[device].memory_bytes for device in sorted(set(devices))}
    known = sorted({limit for limit in limits.values() if limit is not None})
    if not known or None in limits.values() or not has_bytes:
        return []  # a note covers these devices
    said = machines.limit_text() or " to ".join(dict.fromkeys(readable_bytes(limit) for limit in (known[0], known[-1])))
    return [f"memory limit {said} of every device"]


def end_if_over(over: OverCapacity | None) -> None:
    """End the command if a device exceeds its memory."""
    if over is not None:
        complain(f"over memory: {readable_reason(str(over))}")
        raise typer.Exit(NEGATIVE)


def require_fits(metrics: Metrics, limit_bytes: int | None) -> None:
    """End the command if a device exceeded the limit in a run.

    Raises:
        NotThereError: There is a limit, and the memory of a device could not be measured.
    """
    if limit_bytes is None:
        return
    peaks = {device.device: device.peak_memory_bytes for device in metrics.devices}
    for device, held_bytes in sorted(peaks.items(), key=lambda item: -(item[1] or 0)):
        if held_bytes is None:
            raise NotThereError(
                f"--memory-limit: got no peak memory of device {device}, expected a measured peak, which the allocator "
                "of this device does not report; leave the option out, or see 'pipesched simulate'"
            )
        if held_bytes > limit_bytes:
            complain(
                f"over memory: device {device}: got {readable_bytes(held_bytes)}, expected at most "
                f"{readable_bytes(limit_bytes)}; try smaller micro-batches, more stages or --recompute all"
            )
            raise typer.Exit(NEGATIVE)
