"""The engine's Timeline without SimPy, as a longest path, where nothing contends.

With a device for every rank and no shared NIC, nothing slows an op that runs, and each channel has its link for itself.
Then all times follow from the lists, one sum and one maximum per op, and `simulate` is what they have to equal.

The tuner asks for thousands of settings: what of this costs do not change, it finds once (`moments_of`).
"""

from __future__ import annotations

from pipesched.profiles.clusters import Cluster, all_reduce, flat
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Schedule, Timeline, reducing_ranks
from pipesched.schedules.lowering import lower
from pipesched.simulator import NetworkOptions, SimulationError
from pipesched.simulator.engine import require_simulable
from pipesched.simulator.fast.contention import is_unshared as is_unshared
from pipesched.simulator.fast.event_graph import EventGraph
from pipesched.simulator.fast.graph_builder import Walk


def longest_path(schedule: Schedule, costs: StageCosts, cluster: Cluster | None = None) -> Timeline:
    """Predict the time of every op, under the usual rules of traffic and without jitter.

    Args:
        schedule: Lowered or not; one of which `is_unshared` is true.
        costs: Seconds and bytes of every stage.
        cluster: Devices and links; None: equal devices and links that take no time.

    Returns:
        The timeline of `simulate`.

    Raises:
        ScheduleError: The two sides of a channel name different messages, or a message is never received.
        SimulationError: Something is shared, costs or devices are missing, or the lists deadlock.
        ProfileError: The costs do not say the seconds of a phase that the lists have.
    """
    cluster = flat(max(schedule.rank_to_device, default=-1) + 1) if cluster is None else cluster
    moments = moments_of(schedule, costs, cluster)
    return moments.timeline(moments.times_s(costs, cluster))


def moments_of(schedule: Schedule, costs: StageCosts, cluster: Cluster) -> EventGraph:
    """Find what `longest_path` needs to know of the lists, for these costs and any others.

    Args:
        schedule: As there.
        costs: Say, with the cluster, by which way gradients are summed.
        cluster: As there.

    Raises:
        ScheduleError, SimulationError: As there.
    """
    require_simulable(schedule, costs, cluster, NetworkOptions(), 0.0)
    if not is_unshared(schedule, cluster):
        raise SimulationError(
            f"{schedule.name}: got {schedule.num_ranks} ranks on {schedule.num_devices} devices and "
            f"{len(cluster.nics)} shared NICs, expected a device for each rank, no such NIC, and links for the "
            "reductions alone; try simulate"
        )
    lowered = lower(schedule)
    devices = schedule.rank_to_device
    plans = {
        stage: all_reduce(costs.stages[stage].weight_bytes, [devices[rank] for rank in ranks], cluster)
        for stage, ranks in reducing_ranks(lowered.ops).items()
    }
    return Walk(lowered, plans).moments()
