"""Lines about the memory of the machines: the limit, and excesses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

from pipesched.cli.errors import NEGATIVE, NotThereError
from pipesched.cli.terminal import complain, num_bytes
from pipesched.simulator.analysis import readable_reason

if TYPE_CHECKING:
    from pipesched.cli.options.machine_options import MachineOptions
    from pipesched.profiles.clusters import Cluster
    from pipesched.simulator.analysis import Metrics
    from pipesched.simulator.memory import OverCapacity
    from pipesched.workflows.simulating import Prediction


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
    said = machines.limit_text() or " to ".join(dict.fromkeys(num_bytes(limit) for limit in (known[0], known[-1])))
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
                f"--memory-limit: got no memory of device {device}, expected some: its allocator cannot be asked here; "
                "leave it out, or see 'pipesched simulate'"
            )
        if held_bytes > limit_bytes:
            complain(
                f"over memory: device {device}: got {num_bytes(held_bytes)}, expected at most "
                f"{num_bytes(limit_bytes)}; try smaller micro-batches, more stages or --recompute all"
            )
            raise typer.Exit(NEGATIVE)
