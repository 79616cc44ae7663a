"""The network of a simulation: messages meet in order, wait for links, and take latency and bandwidth.

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
its receiver's incoming side are all free, and then has the whole of them, also of a link that ranks share. In chunks,
it asks for them chunk by chunk, each time behind what others have asked for meanwhile:

    whole    NIC  aaaaaaaabbbbbbbb      chunks   NIC  aabbaabbaabbaabb

A reduction occupies the links that it goes over, and the NICs that these cross, in the same way; round by round where
messages go in chunks.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias, final

from simpy import Environment

from pipesched.profiles.clusters import AllReduce, Cluster, Rounds
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Message, NotRunnableError, Recv, Send
from pipesched.simulator import NetworkOptions
from pipesched.simulator.engine.links import Wire, Wires, occupy
from pipesched.simulator.engine.transfer import Flight

OnStart: TypeAlias = Callable[[Flight, Sequence[int]], None]
"""Told of what is going to start, at a time that is known, between these devices."""


@dataclass(slots=True, eq=False)
class Transfer:
    """One message on its way."""

    source: int
    target: int
    message: Message
    flight: Flight = field(default_factory=Flight)


@dataclass(slots=True, eq=False)
class _Channel:
    wire: Wire
    devices: tuple[int, int]
    sends: deque[Transfer] = field(default_factory=deque)  # posted, and not met by a Recv yet
    recvs: deque[Transfer] = field(default_factory=deque)  # the other way round; one of the two is empty
    due: deque[Transfer] = field(default_factory=deque)  # whose end only events say: the one on its way, and more


@final
class Network:
    """All channels of a run.

    Args:
        env: Its clock.
        costs: Say the bytes of messages.
        cluster: Links and NICs.
        rank_to_device: The device of every rank.
        rules: How messages go.
        on_start: Told of every message and reduction.
    """

    def __init__(
        self,
        env: Environment,
        costs: StageCosts,
        cluster: Cluster,
        rank_to_device: Sequence[int],
        rules: NetworkOptions = NetworkOptions(),  # noqa: B008 -- frozen
        on_start: OnStart | None = None,
    ) -> None:
        self._env = env
        self._costs = costs
        self._rank_to_device = rank_to_device
        self._rules = rules
        self._on_start = on_start
        self._wires = Wires(env, cluster, rank_to_device)
        self._channels: dict[tuple[int, int], _Channel] = {}
        self._inbox: defaultdict[int, dict[Message, Transfer]] = defaultdict(dict)

    def send(self, rank: int, op: Send) -> Transfer:
        """Post the sender's side; never waits."""
        channel = self._channel(rank, op.peer)
        if channel.recvs:
            transfer = channel.recvs.popleft()
            require_matching(transfer.source, transfer.target, sent=op.message, received=transfer.message)
            self._start(channel, transfer)
        else:
            transfer = Transfer(rank, op.peer, op.message)
            channel.sends.append(transfer)
            if self._rules.protocol == "eager":
                self._start(channel, transfer)
        return transfer

    def recv(self, rank: int, op: Recv) -> Transfer:
        """Post the receiver's side; never waits."""
        channel = self._channel(op.peer, rank)
        if channel.sends:
            transfer = channel.sends.popleft()
            require_matching(transfer.source, transfer.target, sent=transfer.message, received=op.message)
            if self._rules.protocol != "eager":
                self._start(channel, transfer)
        else:
            transfer = Transfer(op.peer, rank, op.message)
            channel.recvs.append(transfer)
        self._inbox[rank][op.message] = transfer
        return transfer

    def incoming(self, rank: int, message: Message) -> Transfer | None:
        """Return the transfer of a message that `rank` has posted a Recv for, if it has."""
        return self._inbox[rank].get(message)

    def latency_s(self, source: int, target: int) -> float:
        """Return how long a message from one rank to another travels after it has left [s]."""
        return self._channel(source, target).wire.link.latency_s

    def reduce(self, flight: Flight, plan: AllReduce) -> None:
        """Start a reduction, whose replicas are all there; never waits."""
        wires = {hop: self._wires.between(*hop) for hop in plan.hops}
        devices = tuple(dict.fromkeys(device for hop in wires for device in hop))
        if self._rules.chunk_bytes is not None and any(wire.crosses_nic for wire in wires.values()):
            rounds = (phase for phase in plan.phases for _ in range(phase.count))
            self._next_round(flight, devices, rounds)
            return
        until_s = [(way, until) for hop, until in plan.until_s().items() for way in wires[hop].ways]
        start_s = max([self._env.now, *(way.free_s for way, _ in until_s)])
        for way, until in until_s:
            way.free_s = max(way.free_s, start_s + until)
        self._begin(flight, start_s, devices)
        flight.set_end(start_s + plan.seconds)

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
            ends = self._rank_to_device[source], self._rank_to_device[target]
            channel = self._channels[source, target] = _Channel(self._wires.between(*ends), ends)
        return channel

    def _start(self, channel: _Channel, transfer: Transfer) -> None:
        wire = channel.wire
        if wire.shared is not None or (wire.crosses_nic and self._rules.chunk_bytes is not None):
            channel.due.append(transfer)
            if len(channel.due) == 1:
                self._depart(channel)
            return
        seconds = wire.link.occupied_s(self._costs.message_bytes(transfer.message))
        start_s = occupy(wire.ways, self._env.now, seconds)
        self._begin(transfer.flight, start_s, channel.devices)
        transfer.flight.set_end(start_s + seconds + wire.link.latency_s)

    def _depart(self, channel: _Channel) -> None:
        """Send the first message that is due, beside those of other channels; when it has left, the next one."""
        transfer, wire = channel.due[0], channel.wire
        num_bytes = self._costs.message_bytes(transfer.message)
        if wire.shared is None:
            self._next_chunk(channel, num_bytes)
            return
        self._begin(transfer.flight, self._env.now, channel.devices)
        over = wire.shared.run(wire.link.occupied_s(num_bytes), 1.0)
        assert over.callbacks is not None
        over.callbacks.append(lambda _: self._has_left(channel))

    def _next_chunk(self, channel: _Channel, left_bytes: int) -> None:
        flight, link = channel.due[0].flight, channel.wire.link
        size = min(left_bytes, self._rules.chunk_bytes or left_bytes)
        start_s = occupy(channel.wire.ways, self._env.now, link.occupied_s(size))
        if flight.start_s is None:
            self._begin(flight, start_s, channel.devices)
        more = partial(self._next_chunk, channel, left_bytes - size) if size < left_bytes else None
        self._at(start_s + link.occupied_s(size), more or partial(self._has_left, channel))

    def _has_left(self, channel: _Channel) -> None:
        channel.due.popleft().flight.set_end(self._env.now + channel.wire.link.latency_s)
        if channel.due:
            self._depart(channel)

    def _next_round(self, flight: Flight, devices: Sequence[int], rounds: Iterator[Rounds]) -> None:
        one = next(rounds, None)
        if one is None:
            flight.set_end(self._env.now)
            return
        ways = {way for hop in one.hops for way in self._wires.between(*hop).ways}
        start_s = occupy(ways, self._env.now, one.occupied_s)
        if flight.start_s is None:
            self._begin(flight, start_s, devices)
        self._at(start_s + one.seconds, partial(self._next_round, flight, devices, rounds))

    def _begin(self, flight: Flight, start_s: float, devices: Sequence[int]) -> None:
        flight.start_s = start_s
        if self._on_start is not None:
            self._on_start(flight, devices)

    def _at(self, time_s: float, do: Callable[[], None]) -> None:
        alarm = self._env.timeout(max(0.0, time_s - self._env.now))
        assert alarm.callbacks is not None
        alarm.callbacks.append(lambda _: do())


def require_matching(source: int, target: int, *, sent: Message, received: Message) -> None:
    """Refuse a Send and a Recv that meet but mean different messages."""
    if sent != received:
        raise NotRunnableError(
            f"rank {source} sends {Send(sent, target)} where rank {target} receives {Recv(received, source)}, "
            "expected the k-th send of a channel to meet its k-th receive; post them in the same order"
        )
