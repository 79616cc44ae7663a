"""Build the event graph of a schedule: one node per op and per transfer.

    Compute     begins when the op before it is over and its messages are there
    Send, Recv  the k-th of a channel meet; the transfer begins when both are posted and the one before it has left
    Reduce      begins when all replicas have posted it, and what was before it has left the links of the ring
    Step        begins when the op before it and the Reduce of its stage are over

Where handing over takes time, it is a node before a transfer and before and behind an op.
The order in which the ranks are worked through does not matter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import assert_never, final

from pipesched.profiles.clusters import AllReduce
from pipesched.schedules import (
    Average,
    Compute,
    Message,
    NotRunnableError,
    Op,
    Overlap,
    PostOp,
    Recv,
    Reduce,
    Reshard,
    Schedule,
    Send,
    Step,
    Unshard,
    WorkOp,
    computes,
    gives,
    needs,
)
from pipesched.schedules.semantics import MeetingKey, Meetings, channel_of
from pipesched.schedules.weights import looks_ahead, stashing_steps
from pipesched.simulator import HandOverWork, SimulationError, after_op, of_post, of_receipt
from pipesched.simulator.engine import require_matching
from pipesched.simulator.fast.event_graph import (
    BEGINNING,
    DeviceWork,
    Duration,
    EventGraph,
    Flow,
    Latency,
    NumberedSpan,
    StageReduction,
)


@dataclass(slots=True, eq=False)
class _Posted:
    """One side of a transfer or reduction, with the numbers of its times."""

    op: PostOp
    posted: int
    ready: int
    start: int = -1
    arrival: int = -1  # not known yet


@dataclass(slots=True, eq=False)
class _Channel:
    hop: tuple[int, int]  # devices
    left: int = BEGINNING
    """When the last message or reduction has left the link: the number of a time."""


@final
class GraphBuilder:
    """Goes through all lists, each as far as what it waits for is known."""

    def __init__(self, schedule: Schedule, plans: Mapping[int, AllReduce], *, has_hand_over: bool) -> None:
        self._schedule = schedule
        self._has_hand_over = has_hand_over
        self._hand_overs: list[list[tuple[int, Op, int]]] = [[] for _ in schedule.ops]
        self._plans = plans
        self._waits: tuple[list[int], list[int], list[int]] = ([], [], [])
        self._takes: list[int] = []
        self._durations: list[Duration] = [None]
        self._own: dict[Hashable, int | None] = {}  # the number of what each hand-over takes; None: it is none
        self._numbers: dict[Hashable, int] = {None: 0}
        self._now = [BEGINNING] * schedule.num_ranks
        self._at = [0] * schedule.num_ranks
        self._done: list[list[NumberedSpan | _Posted]] = [[] for _ in schedule.ops]
        self._there: list[dict[Message | None, _Posted | None]] = [{} for _ in schedule.ops]  # None: made here
        self._channels: dict[tuple[int, int], _Channel] = {}
        self._members = schedule.reducers
        self._meetings = Meetings()
        self._unmet: dict[MeetingKey, _Posted] = {}  # Sends and Recvs of which only one side has come
        self._reductions: defaultdict[MeetingKey, dict[int, _Posted]] = defaultdict(dict)
        self._devices = schedule.rank_to_device
        self._rank_of = {device: rank for rank, device in enumerate(schedule.rank_to_device)}
        self._last_reduction: list[dict[int, _Posted]] = [{} for _ in schedule.ops]
        self._stashing = [stashing_steps(row) for row in schedule.ops]
        self._awaited: list[_Posted | None] = [None] * schedule.num_ranks
        self._ready = list(range(schedule.num_ranks))

    def build(self) -> EventGraph:
        """Return the graph of all lists; to be called once.

        Raises:
            SimulationError: The lists deadlock, or only one side of a message posts it.
        """
        while self._ready:
            self._advance(self._ready.pop())
        for rank, row in enumerate(self._schedule.ops):
            if self._at[rank] < len(row) or self._awaited[rank] is not None:
                where = row[self._at[rank]] if self._at[rank] < len(row) else "the end of its list"
                raise SimulationError(
                    f"{self._schedule.name}: deadlock: rank {rank} waits at {where}; check the schedule"
                )
        for post in self._unmet.values():
            raise SimulationError(f"{self._schedule.name}: only one side posts {post.op}; check the schedule")
        places = [
            place
            if isinstance(place, NumberedSpan)
            else NumberedSpan(rank, place.op, place.posted, place.start, place.arrival)
            for rank, done in enumerate(self._done)
            for place in done
        ]
        hand_overs = tuple(chain.from_iterable(self._hand_overs))
        return EventGraph(self._schedule, self._waits, self._takes, tuple(self._durations), tuple(places), hand_overs)

    def _advance(self, rank: int) -> None:
        """Work through the list of `rank` until something is not known yet."""
        row, done = self._schedule.ops[rank], self._done[rank]
        self._awaited[rank] = None
        while self._at[rank] < len(row):
            op, posted = row[self._at[rank]], self._now[rank]
            start = posted
            match op:
                case Compute() | Overlap():
                    recvs = self._recvs(rank, op)
                    if recvs is None:
                        return
                    start = self._moment(self._work(rank, op), *self._waits_of(rank, op, recvs))
                    self._there[rank].update((gives(part), None) for part in computes(op))
                case Send() | Recv():
                    done.append(self._post(rank, op))
                    self._at[rank] += 1
                    continue
                case Reduce():
                    self._last_reduction[rank][op.stage] = reduction = self._reduce(rank, op)
                    done.append(reduction)
                    self._at[rank] += 1
                    continue
                case Step():
                    reduced = self._last_reduction[rank].get(op.stage)
                    if reduced is not None and reduced.arrival < 0:
                        self._awaited[rank] = reduced
                        return
                    copies = self._at[rank] in self._stashing[rank]
                    work = self._number((rank, copies, op), DeviceWork(self._device(rank), op, copies))
                    start = self._moment(work, posted, reduced.arrival if reduced else BEGINNING)
                case Average():
                    start = self._moment(self._number((rank, op), DeviceWork(self._device(rank), op)), posted)
                case Unshard() | Reshard():
                    done.append(NumberedSpan(rank, op, posted, posted, posted))
                    self._at[rank] += 1
                    continue
                case _:
                    assert_never(op)
            self._now[rank] = self._next(rank, op, start + 1) if self._has_hand_over else start + 1
            done.append(NumberedSpan(rank, op, posted, start, start + 1))
            self._at[rank] += 1
        self._awaited[rank] = next(
            (reduction for reduction in self._last_reduction[rank].values() if reduction.arrival < 0), None
        )

    def _recvs(self, rank: int, op: Compute | Overlap) -> list[_Posted] | None:
        """Return the Recvs of the messages that `op` needs; None if it is not known yet when one is there."""
        recvs = []
        for part in computes(op):
            for message in needs(part, self._schedule.num_stages):
                if message not in self._there[rank]:
                    raise NotRunnableError(
                        f"{self._schedule.name}: rank {rank}: {op} waits forever for {message.payload.name.lower()} "
                        f"{message.microbatch} of stage {message.stage}; check the schedule"
                    )
                transfer = self._there[rank][message]
                if transfer is None:
                    continue
                if transfer.arrival < 0:
                    self._awaited[rank] = transfer
                    return None
                recvs.append(transfer)
        return recvs

    def _waits_of(self, rank: int, op: Compute | Overlap, recvs: Sequence[_Posted]) -> list[int]:
        """Return what the work of `op` waits for: its messages are there, and taken one after the other."""
        if not self._has_hand_over:
            return [self._now[rank], *(recv.arrival for recv in recvs)]
        now = self._now[rank]
        for recv in recvs:
            assert isinstance(recv.op, Recv)
            peer, message = recv.op.peer, recv.op.message
            alike = rank, peer, message.payload, message.stage
            make = partial(of_receipt, rank, peer, message, self._devices)
            now = self._hand_over(rank, op, alike, make, now, recv.arrival)
        return [now]

    def _next(self, rank: int, op: WorkOp, end: int) -> int:
        """Return when the rank comes to what stands behind `op` in its list."""
        return self._hand_over(rank, op, self._takes[-1], partial(after_op, rank, op, self._devices), end)

    def _post(self, rank: int, op: Send | Recv) -> _Posted:
        """Post one side of a transfer; with the second side its events are known."""
        posted = self._now[rank]
        if self._has_hand_over:
            alike = rank, type(op), op.peer, op.message.payload, op.message.stage
            self._now[rank] = self._hand_over(rank, op, alike, partial(of_post, rank, op, self._devices), posted)
        side = _Posted(op, posted, self._now[rank])
        if isinstance(op, Recv):
            self._there[rank][op.message] = side
        key = self._meetings.come(rank, op)
        other = self._unmet.pop(key, None)
        if other is None:
            self._unmet[key] = side
            return side
        source, target = channel_of(rank, op)
        send, recv = (side, other) if isinstance(op, Send) else (other, side)
        self._start(self._channel(source, target), send, recv)
        self._wake(target, recv)
        return side

    def _wake(self, rank: int, known: _Posted) -> None:
        if self._awaited[rank] is known:
            self._ready.append(rank)

    def _start(self, channel: _Channel, send: _Posted, recv: _Posted) -> None:
        assert isinstance(send.op, Send)
        assert isinstance(recv.op, Recv)
        require_matching(recv.op.peer, send.op.peer, sent=send.op.message, received=recv.op.message)
        message = send.op.message
        flow = self._number((channel.hop, message.origin), Flow(channel.hop, message))
        send.start = recv.start = self._moment(flow, send.ready, recv.ready, channel.left)
        channel.left = send.start + 1
        latency = self._number(channel.hop, Latency(channel.hop))
        send.arrival = recv.arrival = self._moment(latency, channel.left) + 1

    def _reduce(self, rank: int, op: Reduce) -> _Posted:
        """Post one replica's side of a reduction; with the last one its events are known."""
        members, key = self._members[op.stage], self._meetings.come(rank, op)
        posts = self._reductions[key]
        side = posts[rank] = _Posted(op, self._now[rank], self._now[rank])
        if len(posts) == len(members):
            start, arrival = self._reduction(op.stage, [post.posted for post in posts.values()])
            for member, post in posts.items():
                post.start, post.arrival = start, arrival
                self._wake(member, post)
            del self._reductions[key]
        return side

    def _reduction(self, stage: int, posted: Iterable[int]) -> tuple[int, int]:
        """Return when a reduction starts, and when it is there."""
        plan, start = self._plans[stage], BEGINNING
        whole = StageReduction(stage, tuple(self._device(rank) for rank in self._members[stage]), plan.way)
        channels = [(self._channel(self._rank_of[a], self._rank_of[b]), (a, b)) for a, b in plan.hops]
        for wait in (*posted, *(channel.left for channel, _ in channels)):
            start = self._moment(0, start, wait) + 1
        for channel, hop in channels:
            kept = whole._replace(hop=hop)
            left = self._moment(self._number(kept, kept), start) + 1
            channel.left = self._moment(0, channel.left, left) + 1
        return start, self._moment(self._number(whole, whole), start) + 1

    def _hand_over(
        self, rank: int, op: Op, alike: Hashable, make: Callable[[], HandOverWork | None], since: int, *waits: int
    ) -> int:
        """Add what handing over takes of a rank; return the number of the time when that is over.

        Args:
            alike: The same for all that take the same.
            make: Says what it is, if it is anything.
            since: Number of the time when the rank comes to it.
            waits: What it waits for besides.
        """
        if alike not in self._own:
            work = make()
            self._own[alike] = None if work is None else self._number((None, alike), work)
        takes = self._own[alike]
        if takes is None:
            return since
        start = self._moment(takes, since, *waits)
        self._hand_overs[rank].append((rank, op, start // 2))
        return start + 1

    def _moment(self, takes: int, first: int, second: int = BEGINNING, third: int = BEGINNING) -> int:
        """Add one; return the number of the time when it has what it waits for: that of its own is the next."""
        firsts, seconds, thirds = self._waits
        firsts.append(first)
        seconds.append(second)
        thirds.append(third)
        self._takes.append(takes)
        return 2 * len(self._takes)

    def _work(self, rank: int, op: Compute | Overlap) -> int:
        """Return the number of what `op` takes; other micro-batches take the same."""
        alike = tuple((part.phase, part.stage, looks_ahead(part)) for part in computes(op))
        return self._number((rank, alike), DeviceWork(self._device(rank), op))

    def _number(self, alike: Hashable, duration: Duration) -> int:
        """Return the number of a duration, the same for all that are `alike`."""
        number = self._numbers.setdefault(alike, len(self._durations))
        if number == len(self._durations):
            self._durations.append(duration)
        return number

    def _channel(self, source: int, target: int) -> _Channel:
        channel = self._channels.get((source, target))
        if channel is None:
            channel = self._channels[source, target] = _Channel((self._device(source), self._device(target)))
        return channel

    def _device(self, rank: int) -> int:
        return self._schedule.rank_to_device[rank]
