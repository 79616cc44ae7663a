"""Predict equal pipelines on the same devices in lockstep, from one of them.

They are in an iteration that all begin together, and where nobody is slowed; else see `simulator.fast.drift_pace`. All
N pipelines have the same lists and costs, and nothing tells them apart. So each op of one runs beside the same op of
all others, and is slowed as far as N of them want more than the device; each message shares its link with N - 1
that are just as long. That makes one pipeline with a device and a link for itself, on which

    an op takes max(1, N u) times its seconds, u being its utilisation,
    a message takes N times its bytes over the bandwidth,

and its longest path is the Timeline that `simulate_lists` gives every pipeline. Each device holds N times what the one
pipeline does, and the reference model once. A shared NIC would tell pipelines apart: it takes messages in turn.

What N does not change is found once: the event graph, and what is held from which to which of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pipesched.profiles.clusters import Cluster, Link
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Average, Recv, Schedule, Send, Timeline
from pipesched.simulator import Estimate, Meaning
from pipesched.simulator.fast.event_graph import EventGraph
from pipesched.simulator.fast.lockstep_memory import LockstepBytes, held_on_devices
from pipesched.simulator.fast.longest_path import event_graph_of
from pipesched.simulator.memory import OverCapacity, taken_over


@dataclass(frozen=True, slots=True)
class Lockstep:
    """One of N pipelines. N is open; of one alone, an Average takes no time and no memory: there is no reference.

    Attributes:
        costs: What each op takes when it is alone on its device.
        works: (start, end) of each op that is no message and no Average, as numbers of times.
        averages: The end of each Average, as a number of a time.
        held: What each device that holds something holds, in ascending order of device.
    """

    costs: StageCosts
    cluster: Cluster
    graph: EventGraph
    works: tuple[tuple[int, ...], tuple[int, ...]]
    averages: tuple[int, ...]
    held: tuple[LockstepBytes, ...]

    def times_s(self, num_pipelines: int) -> list[float]:
        """Return all times of one of so many, as `EventGraph.times_s` does."""
        costs = self.costs if num_pipelines > 1 else _without_averages(self.costs)
        return self.graph.times_s(costs, _divided(self.cluster, num_pipelines), num_pipelines)

    def makespan_s(self, times_s: Sequence[float], num_pipelines: int) -> float:
        """Return from when to when all together work [s]."""
        starts, ends = self.works
        ends += self.averages if num_pipelines > 1 else ()
        return max((times_s[end] for end in ends), default=0.0) - min((times_s[start] for start in starts), default=0.0)

    def estimate(self, num_pipelines: int) -> Estimate:
        """Return time and memory of so many; the Timeline is left out."""
        times_s = self.times_s(num_pipelines)
        peaks = self.peaks(times_s, num_pipelines)
        over = self.over_capacity(times_s, num_pipelines, peaks)
        return Estimate(
            Meaning.ITERATION, self.makespan_s(times_s, num_pipelines), peaks, None if over is None else str(over)
        )

    def peaks(self, times_s: Sequence[float], num_pipelines: int) -> dict[int, int]:
        """Return the most that all together hold on each device [bytes]."""
        return {held.device: held.peak_bytes(times_s, num_pipelines) for held in self.held}

    def over_capacity(
        self, times_s: Sequence[float], num_pipelines: int, peaks: Mapping[int, int]
    ) -> OverCapacity | None:
        """Return what `simulator.memory.over_capacity` does, out of what `times_s` and `peaks` have returned."""
        excesses = []
        for held in self.held:
            capacity = self.cluster.devices[held.device].memory_bytes
            if capacity is not None and peaks[held.device] > capacity:
                time_s, held_bytes, passes = held.first_over(times_s, num_pipelines, capacity)
                excesses.append((time_s, held.device, held_bytes, capacity, passes))
        if not excesses:
            return None
        time_s, device, held_bytes, capacity, passes = min(excesses)
        timeline = self.timeline(times_s, num_pipelines)
        return taken_over(timeline, device, time_s, held_bytes, capacity, passes=passes)

    def timeline(self, times_s: Sequence[float], num_pipelines: int) -> Timeline:
        """Return the Timeline of one of so many."""
        timeline = self.graph.timeline(times_s)
        if num_pipelines > 1:
            return timeline
        return replace(timeline, spans=tuple(span for span in timeline.spans if not isinstance(span.op, Average)))


def lockstep_of(schedule: Schedule, costs: StageCosts, cluster: Cluster) -> Lockstep:
    """Predict one of several equal pipelines, whose number is not known yet.

    Args:
        schedule: Schedule of one pipeline, lowered, a device for every rank.
        costs: What each op takes when it is alone on its device.
        cluster: Without shared NICs.

    Raises:
        As `longest_path` does.
    """
    graph = event_graph_of(schedule, costs, cluster)
    places = [place for place in graph.places if not isinstance(place.op, Send | Recv | Average)]
    works = tuple(place.start for place in places), tuple(place.end for place in places)
    averages = tuple(place.end for place in graph.places if isinstance(place.op, Average))
    return Lockstep(costs, cluster, graph, works, averages, held_on_devices(graph, costs))


def _without_averages(costs: StageCosts) -> StageCosts:
    return replace(costs, stages=tuple(replace(cost, average_s=0.0) for cost in costs.stages))


def _divided(cluster: Cluster, num_pipelines: int) -> Cluster:
    def share(link: Link) -> Link:
        return replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / num_pipelines)

    return replace(
        cluster,
        intra=share(cluster.intra),
        inter=None if cluster.inter is None else share(cluster.inter),
        loopback=share(cluster.loopback),
        links=tuple((source, target, share(link)) for source, target, link in cluster.links),
    )
