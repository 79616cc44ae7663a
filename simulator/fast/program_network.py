"""The network of a program as arrays for the event loop: wires with their links and NICs, and paths of reductions."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, final

from pipesched.profiles.clusters import AllReduce, Cluster, Hop, Rounds
from pipesched.profiles.costs import StageCosts, reduction_of
from pipesched.schedules.ops import Group
from pipesched.simulator import NetworkOptions
from pipesched.simulator.engine import LinkQueue, Wire, Wires
from pipesched.simulator.fast.loop_arrays import ALONE, CHUNKED, SHARED, Reductions, Rules, Transfers, in_arrays
from pipesched.simulator.fast.program import Gather, Program


class ProgramNetwork(NamedTuple):
    """The input of the event loop beside the instructions.

    Attributes:
        sharers: Index of its device among the shared resources, by rank; -1 if the device is not shared.
    """

    sharers: list[int]
    transfers: Transfers
    reductions: Reductions
    rules: Rules


@final
class NetworkCompiler:
    """Compiles the network of a program on a cluster.

    Args:
        program: The program.
        costs: The costs with the bytes of messages.
        cluster: Devices and links.
        network: How messages go.
        num_beside: Pipelines on the same devices; each of their messages is simulated.
        num_equal: Pipelines in lockstep, of which one is simulated: they share the links.
    """

    def __init__(
        self,
        program: Program,
        costs: StageCosts,
        cluster: Cluster,
        network: NetworkOptions,
        num_beside: int,
        num_equal: int,
    ) -> None:
        self._program = program
        self._costs = costs
        self._num_equal = num_equal
        self._cluster = cluster
        self._options = network
        self._devices = program.schedule.rank_to_device
        everybodys = self._devices * num_beside
        self._wires = Wires(cluster, everybodys)
        self._queue_numbers: dict[LinkQueue, int] = {}
        self._gathers = defaultdict[int, LinkQueue](LinkQueue)  # of each rank
        num_ranks = Counter(everybodys)
        shared = [device for device in num_ranks if num_ranks[device] > 1 or network.slowdown]
        self._sharers = {device: number for number, device in enumerate(shared)}

    def numbers(self) -> ProgramNetwork:
        """Return the network as numbers for the event loop."""
        program, costs = self._program, self._costs
        hops = [(self._devices[source], self._devices[target]) for source, target in program.channels]
        wire_of = {hop: number for number, hop in enumerate(dict.fromkeys(hops))}
        wires = [self._wires.between(*hop) for hop in wire_of]
        modes = [self._mode(wire) for wire in wires]
        sharers, num_shared = [], len(self._sharers)
        for mode in modes:
            sharers.append(num_shared if mode == SHARED else -1)
            num_shared += mode == SHARED
        queues = [number for wire in wires for number in (*self._numbers(wire.ways), -1, -1)[:3]]
        sums = dict.fromkeys(program.reductions)
        plans = {group: self._plan(group) for group in sums}
        way_of = {group: number for number, group in enumerate(sums)}
        groups: list[Iterable[int]] = [*hops, *(_devices(plan.hops) for plan in plans.values())]
        slowed = [[self._sharers[device] for device in group if device in self._sharers] for group in groups]
        loads, numbers_of = program.loads
        sizes = [costs.message_bytes(message) for message in program.messages]
        bandwidths = [wire.link.bandwidth_bytes_per_s / self._num_equal for wire in wires]
        wire_numbers = [wire_of[hop] for hop in hops]
        ways = [len(hops) + way_of[group] for group in program.reductions]
        transfers = in_arrays(
            Transfers,
            [*program.channel_of, *ways] if ways else program.channel_of,
            program.following,
            loads,
            [float(sizes[size]) for _, size in numbers_of],
            [
                wires[wire_numbers[channel]].link.occupied_s(sizes[size]) * self._num_equal
                for channel, size in numbers_of
            ],
            wire_numbers,
            modes,
            sharers,
            [wire.link.latency_s for wire in wires],
            bandwidths,
            queues,
            _begins(slowed),
            [device for group in slowed for device in group],
        )
        summands = program.schedule.summands
        members = [1 if isinstance(group, Gather) else len(summands[group]) for group in program.reductions]
        reductions = self._reductions(members, plans)
        options = self._options
        chunk_bytes = math.inf if options.chunk_bytes is None else float(options.chunk_bytes)
        is_eager = options.protocol == "eager"
        runs_ahead = self._runs_ahead(num_shared, modes, [*queues, *reductions.queues], reductions)
        rules = Rules(is_eager, chunk_bytes, float(options.slowdown), len(self._queue_numbers), num_shared, runs_ahead)
        sharers = [self._sharers.get(device, -1) for device in self._devices]
        return ProgramNetwork(sharers, transfers, reductions, rules)

    def _runs_ahead(self, num_shared: int, modes: list[int], queues: list[int], reductions: Reductions) -> bool:
        """Return whether no two channels or reductions share a queue, and ranks share no other resource."""
        is_told = self._options.protocol == "eager" and self._options.sends == "blocking"
        is_given = bool(len(reductions.members)) and any(
            isinstance(duration, float) and duration for duration in self._program.durations
        )
        used = [queue for queue in queues if queue >= 0]
        is_alone = num_shared == 0 and modes.count(ALONE) == len(modes) and not len(reductions.round_counts)
        return is_alone and not is_told and not is_given and len(used) == len(set(used))

    def _mode(self, wire: Wire) -> int:
        if wire.is_shared:
            return SHARED
        return CHUNKED if wire.crosses_nic and self._options.chunk_bytes is not None else ALONE

    def _plan(self, group: Group | Gather) -> AllReduce:
        if not isinstance(group, Gather):
            return reduction_of(group, self._program.schedule, self._costs, self._cluster)
        seconds = self._costs.stages[group.stage].unshard_s
        return AllReduce("ring", (Rounds(1, (), seconds, seconds),))

    def _reductions(self, members: list[int], plans: Mapping[Group | Gather, AllReduce]) -> Reductions:
        kept: list[list[tuple[int, float]]] = []  # of each plan: (queue, until)
        phases: list[list[tuple[int, float, float, list[int]]]] = []
        for group, plan in plans.items():
            wires = {hop: self._wires.between(*hop) for hop in plan.hops}
            in_rounds = self._options.chunk_bytes is not None and any(wire.crosses_nic for wire in wires.values())
            kept.append(
                [(queue, until) for hop, until in plan.until_s().items() for queue in self._numbers(wires[hop].ways)]
            )
            if isinstance(group, Gather):
                kept[-1] += [(queue, plan.seconds) for queue in self._numbers([self._gathers[group.rank]])]
            phases.append(
                [
                    (phase.count, phase.occupied_s, phase.seconds, self._queues(phase.hops, wires))
                    for phase in plan.phases
                    if in_rounds and phase.count
                ]
            )
        all_kept = [queue_until for group in kept for queue_until in group]
        all_phases = [phase for group in phases for phase in group]
        queues = [phase[3] for phase in all_phases]
        return in_arrays(
            Reductions,
            members,
            _begins(kept),
            [queue for queue, _ in all_kept],
            [until for _, until in all_kept],
            [plan.seconds for plan in plans.values()],
            _begins(phases),
            [phase[0] for phase in all_phases],
            [phase[1] for phase in all_phases],
            [phase[2] for phase in all_phases],
            _begins(queues),
            [queue for group in queues for queue in group],
        )

    def _queues(self, hops: Iterable[Hop], wires: dict[Hop, Wire]) -> list[int]:
        return self._numbers(dict.fromkeys(way for hop in hops for way in wires[hop].ways))

    def _numbers(self, ways: Iterable[LinkQueue]) -> list[int]:
        return [self._queue_numbers.setdefault(way, len(self._queue_numbers)) for way in ways]


def _devices(hops: Iterable[Hop]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(device for hop in hops for device in hop))


def _begins(groups: Sequence[Sequence[object]]) -> list[int]:
    return list(accumulate(map(len, groups), initial=0))
