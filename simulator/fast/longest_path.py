"""The engine's Timeline without SimPy, as a longest path, where nothing contends.

With a device for every rank and no shared NIC, nothing slows an op that runs, and each channel has its link for itself.
Then all times follow from the lists, one sum and one maximum per op, and `simulate_lists` is what they have to equal.

The tuner asks for thousands of settings: what of this costs do not change, it finds once (`event_graph_of`).
"""

from __future__ import annotations

from pipesched.profiles.clusters import Cluster, all_reduce, flat
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Schedule, Timeline
from pipesched.schedules.lowering import lower
from pipesched.simulator import Scenario, SimulationError
from pipesched.simulator.engine import require_simulable
from pipesched.simulator.fast.contention import contention_of
from pipesched.simulator.fast.event_graph import EventGraph
from pipesched.simulator.fast.graph_builder import GraphBuilder


def longest_path(schedule: Schedule, costs: StageCosts, cluster: Cluster | None = None) -> Timeline:
    """Predict the time of every op, under the usual rules of messages and without jitter.

    Args:
        schedule: Lowered or not; one of which `is_unshared` is true.
        costs: Seconds and bytes of every stage.
        cluster: Devices and links; None: equal devices and links that take no time.

    Returns:
        The timeline of `simulate_lists`.

    Raises:
        ScheduleError: The two sides of a channel name different messages, or a message is never received.
        SimulationError: Something is shared, costs or devices are missing, or the lists deadlock.
        ProfileError: The costs do not say the seconds of a phase that the lists have.
    """
    cluster = flat(max(schedule.rank_to_device, default=-1) + 1) if cluster is None else cluster
    graph = event_graph_of(schedule, costs, cluster)
    return graph.timeline(graph.times_s(costs, cluster))


def event_graph_of(schedule: Schedule, costs: StageCosts, cluster: Cluster) -> EventGraph:
    """Return the event graph of the lists, which gives the times for these costs and any others.

    Args:
        schedule: Lowered or not, a device for every rank.
        costs: The costs; with the cluster, they say by which way gradients are reduced.
        cluster: Devices and links that nothing contends for.

    Raises:
        ScheduleError: The lists cannot run.
        SimulationError: Costs or devices are missing, or something contends.
    """
    scenario = Scenario(schedule, costs, cluster)
    require_simulable(schedule, costs, cluster, scenario.network, 0.0)
    reason = contention_of(scenario)
    if reason is not None:
        raise SimulationError(reason)
    lowered = lower(schedule)
    devices = schedule.rank_to_device
    plans = {
        stage: all_reduce(costs.stages[stage].weight_bytes, [devices[rank] for rank in ranks], cluster)
        for stage, ranks in lowered.reducers.items()
    }
    return GraphBuilder(lowered, plans, has_hand_over=cluster.has_hand_over).build()
