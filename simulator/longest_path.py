"""The Timeline of `simulate` without SimPy, where nothing is shared: a longest path over the same lists.

With a device for every rank and no shared NIC, nothing slows an op that runs, and each channel has its link for itself.
Then all times follow from the lists, one sum and one maximum per op, in whatever order the ranks are worked through:

    Compute     starts when the op before it is over and its messages are there
    Send, Recv  the k-th of a channel meet; the transfer starts when both are posted and the one before it has left
    Reduce      starts when all replicas have posted it, and the one before it has left the links of the ring
    Step        starts when the op before it and the Reduce of its stage are over

The tuner asks for thousands of settings, so this must be quick; `simulate` is what it has to equal.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from typing import assert_never, final

from profiles.all_reduce import AllReduce, all_reduce
from profiles.cluster import Cluster, Link, flat
from profiles.stage_costs import StageCosts
from schedules.lower import lower
from schedules.op import (
    Average,
    Compute,
    Message,
    Overlap,
    Phase,
    Recv,
    Reduce,
    Reshard,
    Send,
    Step,
    Unshard,
    computes,
    gives,
    needs,
)
from schedules.schedule import Schedule, ScheduleError
from schedules.timeline import Span, Timeline
from schedules.versions import looks_ahead, stashing_steps
from simulator.collectives import reducers
from simulator.errors import SimulationError
from simulator.network import require_same
from simulator.possible import require_possible
from simulator.traffic_rules import TrafficRules
from simulator.unshared import is_unshared as is_unshared


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
    require_possible(schedule, costs, cluster, TrafficRules(), 0.0)
    if not is_unshared(schedule, cluster):
        raise SimulationError(
            f"{schedule.name}: got {schedule.num_ranks} ranks on {schedule.num_devices} devices and "
            f"{len(cluster.nics)} shared NICs, expected a device for each rank, no such NIC, and links for the "
            "reductions alone; try simulate"
        )
    return _Path(lower(schedule), costs, cluster).timeline()


@dataclass(slots=True, eq=False)
class _Posted:
    op: Send | Recv | Reduce
    posted_s: float
    start_s: float = -1.0
    arrival_s: float = -1.0  # not known yet


@dataclass(slots=True, eq=False)
class _Channel:
    link: Link
    sends: deque[_Posted] = field(default_factory=deque)  # not met by a Recv yet
    recvs: deque[_Posted] = field(default_factory=deque)
    free_s: float = 0.0


@final
class _Path:
    def __init__(self, schedule: Schedule, costs: StageCosts, cluster: Cluster) -> None:
        self._schedule = schedule
        self._costs = costs
        self._cluster = cluster
        self._now = [0.0] * schedule.num_ranks
        self._at = [0] * schedule.num_ranks
        self._done: list[list[Span | _Posted]] = [[] for _ in schedule.ops]
        self._there: list[dict[Message | None, _Posted | None]] = [{} for _ in schedule.ops]  # None: made here
        self._channels: dict[tuple[int, int], _Channel] = {}
        self._members = reducers(schedule)
        self._num_reduced: Counter[tuple[int, int]] = Counter()
        self._sums: defaultdict[tuple[int, int], dict[int, _Posted]] = defaultdict(dict)
        self._plans: dict[int, AllReduce] = {}
        self._rank_of = {device: rank for rank, device in enumerate(schedule.rank_to_device)}
        self._last_sum: list[dict[int, _Posted]] = [{} for _ in schedule.ops]
        self._seconds: dict[tuple[int, Phase, int, bool], float] = {}
        self._stashing = [stashing_steps(row) for row in schedule.ops]
        self._waits: list[_Posted | None] = [None] * schedule.num_ranks
        self._ready = list(range(schedule.num_ranks))

    def timeline(self) -> Timeline:
        while self._ready:
            self._advance(self._ready.pop())
        for rank, row in enumerate(self._schedule.ops):
            if self._at[rank] < len(row) or self._waits[rank] is not None:
                where = row[self._at[rank]] if self._at[rank] < len(row) else "the end of its list"
                raise SimulationError(
                    f"{self._schedule.name}: deadlock: rank {rank} waits at {where}; check the schedule"
                )
        unmet = [each.op for channel in self._channels.values() for each in (*channel.sends, *channel.recvs)]
        if unmet:
            raise SimulationError(f"{self._schedule.name}: only one side posts {unmet[0]}; check the schedule")
        spans = [
            entry if isinstance(entry, Span) else Span(rank, entry.op, entry.posted_s, entry.start_s, entry.arrival_s)
            for rank, done in enumerate(self._done)
            for entry in done
        ]
        return Timeline(self._schedule.name, "predicted", tuple(spans), self._schedule.rank_to_device)

    def _advance(self, rank: int) -> None:
        """Work through the list of `rank` until something is not known yet."""
        row, done = self._schedule.ops[rank], self._done[rank]
        self._waits[rank] = None
        while self._at[rank] < len(row):
            op, posted_s = row[self._at[rank]], self._now[rank]
            start_s = posted_s
            match op:
                case Compute() | Overlap():
                    arrived_s = self._arrived_s(rank, op)
                    if arrived_s is None:
                        return
                    start_s = max(posted_s, arrived_s)
                    self._now[rank] = start_s + self._seconds_of(rank, op)
                    self._there[rank].update((gives(part), None) for part in computes(op))
                case Send() | Recv():
                    done.append(self._post(rank, op))
                    self._at[rank] += 1
                    continue
                case Reduce():
                    self._last_sum[rank][op.stage] = mine = self._reduce(rank, op)
                    done.append(mine)
                    self._at[rank] += 1
                    continue
                case Step():
                    reduced = self._last_sum[rank].get(op.stage)
                    if reduced is not None and reduced.arrival_s < 0:
                        self._waits[rank] = reduced
                        return
                    start_s = self._now[rank] = max(posted_s, reduced.arrival_s if reduced else 0.0)
                    cost = self._costs.stages[op.stage]
                    copy_s = cost.copy_s if self._at[rank] in self._stashing[rank] else 0.0
                    self._now[rank] += (cost.step_s + copy_s) / self._speed(rank)
                case Average():
                    self._now[rank] += self._costs.stages[op.stage].average_s / self._speed(rank)
                case Unshard() | Reshard():
                    pass
                case _:
                    assert_never(op)
            done.append(Span(rank, op, posted_s, start_s, self._now[rank]))
            self._at[rank] += 1
        self._waits[rank] = next((mine for mine in self._last_sum[rank].values() if mine.arrival_s < 0), None)

    def _arrived_s(self, rank: int, op: Compute | Overlap) -> float | None:
        """Return when the last message that `op` needs is there; None if that is not known yet."""
        last_s = 0.0
        for part in computes(op):
            for message in needs(part, self._schedule.num_stages):
                if message not in self._there[rank]:
                    raise ScheduleError(
                        f"{self._schedule.name}: rank {rank}: {op} waits forever for {message.payload.name.lower()} "
                        f"{message.microbatch} of stage {message.stage}; check the schedule"
                    )
                transfer = self._there[rank][message]
                if transfer is None:
                    continue
                if transfer.arrival_s < 0:
                    self._waits[rank] = transfer
                    return None
                last_s = max(last_s, transfer.arrival_s)
        return last_s

    def _post(self, rank: int, op: Send | Recv) -> _Posted:
        """Post one side of a transfer; with the second side its times are known."""
        mine = _Posted(op, self._now[rank])
        if isinstance(op, Send):
            channel = self._channel(rank, op.peer)
            channel.sends.append(mine)
        else:
            channel = self._channel(op.peer, rank)
            channel.recvs.append(mine)
            self._there[rank][op.message] = mine
        if channel.sends and channel.recvs:
            send, recv = channel.sends.popleft(), channel.recvs.popleft()
            self._start(channel, send, recv)
            receiver = rank if mine is recv else op.peer
            self._wake(receiver, recv)
        return mine

    def _wake(self, rank: int, known: _Posted) -> None:
        if self._waits[rank] is known:
            self._ready.append(rank)

    def _start(self, channel: _Channel, send: _Posted, recv: _Posted) -> None:
        assert isinstance(send.op, Send)
        assert isinstance(recv.op, Recv)
        require_same(recv.op.peer, send.op.peer, sent=send.op.message, received=recv.op.message)
        start_s = max(send.posted_s, recv.posted_s, channel.free_s)
        channel.free_s = start_s + channel.link.occupied_s(self._costs.message_bytes(send.op.message))
        send.start_s = recv.start_s = start_s
        send.arrival_s = recv.arrival_s = channel.free_s + channel.link.latency_s

    def _reduce(self, rank: int, op: Reduce) -> _Posted:
        """Post one replica's side of a reduction; with the last one its times are known."""
        members, key = self._members[op.stage], (op.stage, self._num_reduced[rank, op.stage])
        self._num_reduced[rank, op.stage] += 1
        posts = self._sums[key]
        mine = posts[rank] = _Posted(op, self._now[rank])
        if len(posts) == len(members):
            plan = self._plan(op.stage)
            channels = [
                (self._channel(self._rank_of[a], self._rank_of[b]), until) for (a, b), until in plan.until_s().items()
            ]
            start_s = max(each.posted_s for each in posts.values())
            start_s = max([start_s, *(channel.free_s for channel, _ in channels)])
            for channel, until in channels:
                channel.free_s = max(channel.free_s, start_s + until)
            for member, post in posts.items():
                post.start_s = start_s
                post.arrival_s = start_s + plan.seconds
                self._wake(member, post)
            del self._sums[key]
        return mine

    def _plan(self, stage: int) -> AllReduce:
        if stage not in self._plans:
            devices = [self._schedule.rank_to_device[rank] for rank in self._members[stage]]
            self._plans[stage] = all_reduce(self._costs.stages[stage].weight_bytes, devices, self._cluster)
        return self._plans[stage]

    def _seconds_of(self, rank: int, op: Compute | Overlap) -> float:
        if isinstance(op, Overlap):
            first_s, second_s = self._seconds_of(rank, op.first), self._seconds_of(rank, op.second)
            return first_s + second_s - self._costs.overlap * min(first_s, second_s)
        key = (rank, op.phase, op.stage, looks_ahead(op))
        if key not in self._seconds:
            self._seconds[key] = self._costs.seconds(op) / self._speed(rank)
        return self._seconds[key]

    def _speed(self, rank: int) -> float:
        return self._cluster.devices[self._schedule.rank_to_device[rank]].speed

    def _channel(self, source: int, target: int) -> _Channel:
        channel = self._channels.get((source, target))
        if channel is None:
            channel = self._channels[source, target] = _Channel(self._link_of(source, target))
        return channel

    def _link_of(self, source: int, target: int) -> Link:
        devices = self._schedule.rank_to_device
        return self._cluster.link(devices[source], devices[target])
