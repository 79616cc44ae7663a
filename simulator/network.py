"""Messages between ranks: order, rendezvous, bandwidth, latency; and the collectives of a stage's replicas.

Each directed pair of ranks is one channel that keeps its order: its k-th Send meets its k-th Recv.

    Send posted ──┐
    Recv posted ──┴─ busy link ─┬─ bytes / bandwidth ─┬─ latency ─┐
                              start               next one      arrival
                                                may start

Under ``rendezvous`` a transfer may start when both sides have posted, under ``eager`` when the sender has. Both are
known at the moment of the later post, and with them start and arrival: no event is spent on a message that nobody
waits for. Channels from ranks of one device to ranks of another
share the link: their messages divide its bandwidth evenly while they last, and only their ends say when.

A network interface that devices of a node share is one more link in the way, each of its directions: messages pass it
one after the other, in the order in which they could start. A message starts when its link, its sender's outgoing and
its receiver's incoming side are all free, and then has the whole of them, also of a link that ranks share.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar, final

from simpy import Environment, Event

from profiles.cluster import Link
from profiles.stage_costs import StageCosts
from schedules.op import Message, Payload, Recv, Send
from schedules.schedule import ScheduleError
from simulator.device import SharedDevice

Posted = TypeVar("Posted")
Protocol: TypeAlias = Literal["rendezvous", "eager"]
LinkOf: TypeAlias = Callable[[int, int], Link]
"""The link from one rank to another."""
NicsOf: TypeAlias = Callable[[int, int], tuple[int | None, int | None]]
"""The shared NICs that a message from one rank to another leaves by and comes in by; None: not shared."""


def no_nics(source: int, target: int) -> tuple[None, None]:  # noqa: ARG001 -- a NicsOf
    """Share nothing."""
    return None, None


def message_bytes(costs: StageCosts, message: Message) -> int:
    """Return the size of a message: a gradient has the size of the activation that it is the gradient of."""
    owner = message.stage if message.payload is Payload.ACTIVATION else message.stage - 1
    return costs.stages[owner].output_bytes


@dataclass(slots=True, eq=False)
class Transfer:
    """One message on its way; the times are None until they are known."""

    source: int
    target: int
    message: Message
    start_s: float | None = None
    arrival_s: float | None = None
    known: Event | None = None  # only when a rank waits before the arrival is known


@dataclass(slots=True, eq=False)
class _Side:
    """One direction of a shared NIC, and when the last message through it has made room [s]."""

    free_s: float = 0.0


@dataclass(slots=True, eq=False)
class _Wire:
    """A link, when the last message on it has made room [s], and the shared NICs at its ends.

    Attributes:
        shared: Divides the bandwidth of a link that several ranks use at once; None: one message after the other.
    """

    link: Link
    sides: tuple[_Side, ...] = ()
    free_s: float = 0.0
    shared: SharedDevice | None = None


@dataclass(slots=True, eq=False)
class _Channel:
    wire: _Wire
    sends: deque[Transfer] = field(default_factory=deque)  # posted, and not met by a Recv yet
    recvs: deque[Transfer] = field(default_factory=deque)  # the other way round; one of the two is empty
    due: deque[Transfer] = field(default_factory=deque)  # of a shared link: the one on its way, and those behind it


@final
class Network:
    """All channels of a run."""

    def __init__(
        self,
        env: Environment,
        costs: StageCosts,
        link_of: LinkOf,
        protocol: Protocol,
        rank_to_device: Sequence[int] | None = None,
        nics_of: NicsOf = no_nics,
    ) -> None:
        self._env = env
        self._rank_to_device = rank_to_device
        self._costs = costs
        self._link_of = link_of
        self._eager = protocol == "eager"
        self._channels: dict[tuple[int, int], _Channel] = {}
        self._wires: dict[tuple[int, int], _Wire] = {}
        self._nics_of = nics_of
        self._outgoing: defaultdict[int, _Side] = defaultdict(_Side)
        self._incoming: defaultdict[int, _Side] = defaultdict(_Side)
        self._inbox: defaultdict[int, dict[Message, Transfer]] = defaultdict(dict)

    def send(self, rank: int, op: Send) -> Transfer:
        """Post the sender's side; never waits."""
        channel = self._channel(rank, op.peer)
        if channel.recvs:
            transfer = channel.recvs.popleft()
            require_same(transfer.source, transfer.target, sent=op.message, received=transfer.message)
            self._start(channel, transfer)
        else:
            transfer = Transfer(rank, op.peer, op.message)
            channel.sends.append(transfer)
            if self._eager:
                self._start(channel, transfer)
        return transfer

    def recv(self, rank: int, op: Recv) -> Transfer:
        """Post the receiver's side; never waits."""
        channel = self._channel(op.peer, rank)
        if channel.sends:
            transfer = channel.sends.popleft()
            require_same(transfer.source, transfer.target, sent=transfer.message, received=op.message)
            if not self._eager:
                self._start(channel, transfer)
        else:
            transfer = Transfer(op.peer, rank, op.message)
            channel.recvs.append(transfer)
        self._inbox[rank][op.message] = transfer
        return transfer

    def incoming(self, rank: int, message: Message) -> Transfer | None:
        """Return the transfer of a message that `rank` has posted a Recv for, if it has."""
        return self._inbox[rank].get(message)

    def arrival(self, transfer: Transfer) -> Generator[Event, Any, None]:
        """Wait until the message is there."""
        if transfer.arrival_s is None:
            transfer.known = self._env.event()
            yield transfer.known
        assert transfer.arrival_s is not None
        if transfer.arrival_s > self._env.now:
            yield self._env.timeout(transfer.arrival_s - self._env.now)

    def reduce(self, ranks: Collection[int], num_bytes: int) -> tuple[float, float]:
        """Post a ring all-reduce of `ranks`, who are all there; never waits.

        Its ring goes through the ranks in their order, and occupies the NICs that it crosses as long as its bytes take.

        Returns:
            Seconds until it starts, and from then until it is over.
        """
        ring = [(a, b) for a, b in zip(ranks, (*tuple(ranks)[1:], *tuple(ranks)[:1]), strict=True) if a != b]
        sides = [side for a, b in ring for side in self._sides(a, b)]
        start_s = max((self._env.now, *(side.free_s for side in sides)))
        for side in sides:
            side.free_s = start_s + ring_occupied_s(num_bytes, ranks, self._link_of)
        return start_s - self._env.now, ring_reduce_s(num_bytes, ranks, self._link_of)

    def unmet(self) -> Iterator[str]:
        """Say which messages only one side has posted so far."""
        for channel in self._channels.values():
            for lost in channel.sends:
                send = Send(lost.message, lost.target)
                yield f"rank {lost.source} posts {send}, which rank {lost.target} never receives"
            for due in channel.recvs:
                recv = Recv(due.message, due.source)
                yield f"rank {due.target} posts {recv}, which rank {due.source} never sends"

    def _channel(self, source: int, target: int) -> _Channel:
        channel = self._channels.get((source, target))
        if channel is None:
            channel = self._channels[source, target] = _Channel(self._wire(source, target))
        return channel

    def _wire(self, source: int, target: int) -> _Wire:
        """Return what carries messages from one rank to another: the link between their devices, or one of its own."""
        devices = self._rank_to_device
        ends = (source, target) if devices is None else (devices[source], devices[target])
        if ends not in self._wires:
            sides = self._sides(source, target)
            is_shared = devices is not None and not sides and max(map(devices.count, ends)) > 1
            shared = SharedDevice(self._env, 1.0) if is_shared else None
            self._wires[ends] = _Wire(self._link_of(source, target), sides, shared=shared)
        return self._wires[ends]

    def _sides(self, source: int, target: int) -> tuple[_Side, ...]:
        leaving, entering = self._nics_of(source, target)
        out = () if leaving is None else (self._outgoing[leaving],)
        return out if entering is None else (*out, self._incoming[entering])

    def _start(self, channel: _Channel, transfer: Transfer) -> None:
        wire = channel.wire
        if wire.shared is not None:
            channel.due.append(transfer)
            if len(channel.due) == 1:
                self._share(channel, wire.shared)
            return
        start_s = max(self._env.now, wire.free_s)
        for side in wire.sides:
            start_s = max(start_s, side.free_s)
        transfer.start_s = start_s
        wire.free_s = start_s + wire.link.occupied_s(message_bytes(self._costs, transfer.message))
        for side in wire.sides:
            side.free_s = wire.free_s
        transfer.arrival_s = wire.free_s + wire.link.latency_s
        if transfer.known is not None:
            transfer.known.succeed()

    def _share(self, channel: _Channel, shared: SharedDevice) -> None:
        """Send the first message that is due, beside those of other channels; when it has left, the next one."""
        transfer, link = channel.due[0], channel.wire.link
        transfer.start_s = self._env.now

        def left(_: Event) -> None:
            channel.due.popleft()
            transfer.arrival_s = self._env.now + link.latency_s
            if transfer.known is not None:
                transfer.known.succeed()
            if channel.due:
                self._share(channel, shared)

        over = shared.run(link.occupied_s(message_bytes(self._costs, transfer.message)), 1.0)
        assert over.callbacks is not None
        over.callbacks.append(left)


