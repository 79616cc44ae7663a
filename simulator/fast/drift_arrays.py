"""The lists of one pipeline as arrays of numbers, for `fast.drift_loop`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import assert_never

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
)
from pipesched.schedules.weights import stashing_steps
from pipesched.simulator import Scenario, SimulationError, is_usual

WORK, SEND, RECV = 0, 1, 2
_NOTHING = (-1, 0)


@dataclass(frozen=True, slots=True, eq=False)
class DriftArrays:
    """What an iteration is, for every lane, in numbers.

    Attributes:
        name: Of the schedule.
        num_computations: Among the works.
        begins: Where each rank's ops begin among all, and at last where they end.
        kinds: Of each op.
        channels: Of each Send and Recv.
        seconds: Of each work.
        wait_channels: What each work waits for: of all that it needs, one message at most travels; -1 for none.
        wait_counts: How many messages of the iteration that channel must have brought.
        receivers: Rank, for each channel.
        latency_s: Of each channel.
        lines: Where each channel's messages begin among all, and at last where they end.
        transfer_s: Of each message.
        utilisations: Of each device and link.
    """

    name: str
    num_computations: int
    begins: list[int]
    kinds: list[int]
    channels: list[int]
    seconds: list[float]
    wait_channels: list[int]
    wait_counts: list[int]
    receivers: list[int]
    latency_s: list[float]
    lines: list[int]
    transfer_s: list[float]
    utilisations: list[float]


def arrays_of_lists(schedule: Schedule, costs: StageCosts, cluster: Cluster) -> DriftArrays:
    """Return the channels, and what each rank has to do.

    Args:
        schedule: Of one pipeline, lowered, a device for every rank.
        costs: As they are for one op alone.
        cluster: Without shared NICs.

    Raises:
        SimulationError: The lists have a word that AvgPipe's have not, ranks share a device, devices share a NIC, or a
            device has stages of different utilisations.
        ProfileError: The costs do not say the seconds of a phase that the lists have.
    """
    reason = drift_obstacle(Scenario(schedule, costs, cluster))
    if reason is not None:
        raise SimulationError(reason)
    devices = schedule.rank_to_device
    channels: dict[tuple[int, int], int] = {}
    places: dict[tuple[int, Message], tuple[int, int]] = {}
    transfers: list[list[float]] = []
    for rank, row in enumerate(schedule.ops):
        for op in row:
            if isinstance(op, Recv):
                channel = channels.setdefault((op.peer, rank), len(channels))
                if channel == len(transfers):
                    transfers.append([])
                link = cluster.link(devices[op.peer], devices[rank])
                transfers[channel].append(link.occupied_s(costs.message_bytes(op.message)))
                places[rank, op.message] = channel, len(transfers[channel])
    lists = DriftArrays(
        schedule.name,
        sum(isinstance(op, Compute) for row in schedule.ops for op in row),
        *([], [], [], [], [], []),
        receivers=[receiver for _, receiver in channels],
        latency_s=[cluster.link(devices[source], devices[target]).latency_s for source, target in channels],
        lines=[*accumulate(map(len, transfers), initial=0)],
        transfer_s=[seconds for line in transfers for seconds in line],
        utilisations=[next(iter(_utilisations(costs, row)), 1.0) for row in schedule.ops] + [1.0] * len(channels),
    )
    for rank, row in enumerate(schedule.ops):
        lists.begins.append(len(lists.kinds))
        stashing = stashing_steps(row)
        for index, op in enumerate(row):
            kind, channel, seconds, (wait_channel, wait_count) = _entry(
                schedule, costs, cluster, channels, places, rank, op, copies=index in stashing
            )
            lists.kinds.append(kind)
            lists.channels.append(channel)
            lists.seconds.append(seconds)
            lists.wait_channels.append(wait_channel)
            lists.wait_counts.append(wait_count)
    lists.begins.append(len(lists.kinds))
    return lists


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
        strange = next((op for op in row if isinstance(op, Reduce | Overlap | Unshard | Reshard)), None)
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
    stages = {op.stage for op in row if isinstance(op, Compute | Step | Average)}
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
        case Reduce() | Overlap() | Unshard() | Reshard():
            raise AssertionError("an obstacle, which is looked for before")
        case _:
            assert_never(op)
