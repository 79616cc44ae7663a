"""Equal pipelines that share devices, iteration after iteration, each at its own pace.

Nobody waits at the end of an iteration for the other pipelines. So they do not stay in step: whichever is ahead finds
the device free for a moment, runs at full speed and gets further ahead, until one computes where another waits for a
message. Two pipelines, a and b, of two stages and one micro-batch; device 0 in step, and at best:

    in step     Fa+Fb Fa+Fb ..    ..    Ba+Bb Ba+Bb      each half as fast while both compute
    drifted     Fa    Bb    Bb    Fb    Ba    Ba         one's bubble is the other's time

`simulate` has the same devices, links and meetings for one iteration that all begin together, and `side_by_side` equals
it there; but over many iterations of many settings SimPy would take minutes. So this is an event loop of its own, for
the words that AvgPipe's lists have.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import TypeAlias, assert_never, final

from profiles.cluster import Cluster
from profiles.stage_costs import StageCosts
from schedules.op import Average, Compute, Message, Op, Overlap, Recv, Reduce, Reshard, Send, Step, Unshard, needs
from schedules.schedule import Schedule
from simulator.errors import SimulationError

_JITTER = 0.05
"""Sigma of the factor on an op's seconds: without it nothing would tell equal pipelines apart."""
_COMPUTATIONS = 3000
_LEAST, _MOST = 4, 24
"""Iterations: of short lists as many as make up so many computations, for each drives pipelines a bit further apart."""


