"""Arguments of the library: what a user gives for a schedule, its costs, a profile or the machines, read and checked.

schedule    a Schedule, a Plan, a name of the catalogue with its counts, or a file of lists or of a plan (.json, .csv)
costs       StageCosts, a DeviceCost, a Profile, RunCosts, or a file of a profile (.json, .txt), of costs from runs
            (.json) or of stage costs (.csv)
cluster     a Cluster, a file (.json), or None: equal devices whose links take no time
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TypeAlias

from pipesched.profiles.clusters import Cluster, flat
from pipesched.profiles.costs import (
    DeviceCost,
    Profile,
    RunCosts,
    StageCost,
    StageCosts,
    costs_of_stages,
    layer_seconds,
)
from pipesched.profiles.io import (
    PLAN_FORMAT,
    RUN_COSTS_FORMAT,
    Plan,
    load_cluster,
    load_plan,
    load_profile,
    load_run_costs,
    load_stage_costs,
)
from pipesched.profiles.partitioning import parse_partition
from pipesched.schedules import Schedule
from pipesched.schedules.builders import ParameterValue, build, find
from pipesched.schedules.formats import format_of, read_schedule
from pipesched.workflows import (
    ArgumentError,
    require_at_least,
    require_integer,
    require_kind,
)

MOST_DEVICES = 100_000
_STEPS_PER_RANK = 4
"""Steps of a planned list without a flush, for each rank of a copy: in so many every reading has settled."""


@dataclass(frozen=True, slots=True)
class ScheduleSource:
    """A schedule, and what is known of where it comes from.

    Attributes:
        schedule: The lists of one batch, or of a run without a flush.
        longer: Makes a run without a flush so many times as long; None of a batch, which is repeated.
        plan: The plan that the schedule is made from, if it is.
    """

    schedule: Schedule
    longer: Callable[[int], Schedule] | None = None
    plan: Plan | None = None


ScheduleArgument: TypeAlias = Schedule | Plan | ScheduleSource | str | Path
CostsArgument: TypeAlias = StageCosts | DeviceCost | Profile | RunCosts | str | Path
ProfileArgument: TypeAlias = Profile | str | Path
ClusterArgument: TypeAlias = Cluster | str | Path | None
PartitionArgument: TypeAlias = str | Sequence[int]


def read_schedule_argument(
    schedule: ScheduleArgument,
    *,
    num_ranks: int | None = None,
    num_microbatches: int | None = None,
    num_chunks: int | None = None,
    parameters: Mapping[str, ParameterValue] | None = None,
) -> ScheduleSource:
    """Return the lists that `schedule` stands for.

    Args:
        schedule: A schedule, a plan, a name of the catalogue, or a file of lists (``.json``, ``.csv``) or of a plan.
        num_ranks: Ranks of the pipeline of a schedule given by name.
        num_microbatches: Micro-batches of a schedule given by name.
        num_chunks: Stages per rank of a schedule given by name, where it takes them.
        parameters: Parameters of a schedule given by name, as its entry of the catalogue lists them.

    Raises:
        ArgumentError: None of these, a name without its counts, or counts beside lists that have them already.
        ScheduleError: No such schedule, counts that it cannot have, or a bad file.
        ProfileError: The file of a plan is bad, or its parts do not fit together.
    """
    require_kind("schedule", schedule, ScheduleArgument, "a Schedule, a Plan, a name of the catalogue or a file")
    require_counts(num_ranks, num_microbatches, num_chunks, parameters)
    name = catalogue_name(schedule)
    if name is not None:
        return _built(name, num_ranks, num_microbatches, num_chunks, dict(parameters or {}))
    require_no_counts(
        num_ranks=num_ranks, num_microbatches=num_microbatches, num_chunks=num_chunks, parameters=parameters or None
    )
    match schedule:
        case ScheduleSource():
            return schedule
        case Schedule():
            return ScheduleSource(schedule.held())
        case Plan():
            return _planned(schedule)
        case str() | Path():
            is_plan = format_of(schedule) == PLAN_FORMAT
            return _planned(read_plan_argument(schedule)) if is_plan else ScheduleSource(read_schedule(schedule))


def catalogue_name(schedule: object) -> str | None:
    """Return `schedule` if it stands for a name of the catalogue, whether there is such a schedule or not; else None.

    A text with the suffix of a file of lists or of a plan (``.json``, ``.csv``) stands for a file.
    """
    if isinstance(schedule, str) and Path(schedule).suffix not in (".json", ".csv"):
        return schedule
    return None


def require_counts(
    num_ranks: int | None,
    num_microbatches: int | None,
    num_chunks: int | None,
    parameters: Mapping[str, ParameterValue] | None,
) -> None:
    """Refuse counts of a schedule by name that are no integers, and parameters without names; None stands for none.

    Raises:
        ArgumentError: There are some.
    """
    counts = {"num_ranks": num_ranks, "num_microbatches": num_microbatches, "num_chunks": num_chunks}
    for name, value in counts.items():
        if value is not None:
            require_integer(name, value)
    if parameters is not None:
        require_kind("parameters", parameters, Mapping, "names with their values; try {'pipelines': 2}")
        for name in parameters:
            require_kind("parameters", name, str, "names; try {'pipelines': 2}")


def require_no_counts(**counts: object) -> None:
    """Refuse counts, by their names, beside lists that have them already; None stands for none.

    Raises:
        ArgumentError: One is given.
    """
    for name, value in counts.items():
        if value is not None:
            raise ArgumentError(f"{name}: got {value}, expected it beside a schedule's name alone; leave it out")


def _built(
    name: str,
    num_ranks: int | None,
    num_microbatches: int | None,
    num_chunks: int | None,
    parameters: dict[str, ParameterValue],
) -> ScheduleSource:
    entry = find(name)
    if num_ranks is None or num_microbatches is None:
        counts = {"num_ranks": num_ranks, "num_microbatches": num_microbatches}
        missing = next(count for count, value in counts.items() if value is None)
        raise ArgumentError(
            f"{missing}: got none with schedule {name}, expected it; try `num_ranks=4`, `num_microbatches=8`"
        )
    num_built = num_microbatches

    def longer(times: int) -> Schedule:
        return build(entry.name, num_ranks, times * num_built, num_chunks, **parameters)

    return ScheduleSource(longer(1), longer if entry.traits.is_asynchronous else None)


def _planned(plan: Plan) -> ScheduleSource:
    """Return the lists of one step; without a flush, of as many as it takes to settle."""
    is_asynchronous = find(plan.schedule_spec.name).traits.is_asynchronous if plan.schedule_spec.name else False
    num_steps = _STEPS_PER_RANK * plan.schedule_spec.num_ranks if is_asynchronous else 1

    def longer(times: int) -> Schedule:
        return plan.run(times * num_steps).lists(times * num_steps).held()

    return ScheduleSource(longer(1), longer if is_asynchronous else None, plan)


def read_plan_argument(plan: Plan | str | Path) -> Plan:
    """Return a plan whose parts fit together.

    Raises:
        ProfileError: They do not, or the file is no plan.
        ScheduleError: There is no such schedule.
    """
    loaded = plan if isinstance(plan, Plan) else load_plan(plan)
    loaded.run(1)
    return loaded


def read_profile_argument(profile: ProfileArgument) -> Profile:
    """Return a profile.

    Raises:
        ArgumentError: It is neither a profile nor a file.
        ProfileError: The file is none.
    """
    require_kind("profile", profile, ProfileArgument, "a Profile, or a file of one")
    return profile if isinstance(profile, Profile) else load_profile(profile)


def read_costs_argument(
    costs: CostsArgument,
    schedule: Schedule,
    *,
    microbatch_size: int | None = None,
    partition: str | None = None,
) -> StageCosts:
    """Return what the stages of `schedule` cost.

    Args:
        costs: Costs of stages, of a device, of runs, or of the layers of a profile, or a file of them.
        schedule: Says how many stages there are.
        microbatch_size: Samples of a micro-batch, with a profile; None: the smallest size that was measured.
        partition: Layers to stages, with a profile: ``balanced`` (None), ``uniform``, or counts as ``3,3,4``.

    Raises:
        ArgumentError: No costs, a partition of what is no profile, or costs of another number of stages.
        ProfileError: A file is bad, or the partition does not fit.
    """
    loaded = load_costs(costs)
    if isinstance(loaded, Profile):
        size = read_microbatch_size(microbatch_size, loaded)
        bounds = parse_partition(
            "balanced" if partition is None else partition, layer_seconds(loaded, size), schedule.num_stages
        )
        return costs_of_stages(loaded, bounds, size)
    for name, value in {"microbatch_size": microbatch_size, "partition": partition}.items():
        if value is not None:
            raise ArgumentError(f"{name}: got {value}, expected it with costs of a profile alone; leave it out")
    stage_costs = loaded if isinstance(loaded, StageCosts) else loaded.stage_costs(schedule)
    if stage_costs.num_stages != schedule.num_stages:
        file = stage_costs.origin if stage_costs.origin.endswith(".csv") else "costs"
        raise ArgumentError(
            f"{file}: got {stage_costs.num_stages} stages, expected {schedule.num_stages} "
            f"for schedule {schedule.name}; give one row per stage"
        )
    return stage_costs


def read_microbatch_size(microbatch_size: int | None, profile: Profile) -> int:
    """Return how many samples a micro-batch has; None: the smallest that was measured.

    Raises:
        ArgumentError: It is below 1.
    """
    if microbatch_size is None:
        return profile.microbatch_sizes[0]
    require_at_least("microbatch_size", microbatch_size, 1)
    return microbatch_size


def partition_text(partition: PartitionArgument | None) -> str | None:
    """Return how layers are cut into stages, as `parse_partition` takes it; None where nothing is said.

    Raises:
        ArgumentError: It is neither a text nor a list of each stage's number of layers.
    """
    if partition is None or isinstance(partition, str):
        return partition
    require_kind("partition", partition, Sequence, "balanced, uniform or layers per stage; try [3, 3, 4]")
    for num_layers in partition:
        require_at_least("partition", num_layers, 1)
    return ",".join(map(str, partition))


def load_costs(costs: CostsArgument) -> StageCosts | DeviceCost | Profile | RunCosts:
    """Return costs, those of a file read.

    Raises:
        ArgumentError: There are none, or one is below 0.
        ProfileError: The file has none.
    """
    require_kind("costs", costs, CostsArgument, "StageCosts, a DeviceCost, a Profile, RunCosts or a file of costs")
    if isinstance(costs, Profile | RunCosts):
        return costs
    if not isinstance(costs, str | Path):
        for cost in (costs,) if isinstance(costs, DeviceCost) else {id(c): c for c in costs.stages}.values():
            _require_possible_cost(cost)
        return costs
    if Path(costs).suffix == ".csv":
        return load_stage_costs(costs)
    return load_run_costs(costs) if format_of(costs) == RUN_COSTS_FORMAT else load_profile(costs)


def machines_of(costs: StageCosts | DeviceCost | Profile | RunCosts, cluster: Cluster) -> Cluster:
    """Return the devices of `cluster`; where the costs are of runs, they hand over as the runs did."""
    return costs.cluster(cluster.devices) if isinstance(costs, RunCosts) else cluster


def _require_possible_cost(cost: DeviceCost | StageCost) -> None:
    for field in fields(cost):
        value = getattr(cost, field.name)
        if value is not None and not (isinstance(value, int | float) and 0 <= value < math.inf):
            raise ArgumentError(f"costs: {field.name}: got {value!r}, expected a number of at least 0")


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
    if num_devices > MOST_DEVICES:
        raise ArgumentError(
            f"cluster: got {num_devices} devices for {what}, expected at most {MOST_DEVICES}; use fewer"
        )
    if cluster is None:
        return flat(num_devices)
    loaded = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
    if len(loaded.devices) < num_devices:
        place = "cluster" if isinstance(cluster, Cluster) else cluster
        raise ArgumentError(
            f"{place}: devices: got {len(loaded.devices)}, expected {num_devices} for {what}; "
            "add devices, or use fewer ranks"
        )
    return loaded
