"""Refuse simulations with missing costs or devices, or with options out of their range."""

from __future__ import annotations

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Schedule
from pipesched.schedules.common import faults
from pipesched.simulator import MAX_JITTER, NetworkOptions, SimulationError


def require_simulable(
    schedule: Schedule, costs: StageCosts, cluster: Cluster, network: NetworkOptions, jitter: float
) -> None:
    """Refuse an impossible simulation, with all faults in one line.

    Raises:
        SimulationError: Costs or devices are missing, or an option is out of its range.
    """
    options = [*faults(network)]
    if not 0 <= jitter <= MAX_JITTER:
        options.append(f"jitter: got {jitter}, expected 0 to {MAX_JITTER:g}; it is the sigma of a log-normal factor")
    if options:  # they do not depend on the schedule
        raise SimulationError("; ".join(options))
    problems = []
    if schedule.num_stages > costs.num_stages:
        problems.append(
            f"got costs ({costs.origin}) of {costs.num_stages} stages, expected {schedule.num_stages}; "
            "partition the model into as many stages as the schedule has"
        )
    num_devices = max(schedule.rank_to_device, default=-1) + 1
    if num_devices > len(cluster.devices):
        problems.append(
            f"got a cluster ({cluster.origin}) of {len(cluster.devices)} devices, expected {num_devices}; "
            "add devices or use fewer ranks"
        )
    if not 0 <= costs.overlap <= 1:
        problems.append(f"got costs ({costs.origin}) of overlap {costs.overlap}, expected 0 to 1; it is a share")
    if problems:
        raise SimulationError(f"{schedule.name}: " + "; ".join(problems))
