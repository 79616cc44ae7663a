"""The event graph of a schedule: each node some seconds after the last of up to three others.

    rank 0   F0 ────> F1               B0          a node per op and per transfer; an arrow says that
               └─> message ─┐     ┌─> message       the node at its head waits for the one at its tail
    rank 1                  F0 ─> B0

Where nothing is shared, all times follow from the graph: one maximum and one sum per node. Costs change neither the
nodes nor the arrows. So the graph is built once (`simulator.fast.longest_path.event_graph_of`), and a loop over its
arrays of integers gives the times for any costs. Node k has two times:

    number 2 k        when node k is ready: the largest of up to three other times
    number 2 k + 1    when node k is over: when it is ready, plus its duration
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, assert_never

from pipesched.profiles.clusters import Cluster, Hop, ReductionWay, all_reduce
from pipesched.profiles.costs import StageCosts, shared_slowdown
from pipesched.schedules import HandOver, Message, Op, Schedule, Span, Timeline, WorkOp
from pipesched.simulator import HandOverWork, SimulationError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class DeviceWork(NamedTuple):
    """An op on a device; a Step may copy the weights first."""

    device: int
    op: WorkOp
    copies: bool = False


class Flow(NamedTuple):
    """The bytes of a message on their way into a link."""

    hop: Hop
    message: Message


class Latency(NamedTuple):
    """The latency of a link."""

    hop: Hop


class StageReduction(NamedTuple):
    """A reduction of a stage over devices, or the part of it that keeps one link."""

    stage: int
    devices: tuple[int, ...]
    way: ReductionWay
    hop: Hop | None = None


Duration: TypeAlias = DeviceWork | HandOverWork | Flow | Latency | StageReduction | None
"""What lasts from when a node is ready until it is over; None: nothing."""


BEGINNING = 1
"""The number of the time at which nothing is waited for."""


_FEW_CASES = 8
"""So few are quicker one after the other: an operation of NumPy takes as long as some of Python."""


class NumberedSpan(NamedTuple):
    """A span that has numbers of times in place of the times: see `EventGraph.times_s`."""

    rank: int
    op: Op
    posted: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class EventGraph:
    """A graph of n nodes: node 0 is the beginning, and every other node comes behind those that it waits for.

    Attributes:
        schedule: The lowered lists that the graph is of.
        waits: Three sequences of n numbers of times; node k waits for the k-th of each. `BEGINNING` fills up.
        takes: A sequence of n indices into `durations`: how long each node lasts.
        durations: Every different duration once; costs turn each into seconds.
        places: The spans of all ops, with numbers of times, in order of rank and then of the rank's list.
        hand_overs: Of each hand-over its rank, its op and its node, in the order of the spans; empty where they take no
            time.
    """

    schedule: Schedule
    waits: tuple[Sequence[int], Sequence[int], Sequence[int]]
    takes: Sequence[int]
    durations: tuple[Duration, ...]
    places: tuple[NumberedSpan, ...]
    hand_overs: tuple[tuple[int, Op, int], ...] = ()

    def times_s(self, costs: StageCosts, cluster: Cluster, num_pipelines: int = 1) -> list[float]:
        """Work through the nodes, each behind those that it waits for.

        Args:
            costs: What each op takes when it is alone on its device.
            cluster: The cluster as one pipeline has it: with its part of links that several share.
            num_pipelines: Equal ones in lockstep, which slow each op as far as all together want more than the device.

        Returns:
            The 2 n times of the n nodes [s], by number: time 2 k is when node k has all that it waits for, time 2 k + 1
            when it is over. Times 0 and 1 are those of the beginning: 0 s.

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

    def times_of_cases_s(self, cases: Sequence[tuple[StageCosts, Cluster]]) -> NDArray[np.float64]:
        """Work through the nodes once for all of k pairs of costs and machines, each as `times_s` has it.

        Returns:
            An array of 2 n rows and k columns: the times of each case [s].

        Raises:
            ProfileError, SimulationError: As `times_s` does, of any case.
        """
        import numpy as np

        if len(cases) < _FEW_CASES:
            return np.array([self.times_s(*case) for case in cases]).T
        lasts_s = np.array([_seconds_of_cases(duration, cases) for duration in self.durations])
        times_s = np.zeros((2 * len(self.takes) + 2, len(cases)))
        for node, (first, second, third, takes) in enumerate(zip(*self.waits, self.takes, strict=True), 1):
            ready_s = times_s[2 * node]
            np.maximum(times_s[first], times_s[second], out=ready_s)
            if third != BEGINNING:
                np.maximum(ready_s, times_s[third], out=ready_s)
            np.add(ready_s, lasts_s[takes], out=times_s[2 * node + 1])
        return times_s

    def timeline(self, times_s: Sequence[float]) -> Timeline:
        """Return the Timeline that has these times."""
        spans = [
            Span(rank, op, times_s[posted], times_s[start], times_s[end])
            for rank, op, posted, start, end in self.places
        ]
        hand_overs = tuple(
            HandOver(rank, op, times_s[2 * node], times_s[2 * node + 1])
            for rank, op, node in self.hand_overs
            if times_s[2 * node + 1] > times_s[2 * node]
        )
        return Timeline(
            self.schedule.name, "predicted", tuple(spans), self.schedule.rank_to_device, hand_overs=hand_overs
        )


def _seconds_of_cases(duration: Duration, cases: Sequence[tuple[StageCosts, Cluster]]) -> list[float]:
    """Return the seconds of a duration in each case; those of an op, which no link changes, once for all alike."""
    if not isinstance(duration, DeviceWork):
        return [_seconds(duration, *case, 1) for case in cases]
    alike: dict[tuple[int, float], float] = {}
    seconds = []
    for costs, cluster in cases:
        key = id(costs), cluster.devices[duration.device].speed
        if key not in alike:
            alike[key] = _seconds(duration, costs, cluster, 1)
        seconds.append(alike[key])
    return seconds


def _seconds(duration: Duration, costs: StageCosts, cluster: Cluster, num_pipelines: int) -> float:
    match duration:
        case None:
            return 0.0
        case DeviceWork(device, op, copies):
            pieces = costs.pieces(op, copies=copies)
            seconds = sum(piece.seconds * shared_slowdown(num_pipelines, piece.utilisation) for piece in pieces)
            return seconds / cluster.devices[device].speed
        case HandOverWork():
            piece = duration.piece(costs, cluster)
            seconds = piece.seconds * shared_slowdown(num_pipelines, piece.utilisation)
            return seconds / cluster.devices[duration.device].speed
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
