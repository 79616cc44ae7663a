"""The lists of one pipeline as arrays of numbers, for `fast.drift_loop`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, TypeAlias, assert_never

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import (
    Average,
    Compute,
    Message,
    Op,
    Overlap,
    Recv,
    Reduce,
    Reshard,
    Schedule,
    Send,
    Step,
    Unshard,
    needs,
    needs_from_others,
    stages_of_op,
)
from pipesched.schedules.semantics import Channel, Meetings
from pipesched.schedules.weights import stashing_steps
from pipesched.simulator import (
    Scenario,
    SimulationError,
    after_op,
    is_usual,
    of_post,
    of_receipt,
)

_StrangeOp: TypeAlias = Reduce | Overlap | Unshard | Reshard
"""What is in the list of no pipeline that is one of several."""

WORK, SEND, RECV = 0, 1, 2
_NOTHING = (-1, 0)


@dataclass(frozen=True, slots=True, eq=False)
class DriftArrays:
    """What an iteration is, for every lane, in numbers.

    Attributes:
        name: Name of the schedule.
        num_computations: Number of computations among the works.
        begins: Where each rank's ops begin among all, and at last where they end.
        kinds: Kind of each op.
        channels: Channel of each Send and Recv.
        seconds: Seconds of each work, with what handing over takes of its rank; posts that take time are works of
            their own.
        wait_channels: What each work waits for: of all that it needs, one message at most travels; -1 for none.
        wait_counts: How many messages of the iteration that channel must have brought.
        numbers: Number of each Send and Recv; those that meet have the same: k for the k-th of the iteration on its
            channel.
        receivers: Rank, for each channel.
        latency_s: Latency of each channel.
        lines: Where each channel's messages begin among all, and at last where they end.
        transfer_s: Seconds that each message occupies its link.
        utilisations: Utilisation of each device and link.
    """

    name: str
    num_computations: int
    begins: list[int]
    kinds: list[int]
    channels: list[int]
    seconds: list[float]
    wait_channels: list[int]
    wait_counts: list[int]
    numbers: list[int]
    receivers: list[int]
    latency_s: list[float]
    lines: list[int]
    transfer_s: list[float]
    utilisations: list[float]

    def add(self, kind: int, channel: int, number: int, seconds: float, awaited: tuple[int, int]) -> None:
        """Add what a rank does next; `awaited` is the message that must be there."""
        self.kinds.append(kind)
        self.channels.append(channel)
        self.numbers.append(number)
        self.seconds.append(seconds)
        self.wait_channels.append(awaited[0])
        self.wait_counts.append(awaited[1])


def arrays_of_lists(schedule: Schedule, costs: StageCosts, cluster: Cluster) -> DriftArrays:
    """Return the channels, and what each rank has to do.

    Args:
        schedule: Schedule of one pipeline, lowered, a device for every rank.
        costs: What each op takes when it is alone on its device.
        cluster: Without shared NICs.

    Raises:
        SimulationError: The lists have a word that AvgPipe's have not, ranks share a device, devices share a NIC, or a
            device has stages of different utilisations.
        ProfileError: The costs do not say the seconds of a phase that the lists have.
    """
    reason = drift_obstacle(Scenario(schedule, costs, cluster))
    if reason is not None:
        raise SimulationError(reason)
    met, devices = _met(schedule, costs, cluster), schedule.rank_to_device
    lists = DriftArrays(
        schedule.name,
        sum(isinstance(op, Compute) for row in schedule.ops for op in row),
        *([], [], [], [], [], [], []),
        receivers=[receiver for _, receiver in met.channels],
        latency_s=[cluster.link(devices[source], devices[target]).latency_s for source, target in met.channels],
        lines=[*accumulate(map(len, met.transfers_s), initial=0)],
        transfer_s=[seconds for line in met.transfers_s for seconds in line],
        utilisations=[next(iter(_utilisations(costs, row)), 1.0) for row in schedule.ops] + [1.0] * len(met.channels),
    )
    add, has_hand_over = lists.add, cluster.has_hand_over
    sources, numbers = [source for source, _ in met.channels], iter(met.numbers)
    for rank, row in enumerate(schedule.ops):
        lists.begins.append(len(lists.kinds))
        stashing = stashing_steps(row)
        for index, op in enumerate(row):
            kind, channel, seconds, awaited = _entry(
                schedule, costs, cluster, met.channels, met.places, rank, op, copies=index in stashing
            )
            if has_hand_over:
                source = sources[awaited[0]] if awaited != _NOTHING else None
                own_s = _own_s(schedule, costs, cluster, rank, op, source)
                if kind == WORK:
                    seconds += own_s
                elif own_s:
                    add(WORK, 0, -1, own_s, _NOTHING)
            add(kind, channel, next(numbers), seconds, awaited)
    lists.begins.append(len(lists.kinds))
    return lists


class _Met(NamedTuple):
    """The meetings in the lists, by number.

    Attributes:
        channels: The number of each.
        places: Place of each message that a rank receives: its channel, and how many that must have brought.
        transfers_s: Seconds that each message of each channel occupies its link.
        numbers: Number, on its channel, of the meeting of each op; -1 for a work.
    """

    channels: dict[Channel, int]
    places: dict[tuple[int, Message], tuple[int, int]]
    transfers_s: list[list[float]]
    numbers: list[int]


def _met(schedule: Schedule, costs: StageCosts, cluster: Cluster) -> _Met:
    met, meetings, devices = _Met({}, {}, [], []), Meetings(), schedule.rank_to_device
    for rank, row in enumerate(schedule.ops):
        for op in row:
            if not isinstance(op, Send | Recv):
                met.numbers.append(-1)
                continue
            ends, number = meetings.send(rank, op.peer) if isinstance(op, Send) else meetings.recv(rank, op.peer)
            met.numbers.append(number)
            if isinstance(op, Recv):
                channel = met.channels.setdefault(ends, len(met.channels))
                if channel == len(met.transfers_s):
                    met.transfers_s.append([])
                link = cluster.link(devices[op.peer], devices[rank])
                met.transfers_s[channel].append(link.occupied_s(costs.message_bytes(op.message)))
                met.places[rank, op.message] = channel, number + 1
    return met


def _own_s(schedule: Schedule, costs: StageCosts, cluster: Cluster, rank: int, op: Op, source: int | None) -> float:
    """Return what handing over takes of a rank at `op`, which waits for a message of `source`, if of any [s]."""
    devices = schedule.rank_to_device
    works = [of_post(rank, op, devices) if isinstance(op, Send | Recv) else after_op(rank, op, devices)]
    if source is not None:
        assert isinstance(op, Compute), "nothing else waits for messages"
        (message,) = needs_from_others(op, schedule.num_stages)
        works.append(of_receipt(rank, source, message, devices))
    seconds = sum(work.piece(costs, cluster).seconds for work in works if work is not None)
    return seconds / cluster.devices[devices[rank]].speed


def drift_obstacle(scenario: Scenario) -> str | None:
    """Return what the event loop of drifting pipelines would have to leave out of a scenario; None if nothing."""
    schedule, network = scenario.schedule, scenario.network
    if scenario.cluster.nics or schedule.num_devices < schedule.num_ranks:
        return (
            f"{schedule.name}: got {schedule.num_ranks} ranks on {schedule.num_devices} devices and "
            f"{len(scenario.cluster.nics)} shared NICs, expected a device for each rank and no such NIC; try simulate"
        )
    if not is_usual(network):
        return f"{schedule.name}: got {network}, expected the usual messages; try simulate"
    for rank, row in enumerate(schedule.ops):
        strange = next((op for op in row if isinstance(op, _StrangeOp)), None)
        if strange is not None:
            return (
                f"{schedule.name}: rank {rank}: got {strange}, expected none in one of several pipelines; try simulate"
            )
        shares = _utilisations(scenario.costs, row)
        if len(shares) > 1:
            return (
                f"{schedule.name}: rank {rank}: got stages of utilisations {', '.join(map(str, shares))}, expected "
                "one, as each op is slowed alike; try simulate"
            )
    return None


def _utilisations(costs: StageCosts, row: Sequence[Op]) -> list[float]:
    """Return the utilisations of the stages that a rank works on, each once."""
    stages = {stage for op in row for stage in stages_of_op(op)}
    return sorted({costs.stages[stage].utilisation for stage in stages})


def _entry(
    schedule: Schedule,
    costs: StageCosts,
    cluster: Cluster,
    channels: Mapping[tuple[int, int], int],
    places: Mapping[tuple[int, Message], tuple[int, int]],
    rank: int,
    op: Op,
    *,
    copies: bool,
) -> tuple[int, int, float, tuple[int, int]]:
    """Return kind, channel, seconds, and the message that must be there: (channel, how many it must have brought)."""
    assert not isinstance(op, _StrangeOp), "an obstacle, which is looked for before"
    speed = cluster.devices[schedule.rank_to_device[rank]].speed
    match op:
        case Compute():
            needed = ((rank, message) for message in needs(op, schedule.num_stages))
            awaited = next((places[key] for key in needed if key in places), _NOTHING)  # not what is made here
            return WORK, 0, costs.seconds(op) / speed, awaited
        case Send():
            return SEND, channels[rank, op.peer], 0.0, _NOTHING
        case Recv():
            return RECV, channels[op.peer, rank], 0.0, _NOTHING
        case Step() | Average():
            return WORK, 0, costs.seconds(op, copies=copies) / speed, _NOTHING
        case _:
            assert_never(op)