def steady_s(schedule: Schedule, costs: StageCosts, cluster: Cluster, num_pipelines: int) -> float:
    """Return the seconds of an iteration in the long run, in which every pipeline does a batch.

    They begin together; the first half of the iterations, in which they drift apart, does not count.

    Args:
        schedule: Of one pipeline, lowered, a device for every rank.
        costs: As they are for one op alone.
        cluster: Without shared NICs.
        num_pipelines: At least 1.

    Raises:
        As `side_by_side` does.
    """
    computations = num_pipelines * sum(isinstance(op, Compute) for row in schedule.ops for op in row)
    iterations = min(_MOST, max(_LEAST, round(_COMPUTATIONS / max(1, computations))))
    ends_s = side_by_side(schedule, costs, cluster, [0.0] * num_pipelines, iterations, _JITTER)
    until_s = min(ends[-1] for ends in ends_s)  # after that the others have the devices for themselves
    counted = [[end_s for end_s in ends if end_s <= until_s][iterations // 2 :] for ends in ends_s]
    return sum(ends[-1] - ends[0] for ends in counted) / sum(len(ends) - 1 for ends in counted)


def side_by_side(
    schedule: Schedule,
    costs: StageCosts,
    cluster: Cluster,
    starts_s: Sequence[float],
    iterations: int = 1,
    jitter: float = 0.0,
    seed: int = 0,
) -> list[list[float]]:
    """Run equal pipelines on the same devices, `iterations` times each.

    Args:
        schedule: Of one pipeline, lowered, a device for every rank.
        costs: As they are for one op alone.
        cluster: Without shared NICs.
        starts_s: Of each pipeline.
        iterations: At least 1.
        jitter: Sigma of a log-normal factor on the seconds of each op; 0 for none.
        seed: Of the factors.

    Returns:
        For each pipeline, when each iteration was over on all its devices [s].

    Raises:
        SimulationError: The lists have another word, or deadlock.
        ProfileError: The costs do not say the seconds of a phase that the lists have.
    """
    race = _Race(schedule, costs, cluster, len(starts_s), iterations, jitter, seed)
    return race.run(starts_s)


@dataclass(frozen=True, slots=True)
class _Work:
    """Compute, Step or Average: seconds on the device, after messages: (channel, how many it must have brought)."""

    seconds: float
    waits: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class _Post:
    """A Send (side 0) or Recv (side 1)."""

    channel: int
    side: int


@dataclass(frozen=True, slots=True)
class _Line:
    """A channel: the messages of an iteration, in order, and where they go."""

    receiver: int
    latency_s: float
    transfer_s: tuple[float, ...]


@dataclass(slots=True, eq=False)
class _Shared:
    """A device or a link: exact processor sharing, as in `simulator.device`, of equal utilisations."""

    utilisation: float
    virtual_s: float = 0.0
    read_s: float = 0.0
    rate: float = 1.0
    running: list[tuple[float, int, _Lane, int]] = field(default_factory=list)
    alarm: int = 0


@dataclass(slots=True, eq=False)
class _Lane:
    """One pipeline: where its ranks are, and what its channels have brought."""

    at: list[int]
    iteration: list[int]
    waits: list[bool]
    posted: list[list[int]]
    started: list[int]
    arrived: list[int]
    is_sending: list[bool]
    ends_s: list[float]


_Event: TypeAlias = "tuple[float, int, _Shared | _Lane, int]"
"""When, a number that breaks ties, and: the alarm of a device or link; or a lane with a rank to start, or (below 0) a
channel whose message is there."""


@final
class _Race:
    def __init__(
        self,
        schedule: Schedule,
        costs: StageCosts,
        cluster: Cluster,
        num_lanes: int,
        iterations: int,
        jitter: float,
        seed: int,
    ) -> None:
        self._name = schedule.name
        self._lines, self._programs = _compiled(schedule, costs, cluster)
        self._devices = [_Shared(costs.stages[stage].utilisation) for stage in range(schedule.num_ranks)]
        self._links = [_Shared(1.0) for _ in self._lines]
        self._iterations = iterations
        self._jitter, self._draw = jitter, random.Random(seed).lognormvariate
        self._numbers = count(1)
        self._events: list[_Event] = []
        self._now = 0.0
        ranks, channels = range(schedule.num_ranks), range(len(self._lines))
        self._lanes = [
            _Lane(
                at=[0 for _ in ranks],
                iteration=[0 for _ in ranks],
                waits=[False for _ in ranks],
                posted=[[0, 0] for _ in channels],
                started=[0 for _ in channels],
                arrived=[0 for _ in channels],
                is_sending=[False for _ in channels],
                ends_s=[0.0] * iterations,
            )
            for _ in range(num_lanes)
        ]

    def run(self, starts_s: Sequence[float]) -> list[list[float]]:
        events = self._events
        for lane, start_s in zip(self._lanes, starts_s, strict=True):
            for rank in range(len(self._programs)):
                heappush(events, (start_s, next(self._numbers), lane, rank))
        while events:
            self._now, number, what, index = heappop(events)
            if isinstance(what, _Shared):
                if number == what.alarm:
                    self._end_first(what)
            elif index >= 0:
                self._advance(what, index)
            else:
                self._arrive(what, -1 - index)
        if any(iteration < self._iterations for lane in self._lanes for iteration in lane.iteration):
            raise SimulationError(f"{self._name}: deadlock: some rank waits forever; check the schedule")
        return [lane.ends_s for lane in self._lanes]

    def _advance(self, lane: _Lane, rank: int) -> None:
        """Go on with the list of `rank` until something takes time, or is not there."""
        program = self._programs[rank]
        while True:
            if lane.at[rank] == len(program):
                iteration = lane.iteration[rank]
                lane.ends_s[iteration] = max(lane.ends_s[iteration], self._now)
                lane.iteration[rank], lane.at[rank] = iteration + 1, 0
                if iteration + 1 == self._iterations:
                    return
            op = program[lane.at[rank]]
            if isinstance(op, _Post):
                lane.posted[op.channel][op.side] += 1
                lane.at[rank] += 1
                self._send_next(lane, op.channel)
                continue
            for channel, brought in op.waits:
                if lane.arrived[channel] < lane.iteration[rank] * len(self._lines[channel].transfer_s) + brought:
                    lane.waits[rank] = True
                    return
            factor = self._draw(0.0, self._jitter) if self._jitter else 1.0
            self._use(self._devices[rank], op.seconds * factor, lane, rank)
            return

    def _send_next(self, lane: _Lane, channel: int) -> None:
        transfer_s = self._lines[channel].transfer_s
        while not lane.is_sending[channel] and lane.started[channel] < min(lane.posted[channel]):
            seconds = transfer_s[lane.started[channel] % len(transfer_s)]
            lane.started[channel] += 1
            if seconds:
                lane.is_sending[channel] = True
                self._use(self._links[channel], seconds, lane, -1 - channel)
            else:
                self._send_off(lane, channel)

    def _send_off(self, lane: _Lane, channel: int) -> None:
        """The link is free for the next message; this one arrives the latency later."""
        if latency_s := self._lines[channel].latency_s:
            heappush(self._events, (self._now + latency_s, next(self._numbers), lane, -1 - channel))
        else:
            self._arrive(lane, channel)

    def _arrive(self, lane: _Lane, channel: int) -> None:
        lane.arrived[channel] += 1
        receiver = self._lines[channel].receiver
        if lane.waits[receiver]:
            lane.waits[receiver] = False
            heappush(self._events, (self._now, next(self._numbers), lane, receiver))

    def _use(self, shared: _Shared, seconds: float, lane: _Lane, index: int) -> None:
        shared.virtual_s += (self._now - shared.read_s) * shared.rate
        heappush(shared.running, (shared.virtual_s + seconds, next(self._numbers), lane, index))
        self._set_alarm(shared)

    def _set_alarm(self, shared: _Shared) -> None:
        shared.read_s = self._now
        shared.rate = 1.0 / max(1.0, len(shared.running) * shared.utilisation)
        shared.alarm = next(self._numbers)
        left_s = max(0.0, shared.running[0][0] - shared.virtual_s)
        heappush(self._events, (self._now + left_s / shared.rate, shared.alarm, shared, 0))

    def _end_first(self, shared: _Shared) -> None:
        shared.virtual_s, _, lane, index = heappop(shared.running)
        if shared.running:
            self._set_alarm(shared)
        else:
            shared.virtual_s, shared.read_s, shared.alarm = 0.0, self._now, 0
        if index >= 0:
            lane.at[index] += 1
            self._advance(lane, index)
        else:
            channel = -1 - index
            lane.is_sending[channel] = False
            self._send_off(lane, channel)
            self._send_next(lane, channel)


def _compiled(schedule: Schedule, costs: StageCosts, cluster: Cluster) -> tuple[list[_Line], list[list[_Work | _Post]]]:
    """Return the channels, and what each rank has to do."""
    channels: dict[tuple[int, int], int] = {}
    places: dict[tuple[int, Message], tuple[int, int]] = {}
    transfers: list[list[float]] = []
    for rank, row in enumerate(schedule.ops):
        for op in row:
            if isinstance(op, Recv):
                channel = channels.setdefault((op.peer, rank), len(channels))
                if channel == len(transfers):
                    transfers.append([])
                link = cluster.link(op.peer, rank)
                transfers[channel].append(costs.message_bytes(op.message) / link.bandwidth_bytes_per_s)
                places[rank, op.message] = channel, len(transfers[channel])
    lines = [
        _Line(receiver, cluster.link(sender, receiver).latency_s, tuple(transfers[channel]))
        for (sender, receiver), channel in channels.items()
    ]
    entry = partial(_entry, schedule, costs, cluster, channels, places)
    return lines, [[entry(rank, op) for op in row] for rank, row in enumerate(schedule.ops)]


def _entry(
    schedule: Schedule,
    costs: StageCosts,
    cluster: Cluster,
    channels: Mapping[tuple[int, int], int],
    places: Mapping[tuple[int, Message], tuple[int, int]],
    rank: int,
    op: Op,
) -> _Work | _Post:
    speed = cluster.devices[rank].speed
    match op:
        case Compute():
            needed = ((rank, message) for message in needs(op, schedule.num_stages))
            waits = tuple(places[message] for message in needed if message in places)  # not what is made here
            return _Work(costs.seconds(op) / speed, waits)
        case Send():
            return _Post(channels[rank, op.peer], 0)
        case Recv():
            return _Post(channels[op.peer, rank], 1)
        case Step():
            return _Work(costs.stages[op.stage].step_s / speed)
        case Average():
            return _Work(costs.stages[op.stage].average_s / speed)
        case Reduce() | Overlap() | Unshard() | Reshard():
            raise SimulationError(
                f"{schedule.name}: rank {rank}: got {op}, expected none in one of several pipelines; try simulate"
            )
        case _:
            assert_never(op)
