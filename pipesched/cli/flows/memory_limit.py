"""What is judged against the memory of the machines, and what cannot be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

from pipesched.cli.errors import NEGATIVE, InputError, NotThereError
from pipesched.cli.output.terminal import complain, num_bytes

if TYPE_CHECKING:
    from pipesched.cli.options.machine_options import MachineOptions
    from pipesched.profiles.clusters import Cluster
    from pipesched.profiles.costs import Profile, StageCosts
    from pipesched.simulator.analysis import Metrics
    from pipesched.simulator.memory import OverCapacity


def require_judged(
    machines: MachineOptions, costs: StageCosts, advice: str = "try --uniform f=1,b=2,saved_bytes=1e9"
) -> None:
    """Refuse a limit that nothing can be held against.

    Raises:
        InputError: `--memory-limit` is given, and the costs say no bytes.
    """
    if machines.memory_limit is not None and not costs.has_bytes:
        raise InputError(f"--memory-limit: got costs that say no bytes, expected some; {advice}")


def require_judged_profile(machines: MachineOptions, profile: Profile) -> None:
    """Refuse a limit that no layer of a profile can be held against.

    Raises:
        InputError: As `require_judged`.
    """
    from pipesched.profiles.costs import costs_of_stages

    whole = costs_of_stages(profile, ((0, len(profile.layers)),), profile.microbatch_sizes[0])
    require_judged(machines, whole, "profile the model again")


def limit_lines(
    machines: MachineOptions, cluster: Cluster, devices: Iterable[int], *, has_bytes: bool = True
) -> list[str]:
    """Return what is said of the limit that is judged: of which devices, with its unit; nothing where there is none."""
    limits = {device: cluster.devices[device].memory_bytes for device in sorted(set(devices))}
    known = sorted({limit for limit in limits.values() if limit is not None})
    if not known:
        return []
    said = machines.limit_text() or " to ".join(dict.fromkeys(num_bytes(limit) for limit in (known[0], known[-1])))
    if not has_bytes:
        return [f"memory limit {said}: not judged, as the costs say no bytes"]
    without = [str(device) for device, limit in limits.items() if limit is None]
    if without:
        return [f"memory limit {said}, but of device {', '.join(without)} none is known, so these are not judged"]
    return [f"memory limit {said} of every device"]


def end_if_over(over: OverCapacity | None) -> None:
    """End the command where a device holds more than it has."""
    if over is not None:
        complain(f"over memory: {over}")
        raise typer.Exit(NEGATIVE)


def require_fits(found: Metrics, limit_bytes: int | None) -> None:
    """End the command where a device held more than it was to hold.

    Raises:
        NotThereError: There is a limit, and what a device held could not be measured.
    """
    if limit_bytes is None:
        return
    peaks = {device.device: device.peak_memory_bytes for device in found.devices}
    for device, held_bytes in sorted(peaks.items(), key=lambda item: -(item[1] or 0)):
        if held_bytes is None:
            raise NotThereError(
                f"--memory-limit: got no memory of device {device}, expected some: its allocator cannot be asked here; "
                "leave it out, or see 'pipesched simulate'"
            )
        if held_bytes > limit_bytes:
            complain(
                f"over memory: device {device}: got {held_bytes} bytes, expected at most {limit_bytes}; try smaller "
                "micro-batches, more stages or --recompute all"
            )
            raise typer.Exit(NEGATIVE)
