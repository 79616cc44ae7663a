"""The network of a simulation: messages meet in order, wait for links, and take latency and bandwidth.

Each directed pair of ranks is one channel that keeps its order; `semantics.Meetings` pairs Sends with Recvs.

    Send posted ──┐
    Recv posted ──┴─ busy link ─┬─ bytes / bandwidth ─┬─ latency ─┐
                              start               next one      arrival
                                                may start

Under ``rendezvous`` a transfer may start when both sides have posted, under ``eager`` when the sender has. Both are
known at the moment of the later post, and with them start and arrival: a message needs no event unless an op waits for
it. Channels from ranks of one device to ranks of another share the link: their messages divide its bandwidth evenly
while they last, so their ends are known only at run time.

Each direction of a network interface that devices of a node share is one more link on the way: messages pass it one
after the other, in the order in which they could start. A message starts when its link, its sender's outgoing and its
receiver's incoming side are all free. It then has all of them to itself, even a link that ranks share. In chunks, it
asks for them chunk by chunk, each time behind the requests of others in the meantime:

    whole    NIC  aaaaaaaabbbbbbbb      chunks   NIC  aabbaabbaabbaabb

A reduction occupies the links that it goes over, and the NICs that these cross, in the same way; round by round where
messages go in chunks.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias, final

from simpy import Environment, Event

from pipesched.profiles.clusters import AllReduce, Cluster, Hop, Rounds
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import NotRunnableError
from pipesched.schedules.ops import Group, Message, Recv, Reduce, Send
from pipesched.schedules.semantics import Channel, MeetingKey, Meetings
from pipesched.simulator import NetworkOptions
from pipesched.simulator.engine.device import SharedDevice
from pipesched.simulator.engine.links import LinkQueue, Wire, Wires, occupy

OnStart: TypeAlias = Callable[["TransferTimes", Sequence[int]], None]
"""Called with the times of a starting transfer or reduction, at a known time, and its devices."""


@dataclass(slots=True, eq=False)
class TransferTimes:
    """When a message, or a reduction, starts and ends; each None until it is known.

    Attributes:
        start_s: When its first byte leaves [s].
        end_s: When its last byte is there [s].
        late_s: Given delay beside the network: how much later it is over for its waiters [s].
        waits: The events of waiters before the end is known, and how long before the end each continues [s]; None
            without waiters: then no event is spent on it.
    """

    start_s: float | None = None
    end_s: float | None = None
    late_s: float = 0.0
    waits: list[tuple[Event, float]] | None = None

    def set_end(self, env: Environment, end_s: float) -> None:
        """Set the end; its waiters continue then."""
        self.end_s = end_s
        for wait, before_s in self.waits or ():
            over = env.timeout(max(0.0, self._over_s(end_s) - before_s - env.now))
            over.callbacks.extend(wait.callbacks or ())

    @property
    def over_s(self) -> float | None:
        """When the transfer ends for its waiters [s], never before its start; None if unknown yet."""
        return None if self.end_s is None else self._over_s(self.end_s)

    def over(self, env: Environment, before_s: float = 0.0) -> Event | None:
        """Return the event `before_s` before the end, or None if that time has passed."""
        if self.end_s is None:
            wait = env.event()
            self.waits = [*(self.waits or ()), (wait, before_s)]
            return wait
        left_s = self._over_s(self.end_s) - before_s - env.now
        return env.timeout(left_s) if left_s > 0 else None

    def _over_s(self, end_s: float) -> float:
        return max(self.start_s or 0.0, end_s + self.late_s) if self.late_s else end_s


@final
class Collectives:
    """Reduces that meet are one reduction, which can start when the last of its Reduces is posted.

    Args:
        summands: Rank and stage of each Reduce that meets others, by group.
    """

    def __init__(self, summands: Mapping[Group, Collection[tuple[int, int]]]) -> None:
        self._summands = summands
        self._meetings = Meetings()
        self._absent: dict[MeetingKey, set[tuple[int, int]]] = {}
        self._open: dict[MeetingKey, TransferTimes] = {}

    def post(self, rank: int, op: Reduce, late_s: float = 0.0) -> tuple[TransferTimes, bool]:
        """Post a rank's side, which ends `late_s` [s] after the network's; return if the reduction can start."""
        key = self._meetings.come(rank, op)
        times = self._open.setdefault(key, TransferTimes())
        times.late_s = late_s
        absent = self._absent.setdefault(key, set(self._summands[op.group]))
        absent.discard((rank, op.stage))
        if not absent:
            del self._open[key], self._absent[key]
        return times, not absent

    def absent(self, times: TransferTimes) -> tuple[int, ...]:
        """Return the ranks that a reduction still waits for."""
        absent = next((self._absent[key] for key, open_times in self._open.items() if open_times is times), set())
        return tuple(sorted({rank for rank, _ in absent}))


@dataclass(slots=True, eq=False)
class Transfer:
    """One message on its way from rank `source` to rank `target`.

    Attributes:
        is_sent: Whether the Send was posted first, else the Recv.
    """

    source: int
    target: int
    message: Message
    is_sent: bool
    times: TransferTimes


@dataclass(slots=True, eq=False)
class _Channel:
    wire: Wire
    devices: tuple[int, int]
    unmet: dict[int, Transfer] = field(default_factory=dict)  # posted by one side, by the number of the meeting
    due: deque[Transfer] = field(default_factory=deque)  # whose end only events say: the one on its way, and more


@final
class Network:
    """All channels of a run.

    Args:
        env: Clock of the simulation.
        costs: Costs with the bytes of messages.
        cluster: Links and NICs.
        rank_to_device: The device of every rank.
        options: How messages go.
        on_start: Callback for every message and reduction.
    """

    def __init__(
        self,
        env: Environment,
        costs: StageCosts,
        cluster: Cluster,
        rank_to_device: Sequence[int],
        options: NetworkOptions = NetworkOptions(),  # noqa: B008 -- frozen
        on_start: OnStart | None = None,
    ) -> None:
        self._env = env
        self._costs = costs
        self._rank_to_device = rank_to_device
        self._options = options
        self._on_start = on_start
        self._wires = Wires(cluster, rank_to_device)
        self._bandwidths = defaultdict[Hop, SharedDevice](partial(SharedDevice, env, 1.0))  # of links that ranks share
        self._meetings = Meetings()
        self._channels: dict[Channel, _Channel] = {}
        self._gathers = defaultdict[int, LinkQueue](LinkQueue)  # of each rank
        self._inbox: defaultdict[int, dict[Message, Transfer]] = defaultdict(dict)

    def send(self, rank: int, op: Send) -> Transfer:
        """Post the sender's side; never waits."""
        ends, number = self._meetings.send(rank, op.peer)
        channel = self._channels.get(ends) or self._open(ends)
        transfer = channel.unmet.pop(number, None)
        if transfer is None:
            transfer = channel.unmet[number] = Transfer(rank, op.peer, op.message, is_sent=True, times=TransferTimes())
            if self._options.protocol == "eager":
                self._start(channel, transfer)
        else:
            require_matching(rank, op.peer, sent=op.message, received=transfer.message)
            self._start(channel, transfer)
        return transfer

    def recv(self, rank: int, op: Recv, late_s: float = 0.0) -> Transfer:
        """Post the receiver's side of a message, which ends `late_s` [s] after the network has; never waits."""
        ends, number = self._meetings.recv(rank, op.peer)
        channel = self._channels.get(ends) or self._open(ends)
        transfer = channel.unmet.pop(number, None)
        if transfer is None:
            transfer = channel.unmet[number] = Transfer(
                op.peer, rank, op.message, is_sent=False, times=TransferTimes(late_s=late_s)
            )
        else:
            require_matching(op.peer, rank, sent=transfer.message, received=op.message)
            transfer.times.late_s = late_s
            if self._options.protocol != "eager":
                self._start(channel, transfer)
        self._inbox[rank][op.message] = transfer
        return transfer

    def incoming(self, rank: int, message: Message) -> Transfer | None:
        """Return the transfer of a message that `rank` has posted a Recv for, if it has."""
        return self._inbox[rank].get(message)

    def latency_s(self, source: int, target: int) -> float:
        """Return how long a message that one rank has sent another travels after it has left [s]."""
        return self._channels[source, target].wire.link.latency_s

    def reduce(self, times: TransferTimes, plan: AllReduce) -> None:
        """Start a reduction, whose replicas are all there; never waits."""
        wires = {hop: self._wires.between(*hop) for hop in plan.hops}
        devices = tuple(dict.fromkeys(device for hop in wires for device in hop))
        if self._options.chunk_bytes is not None and any(wire.crosses_nic for wire in wires.values()):
            rounds = (phase for phase in plan.phases for _ in range(phase.count))
            self._next_round(times, devices, rounds)
            return
        until_s = [(way, until) for hop, until in plan.until_s().items() for way in wires[hop].ways]
        start_s = max([self._env.now, *(way.free_s for way, _ in until_s)])
        for way, until in until_s:
            way.free_s = max(way.free_s, start_s + until)
        self._begin(times, start_s, devices)
        times.set_end(self._env, start_s + plan.seconds)

    def gather(self, rank: int, seconds: float) -> TransferTimes:
        """Start a gather of weights as soon as the gathers of its rank before it are over; never waits."""
        times = TransferTimes()
        start_s = occupy([self._gathers[rank]], self._env.now, seconds)
        self._begin(times, start_s, ())
        times.set_end(self._env, start_s + seconds)
        return times

    def unmet(self) -> Iterator[str]:
        """Return the text on messages that only one side has posted so far."""
        for channel in self._channels.values():
            for transfer in channel.unmet.values():
                source, target = transfer.source, transfer.target
                if transfer.is_sent:
                    send = Send(transfer.message, target)
                    yield f"rank {source} posts {send}, which rank {target} never receives"
                else:
                    recv = Recv(transfer.message, source)
                    yield f"rank {target} posts {recv}, which rank {source} never sends"

    def _open(self, ends: Channel) -> _Channel:
        source, target = (self._rank_to_device[rank] for rank in ends)
        channel = self._channels[ends] = _Channel(self._wires.between(source, target), (source, target))
        return channel

    def _start(self, channel: _Channel, transfer: Transfer) -> None:
        wire = channel.wire
        if wire.is_shared or (wire.crosses_nic and self._options.chunk_bytes is not None):
            channel.due.append(transfer)
            if len(channel.due) == 1:
                self._depart(channel)
            return
        seconds = wire.link.occupied_s(self._costs.message_bytes(transfer.message))
        start_s = occupy(wire.ways, self._env.now, seconds)
        self._begin(transfer.times, start_s, channel.devices)
        transfer.times.set_end(self._env, start_s + seconds + wire.link.latency_s)

    def _depart(self, channel: _Channel) -> None:
        """Send the first due message, beside messages of other channels; when it has left, the next one."""
        transfer, wire = channel.due[0], channel.wire
        num_bytes = self._costs.message_bytes(transfer.message)
        if not wire.is_shared:
            self._next_chunk(channel, num_bytes)
            return
        self._begin(transfer.times, self._env.now, channel.devices)
        over = self._bandwidths[channel.devices].run(wire.link.occupied_s(num_bytes), 1.0)
        assert over.callbacks is not None
        over.callbacks.append(lambda _: self._has_left(channel))

    def _next_chunk(self, channel: _Channel, left_bytes: int) -> None:
        times, link = channel.due[0].times, channel.wire.link
        size = min(left_bytes, self._options.chunk_bytes or left_bytes)
        start_s = occupy(channel.wire.ways, self._env.now, link.occupied_s(size))
        if times.start_s is None:
            self._begin(times, start_s, channel.devices)
        more = partial(self._next_chunk, channel, left_bytes - size) if size < left_bytes else None
        self._at(start_s + link.occupied_s(size), more or partial(self._has_left, channel))

    def _has_left(self, channel: _Channel) -> None:
        channel.due.popleft().times.set_end(self._env, self._env.now + channel.wire.link.latency_s)
        if channel.due:
            self._depart(channel)

    def _next_round(self, times: TransferTimes, devices: Sequence[int], rounds: Iterator[Rounds]) -> None:
        next_rounds = next(rounds, None)
        if next_rounds is None:
            times.set_end(self._env, self._env.now)
            return
        ways = {way for hop in next_rounds.hops for way in self._wires.between(*hop).ways}
        start_s = occupy(ways, self._env.now, next_rounds.occupied_s)
        if times.start_s is None:
            self._begin(times, start_s, devices)
        self._at(start_s + next_rounds.seconds, partial(self._next_round, times, devices, rounds))

    def _begin(self, times: TransferTimes, start_s: float, devices: Sequence[int]) -> None:
        times.start_s = start_s
        if self._on_start is not None:
            self._on_start(times, devices)

    def _at(self, time_s: float, do: Callable[[], None]) -> None:
        alarm = self._env.timeout(max(0.0, time_s - self._env.now))
        assert alarm.callbacks is not None
        alarm.callbacks.append(lambda _: do())


def require_matching(source: int, target: int, *, sent: Message, received: Message) -> None:
    """Refuse a Send and a Recv that meet but name different messages."""
    if sent != received:
        raise NotRunnableError(
            f"rank {source} sends {Send(sent, target)} where rank {target} receives {Recv(received, source)}, expected "
            "the k-th send of a channel to meet its k-th receive; post sends and receives in the same order"
        )
