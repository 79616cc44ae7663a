"""Machines as a caller gives them, read and checked.

They are a Cluster, a file (.json), or None: equal devices whose links take no time.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from pipesched.profiles.clusters import Cluster, flat
from pipesched.profiles.costs import DeviceCost, Profile, RunCosts, StageCosts
from pipesched.profiles.io import load_cluster
from pipesched.schedules.formats import MAX_DEVICES
from pipesched.workflows import ArgumentError, require_at_least, require_kind

ClusterArgument: TypeAlias = Cluster | str | Path | None


def machines_of(costs: StageCosts | DeviceCost | Profile | RunCosts, cluster: Cluster) -> Cluster:
    """Return the devices of `cluster`; where the costs are of runs, they hand over as the runs did."""
    return costs.cluster(cluster.devices) if isinstance(costs, RunCosts) else cluster


def read_devices_argument(cluster: ClusterArgument, num_devices: int | None) -> Cluster:
    """Return the first `num_devices` of a cluster, and no other; None: all.

    Raises:
        ArgumentError: Neither is given, or there are fewer.
        ProfileError: The file is none.
    """
    if num_devices is None:
        if cluster is None:
            raise ArgumentError("num_devices: got none and no `cluster`, expected one of them; try `num_devices=4`")
        return read_cluster_argument(cluster, 1, "num_devices")
    require_at_least("num_devices", num_devices, 1)
    machines = read_cluster_argument(cluster, num_devices, "num_devices")
    return replace(machines, devices=machines.devices[:num_devices])


def read_cluster_argument(cluster: ClusterArgument, num_devices: int, what: str) -> Cluster:
    """Return at least `num_devices` devices.

    Args:
        cluster: Machines, a file of them, or None: equal devices whose links take no time.
        num_devices: At least 1.
        what: Who needs them, for messages.

    Raises:
        ArgumentError: It is neither, or there are fewer.
        ProfileError: The file is none.
    """
    require_kind("cluster", cluster, ClusterArgument, "a Cluster, a file of one, or None")
    if num_devices > MAX_DEVICES:
        raise ArgumentError(f"cluster: got {num_devices} devices for {what}, expected at most {MAX_DEVICES}; use fewer")
    if cluster is None:
        return flat(num_devices)
    if isinstance(cluster, Cluster):
        return with_enough_devices(cluster, num_devices, what, "cluster")
    return with_enough_devices(load_cluster(cluster), num_devices, what, str(cluster))


def with_enough_devices(cluster: Cluster, num_devices: int, what: str, place: str) -> Cluster:
    """Return `cluster`; `what` and `place` say who needs its devices and where they were given.

    Raises:
        ArgumentError: It has fewer than `num_devices`.
    """
    if len(cluster.devices) < num_devices:
        raise ArgumentError(
            f"{place}: devices: got {len(cluster.devices)}, expected {num_devices} for {what}; "
            "add devices, or use fewer ranks"
        )
    return cluster
