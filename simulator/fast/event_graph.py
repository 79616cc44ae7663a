"""The event graph of a schedule: each node some seconds after the last of up to three others.

Where nothing is shared all times follow from the lists, one maximum and one sum per node. Which nodes there are, and
what each waits for, costs do not change. So the graph is built once (`simulator.fast.longest_path.event_graph_of`), and
the times of any costs are a loop over integers:

    time 2 k      ready: the last of up to three others is there          waits ──┐
    time 2 k + 1  over: ready, and then the duration of node k            takes ──┴─ duration
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, assert_never

from pipesched.profiles.clusters import Cluster, Hop, all_reduce
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Average, Compute, Message, Op, Overlap, Schedule, Span, Step, Timeline
from pipesched.simulator import SimulationError


class DeviceWork(NamedTuple):
    """An op on a device; a Step may copy the weights first."""

    device: int
    op: Compute | Overlap | Step | Average
    copies: bool = False


class Flow(NamedTuple):
    """The bytes of a message on their way into a link."""

    hop: Hop
    message: Message


class Latency(NamedTuple):
    """Of a link."""

    hop: Hop


class StageReduction(NamedTuple):
    """A reduction of a stage over devices, or the part of it that keeps one link."""

    stage: int
    devices: tuple[int, ...]
    way: Literal["ring", "hierarchical"]
    hop: Hop | None = None


Duration: TypeAlias = DeviceWork | Flow | Latency | StageReduction | None
"""What lasts from when a node is ready until it is over; None: nothing."""


BEGINNING = 1
"""The number of the time at which nothing is waited for."""


class NumberedSpan(NamedTuple):
    """A span that has numbers of times in place of the times: see `EventGraph.times_s`."""

    rank: int
    op: Op
    posted: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class EventGraph:
    """Node 0 is the beginning, and every other comes behind those that it waits for.

    Attributes:
        schedule: Lowered.
        waits: For what each node waits, thrice: numbers of times.
        takes: Which of `durations` follows when all that is there.
        durations: Each once.
        places: In order of rank, then of the rank's list.
    """

    schedule: Schedule
    waits: tuple[Sequence[int], Sequence[int], Sequence[int]]
    takes: Sequence[int]
    durations: tuple[Duration, ...]
    places: tuple[NumberedSpan, ...]

    def times_s(self, costs: StageCosts, cluster: Cluster, num_pipelines: int = 1) -> list[float]:
        """Return when node k has all that it waits for, as number 2 k, and when it is over, as number 2 k + 1 [s].

        Args:
            costs: As they are for one op alone.
            cluster: Of one pipeline: with what it has of links that several share.
            num_pipelines: Equal ones in lockstep, which slow each op as far as all together want more than the device.

        Raises:
            ProfileError: The costs do not say the seconds of a phase that the lists have.
            SimulationError: A reduction would go another way than the graph says.
        """
        lasts_s = [_seconds(duration, costs, cluster, num_pipelines) for duration in self.durations]
        times_s: list[float] = []
        append = times_s.append
        times_s += (0.0, 0.0)
        for first, second, third, takes in zip(*self.waits, self.takes, strict=True):
            last_s = times_s[first]
            if times_s[second] > last_s:
                last_s = times_s[second]
            if times_s[third] > last_s:
                last_s = times_s[third]
            append(last_s)
            append(last_s + lasts_s[takes])
        return times_s

    def timeline(self, times_s: Sequence[float]) -> Timeline:
        """Return the Timeline that has these times."""
        spans = [
            Span(rank, op, times_s[posted], times_s[start], times_s[end])
            for rank, op, posted, start, end in self.places
        ]
        return Timeline(self.schedule.name, "predicted", tuple(spans), self.schedule.rank_to_device)


def _seconds(duration: Duration, costs: StageCosts, cluster: Cluster, num_pipelines: int) -> float:
    match duration:
        case None:
            return 0.0
        case DeviceWork(device, op, copies):
            pieces = costs.pieces(op, copies=copies)
            seconds = sum(piece.seconds * max(1.0, num_pipelines * piece.utilisation) for piece in pieces)
            return seconds / cluster.devices[device].speed
        case Flow(hop, message):
            return cluster.link(*hop).occupied_s(costs.message_bytes(message))
        case Latency(hop):
            return cluster.link(*hop).latency_s
        case StageReduction(stage, devices, way, through):
            plan = all_reduce(costs.stages[stage].weight_bytes, devices, cluster)
            if plan.way != way:
                raise SimulationError(f"stage {stage} is reduced: got the way {plan.way}, expected {way}; try simulate")
            return plan.seconds if through is None else plan.until_s()[through]
        case _:
            assert_never(duration)