def require_same(source: int, target: int, *, sent: Message, received: Message) -> None:
    """Refuse a Send and a Recv that meet but mean different messages."""
    if sent != received:
        raise ScheduleError(
            f"rank {source} sends {Send(sent, target)} where rank {target} receives {Recv(received, source)}, "
            "expected the k-th send of a channel to meet its k-th receive; post them in the same order"
        )


def ring_reduce_s(num_bytes: int, ranks: Collection[int], link_of: LinkOf) -> float:
    """Return the time of a ring all-reduce over the slowest link between any two of `ranks` [s].

    Each of the 2 (r - 1) rounds moves a share of 1 / r (Patarasuk and Yuan 2009).
    """
    num_rounds = 2 * (len(ranks) - 1)
    links = (link_of(a, b) for a in ranks for b in ranks if a != b)
    return max((num_rounds * (link.occupied_s(num_bytes) / len(ranks) + link.latency_s) for link in links), default=0.0)


def ring_occupied_s(num_bytes: int, ranks: Collection[int], link_of: LinkOf) -> float:
    """Return the part of `ring_reduce_s` in which bytes flow, over the link where they flow longest [s]."""
    num_rounds = 2 * (len(ranks) - 1)
    links = (link_of(a, b) for a in ranks for b in ranks if a != b)
    return max((num_rounds * (link.occupied_s(num_bytes) / len(ranks)) for link in links), default=0.0)


@final
class Collectives:
    """The k-th Reduce of a stage is a meeting of all the ranks that reduce it; the round is over when all came."""

    def __init__(self, env: Environment, members: Mapping[int, Collection[int]]) -> None:
        self._env = env
        self._members = members
        self._absent = {stage: set(ranks) for stage, ranks in members.items()}
        self._gathered = {stage: env.event() for stage in members}

    def gather(self, rank: int, stage: int, post: Callable[[], Posted]) -> Generator[Event, Any, Posted]:
        """Wait until every rank that reduces `stage` is here; return what `post` says when the last one comes."""
        gathered = self._gathered[stage]
        self._absent[stage].discard(rank)
        if not self._absent[stage]:
            gathered.succeed(post())
            self._absent[stage] = set(self._members[stage])
            self._gathered[stage] = self._env.event()
        posted: Posted = yield gathered
        return posted

    def absent(self, stage: int) -> tuple[int, ...]:
        """Return the ranks that the present round still waits for."""
        return tuple(sorted(self._absent[stage]))
