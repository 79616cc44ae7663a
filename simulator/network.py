"""Messages between ranks: order, rendezvous, bandwidth, latency; and the collectives of a stage's replicas.

Each directed pair of ranks is one channel that keeps its order: its k-th Send meets its k-th Recv.

    Send posted ──┐
    Recv posted ──┴─ busy link ─┬─ bytes / bandwidth ─┬─ latency ─┐
                              start               next one      arrival
                                                may start

Under ``rendezvous`` a transfer may start when both sides have posted, under ``eager`` when the sender has. Both are
known at the moment of the later post, and with them start and arrival: no event is spent on a message that nobody
waits for. (A link that several channels share would keep its `free_s` per link instead of per channel.)
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, final

from simpy import Environment, Event

from profiles.cluster import Link
from profiles.stage_costs import StageCosts
from schedules.op import Message, Payload, Recv, Send
from schedules.schedule import ScheduleError

Protocol: TypeAlias = Literal["rendezvous", "eager"]
LinkOf: TypeAlias = Callable[[int, int], Link]
"""The link from one rank to another."""


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
class _Channel:
    link: Link
    sends: deque[Transfer] = field(default_factory=deque)  # posted, and not met by a Recv yet
    recvs: deque[Transfer] = field(default_factory=deque)  # the other way round; one of the two is empty
    free_s: float = 0.0


@final
class Network:
    """All channels of a run."""

    def __init__(self, env: Environment, costs: StageCosts, link_of: LinkOf, protocol: Protocol) -> None:
        self._env = env
        self._costs = costs
        self._link_of = link_of
        self._eager = protocol == "eager"
        self._channels: dict[tuple[int, int], _Channel] = {}
        self._inbox: defaultdict[int, dict[Message, Transfer]] = defaultdict(dict)

    def send(self, rank: int, op: Send) -> Transfer:
        """Post the sender's side; never waits."""
        channel = self._channel(rank, op.peer)
        if channel.recvs:
            transfer = channel.recvs.popleft()
            _require_same(transfer, sent=op.message, received=transfer.message)
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
            _require_same(transfer, sent=transfer.message, received=op.message)
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
            channel = self._channels[source, target] = _Channel(self._link_of(source, target))
        return channel

    def _start(self, channel: _Channel, transfer: Transfer) -> None:
        transfer.start_s = max(self._env.now, channel.free_s)
        channel.free_s = transfer.start_s + channel.link.occupied_s(message_bytes(self._costs, transfer.message))
        transfer.arrival_s = channel.free_s + channel.link.latency_s
        if transfer.known is not None:
            transfer.known.succeed()


def _require_same(transfer: Transfer, sent: Message, received: Message) -> None:
    """Refuse a Send and a Recv that meet but mean different messages."""
    if sent != received:
        source, target = transfer.source, transfer.target
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


@final
class Collectives:
    """The k-th Reduce of a stage is a meeting of all the ranks that reduce it; the round is over when all came."""

    def __init__(self, env: Environment, members: Mapping[int, Collection[int]]) -> None:
        self._env = env
        self._members = members
        self._absent = {stage: set(ranks) for stage, ranks in members.items()}
        self._gathered = {stage: env.event() for stage in members}

    def gather(self, rank: int, stage: int) -> Generator[Event, Any, None]:
        """Wait until every rank that reduces `stage` is here."""
        gathered = self._gathered[stage]
        self._absent[stage].discard(rank)
        if not self._absent[stage]:
            gathered.succeed()
            self._absent[stage] = set(self._members[stage])
            self._gathered[stage] = self._env.event()
        yield gathered

    def absent(self, stage: int) -> tuple[int, ...]:
        """Return the ranks that the present round still waits for."""
        return tuple(sorted(self._absent[stage]))
