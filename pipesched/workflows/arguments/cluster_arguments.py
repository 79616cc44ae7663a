"""Reading and checking of the machines that a caller gives.

Machines are a Cluster, a file (.json), or None: equal devices whose links take no time.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from pipesched.profiles.clusters import Cluster, Device, Link, first_devices, flat
from pipesched.profiles.io import load_cluster, machine_names
from pipesched.schedules.common import faults
from pipesched.schedules.formats import MAX_DEVICES
from pipesched.simulator import NetworkOptions
from pipesched.workflows import ArgumentError, require_at_least, require_kind, require_names, require_numbers

ClusterArgument: TypeAlias = Cluster | str | Path | None


def read_devices_argument(cluster: ClusterArgument, num_devices: int | None) -> Cluster:
    """Return the first `num_devices` devices of a cluster, or all devices for None.

    Raises:
        ArgumentError: Neither argument is given, or the cluster has fewer devices.
        ProfileError: The file is not a cluster.
    """
    if num_devices is None:
        if cluster is None:
            raise ArgumentError("num_devices: got none and no `cluster`, expected one of them; try `num_devices=4`")
        return read_cluster_argument(cluster, 1, "num_devices")
    num_devices = require_at_least("num_devices", num_devices, 1)
    return first_devices(read_cluster_argument(cluster, num_devices, "num_devices"), num_devices)


def require_network(network: object) -> None:
    """Refuse invalid network options.

    Raises:
        ArgumentError: `network` is not a NetworkOptions, or an option is out of range.
    """
    require_kind("network", network, NetworkOptions, "NetworkOptions; try pipesched.NetworkOptions(protocol='eager')")
    assert isinstance(network, NetworkOptions), "its kind"
    for fault in faults(network):
        raise ArgumentError(f"network: {fault}")


def read_cluster_argument(cluster: ClusterArgument, num_devices: int, what: str) -> Cluster:
    """Return at least `num_devices` devices.

    Args:
        cluster: Machines, a file of them, or None: equal devices whose links take no time.
        num_devices: At least 1.
        what: The user of the devices, for messages.

    Raises:
        ArgumentError: `cluster` is of another kind, or has too few devices.
        ProfileError: The file is not a cluster.
    """
    require_kind("cluster", cluster, ClusterArgument, "a Cluster, a file of one, or None")
    if isinstance(cluster, str) and cluster in machine_names():
        raise ArgumentError(
            f"cluster: got {cluster!r}, expected a Cluster or a file of one; try pipesched.load_machine({cluster!r})"
        )
    if num_devices > MAX_DEVICES:
        raise ArgumentError(f"cluster: got {num_devices} devices for {what}, expected at most {MAX_DEVICES}; use fewer")
    if cluster is None:
        return flat(num_devices)
    if isinstance(cluster, Cluster):
        _require_possible_cluster(cluster)
        return with_enough_devices(cluster, num_devices, what, "cluster")
    return with_enough_devices(load_cluster(cluster), num_devices, what, str(cluster))


def with_enough_devices(cluster: Cluster, num_devices: int, what: str, place: str) -> Cluster:
    """Return `cluster`; errors name the user of its devices (`what`) and the argument (`place`).

    Raises:
        ArgumentError: The cluster has fewer than `num_devices` devices.
    """
    if len(cluster.devices) < num_devices:
        raise ArgumentError(
            f"{place}: devices: got {len(cluster.devices)}, expected {num_devices} for {what}; "
            "add devices, or use fewer ranks"
        )
    return cluster


def _require_possible_cluster(cluster: Cluster) -> None:
    """Refuse a cluster with invalid devices, links or numbers of devices.

    Raises:
        ArgumentError: A part of the cluster is invalid.
    """
    for device in {id(device): device for device in require_names("cluster: devices", cluster.devices)}.values():
        require_kind("cluster: devices", device, Device, "Devices; try pipesched.flat(4)")
        require_numbers("cluster: devices", device, ("speed",))
    links = [("intra", cluster.intra), ("inter", cluster.inter or cluster.intra), ("loopback", cluster.loopback)]
    for exception in require_names("cluster: links", cluster.links):
        require_kind("cluster: links", exception, tuple, "tuples (from device, to device, Link)")
        if len(exception) != 3:
            raise ArgumentError(f"cluster: links: got {len(exception)} things, expected (from device, to device, Link)")
        for device in exception[:2]:
            require_at_least("cluster: links", device, 0)
        links.append(("links", exception[2]))
    for name, link in links:
        require_kind(f"cluster: {name}", link, Link, "a Link; try pipesched.Link(latency_s=1e-5)")
        require_numbers(f"cluster: {name}", link, ("bandwidth_bytes_per_s",))
    for devices in require_names("cluster: nics", cluster.nics):
        for device in require_names("cluster: nics", devices):
            require_at_least("cluster: nics", device, 0)
