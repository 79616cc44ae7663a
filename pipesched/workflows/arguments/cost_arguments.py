"""Reading and checking of the costs that a caller gives.

Costs are StageCosts, LayerCosts, a DeviceCost, a Profile, RunCosts, or a file: of a profile (.json, .txt), of costs
from runs (.json), or a table of stages or layers (.csv).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TypeAlias

from pipesched.profiles.clusters import Cluster, Device, Link, first_devices, flat
from pipesched.profiles.costs import (
    CostSource,
    DeviceCost,
    Profile,
    StageCost,
    profile_with_input_share,
)
from pipesched.profiles.io import (
    RUN_COSTS_FORMAT,
    load_cluster,
    load_cost_table,
    load_profile,
    load_run_costs,
    machine_names,
)
from pipesched.schedules.common import faults
from pipesched.schedules.formats import MAX_DEVICES, format_of, suffix_of
from pipesched.simulator import NetworkOptions
from pipesched.workflows import (
    ArgumentError,
    require_at_least,
    require_kind,
    require_names,
    require_number,
    require_numbers,
)

CostsArgument: TypeAlias = CostSource | str | Path
ProfileArgument: TypeAlias = Profile | str | Path
PartitionArgument: TypeAlias = str | Sequence[int]


def read_profile_argument(profile: ProfileArgument, input_share: float | None = None) -> Profile:
    """Return a profile, read from its file if a file is given.

    Args:
        profile: A profile, or a file of one.
        input_share: Share of B that I takes in layers that give B alone; None: no split is assumed.

    Raises:
        ArgumentError: `profile` is neither a profile nor a file, or the share is out of range.
        ProfileError: The file is not a profile.
    """
    require_kind("profile", profile, ProfileArgument, "a Profile, or a file of one")
    if input_share is not None:
        require_number("input_share", input_share)
        if input_share > 1:
            raise ArgumentError(f"input_share: got {input_share:g}, expected a share from 0 to 1; try 0.5")
    loaded = profile if isinstance(profile, Profile) else load_profile(profile)
    return loaded if input_share is None else profile_with_input_share(loaded, input_share)


def read_microbatch_size(microbatch_size: int | None, profile: CostSource) -> int:
    """Return the samples of a micro-batch; None: the smallest measured size.

    Raises:
        ArgumentError: The size is below 1.
    """
    if microbatch_size is None:
        return profile.microbatch_sizes[0]
    return require_at_least("microbatch_size", microbatch_size, 1)


def partition_text(partition: PartitionArgument | None) -> str | None:
    """Return the partition as a text for `parse_partition`, or None if none is given.

    Raises:
        ArgumentError: The partition is neither a text nor a list of the number of layers of each stage.
    """
    if partition is None or isinstance(partition, str):
        return partition
    require_kind("partition", partition, Collection, "balanced, uniform or layers per stage; try [3, 3, 4]")
    return ",".join(
        str(require_at_least("partition", num_layers, 1)) for num_layers in require_names("partition", partition)
    )


_COSTS = (
    "StageCosts, LayerCosts, a DeviceCost, a Profile, RunCosts or a file; try pipesched.DeviceCost(1.0, 2.0), or "
    "pipesched.profiles.costs.LayerCosts(..) with a StageCost for each layer"
)


def load_costs(costs: CostsArgument) -> CostSource:
    """Return costs, read from a file if a file is given.

    Raises:
        ArgumentError: There are no costs, or one is below 0.
        ProfileError: The file has no costs.
    """
    require_kind("costs", costs, CostsArgument, _COSTS)
    if not isinstance(costs, str | Path):
        for name, given in costs.given.items():
            parts = require_names(f"costs: {name}", given)
            if not parts:
                raise ArgumentError(f"costs: {name}: got none, expected at least one StageCost; add one")
            for part in {id(part): part for part in parts}.values():
                expected = (
                    "StageCosts; try pipesched.uniform(4, 1.0)" if name == "stages" else "a StageCost of each layer"
                )
                require_kind(f"costs: {name}", part, DeviceCost | StageCost, expected)
                require_numbers("costs", part)
        return costs
    if suffix_of(costs) == ".csv":
        return load_cost_table(costs)
    return load_run_costs(costs) if format_of(costs) == RUN_COSTS_FORMAT else load_profile(costs)


ClusterArgument: TypeAlias = Cluster | str | Path | None


def read_devices_argument(cluster: ClusterArgument, num_devices: int | None) -> Cluster:
    """Return the first `num_devices` devices of a cluster, or all devices for None.

    Raises:
        ArgumentError: Neither argument is given, or the cluster has fewer devices.
        ProfileError: The file is not a cluster.
    """
    if num_devices is None:
        if cluster is None:
            raise ArgumentError("num_devices: got none and no `cluster`, expected one of the two; try `num_devices=4`")
        return read_cluster_argument(cluster, 1, "num_devices")
    num_devices = require_at_least("num_devices", num_devices, 1)
    return first_devices(read_cluster_argument(cluster, num_devices, "num_devices"), num_devices)


def require_network(network: object) -> None:
    """Refuse invalid network options.

    Raises:
        ArgumentError: `network` is not a NetworkOptions, or an option is out of range.
    """
    require_kind(
        "network", network, NetworkOptions, "NetworkOptions; try pipesched.simulator.NetworkOptions(protocol='eager')"
    )
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
            f"cluster: got {cluster!r}, expected a Cluster or the file of a cluster; try "
            f"pipesched.load_machine({cluster!r})"
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
            raise ArgumentError(
                f"cluster: links: got a tuple of {len(exception)} items, expected (from device, to device, Link)"
            )
        for device in exception[:2]:
            require_at_least("cluster: links", device, 0)
        links.append(("links", exception[2]))
    for name, link in links:
        require_kind(f"cluster: {name}", link, Link, "a Link; try pipesched.Link(latency_s=1e-5)")
        require_numbers(f"cluster: {name}", link, ("bandwidth_bytes_per_s",))
    for devices in require_names("cluster: nics", cluster.nics):
        for device in require_names("cluster: nics", devices):
            require_at_least("cluster: nics", device, 0)
