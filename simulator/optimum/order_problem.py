"""An order problem: the ops of a schedule on their ranks, without their order, and their waits.

    0F ──> 1F ──> 1I ──> 0I         an arc: one op of every micro-batch after another, with a delay between them
                   └─> 1W └─> 0W
    0W of micro-batch k ──> 0F of micro-batch k + n, where the rank has room for n micro-batches
    0F ──> 0R ──> 0I, where stage 0 recomputes; which stages do so for all micro-batches may be left open

All micro-batches are alike, so the ops of one phase on one stage run in the order of micro-batches: renumbering changes
no time and no memory. The open question is how a rank's phases and stages take turns. If a stage
recomputed some micro-batches and not others, one micro-batch could overtake another: their order would be open, too.

Times are whole ticks, rounded down. Every order of the real ops is then also an order of the rounded ops, with every
start rounded down, and ends no later. So a bound of the rounded problem is a bound of the real problem.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple, final

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Schedule
from pipesched.schedules.ops import Compute, Message, Phase, Step, gives, needs
from pipesched.simulator.optimum.activation_room import ActivationRoom

_FINEST, _MOST_PARTS, _TICKS = 1000, 100_000, 10**12
"""Parts of the shortest time that others are tried to be multiples of; the most ticks of a time that is; ticks of the
busiest rank's work where none is found."""
_MOST_RANKS = 10
"""Ranks for which ticks are made so fine that a period, the mean of a cycle through some of them, is a whole number."""
_NOISE, _SAME = 1e-9, 1e-12
"""Ticks by which a quotient may be below a whole number that it is; how far apart equal times may be, relatively."""
_BACKWARDS, _WEIGHT = (Phase.BACKWARD, Phase.BACKWARD_INPUT), Phase.BACKWARD_WEIGHT


class OrderKind(NamedTuple):
    """The ops of one phase on one stage, one per micro-batch; a Step belongs to the last micro-batch alone.

    Attributes:
        op: The op of micro-batch 0, or the Step.
        rank: Rank of the stage.
        ticks: Duration of each [ticks].
    """

    op: Compute | Step
    rank: int
    ticks: int


class OrderArc(NamedTuple):
    """A wait: each op of one kind runs after an op of another kind.

    Attributes:
        before: Index of the kind that comes first.
        after: Index of the kind that waits.
        ticks: Ticks from the end of one to the start of the other, at least.
        distance: The op of micro-batch k + `distance` waits for the op of micro-batch k.
        since: The first k with such a wait.
    """

    before: int
    after: int
    ticks: int
    distance: int
    since: int = 0


def of_one_kind(op: Compute | Step) -> Compute | Step:
    """Return the op that represents its kind: the op of micro-batch 0, or the Step."""
    return op if isinstance(op, Step) else Compute(op.phase, op.stage, 0)


def is_phase(op: Compute | Step, *phases: Phase) -> bool:
    """Whether an op is of one of these phases."""
    return isinstance(op, Compute) and op.phase in phases


@final
@dataclass(frozen=True)
class OrderProblem:
    """Ops to be ordered on their ranks.

    Attributes:
        kinds: Topologically sorted by the waits within a micro-batch. A Step without time is left out: it can always
            run at the end.
        arcs: All waits; if `counts_room` is empty, the arcs cover all memory limits.
        num_microbatches: Micro-batches.
        num_ranks: Ranks.
        room: Memory per micro-batch, and the limits of the ranks.
        counts_room: Ranks whose limit is not covered by the arcs.
        tick_s: Seconds of a tick.
        is_exact: Whether all times are whole ticks, apart from floating-point rounding. For a repeated batch, the
            period must be whole too.
        is_repeated: Whether the batch is repeated without a pause; the objective is then the period.
        optional: Kinds of R that may be left out; the stage then holds its saved activations from F on.
    """

    kinds: tuple[OrderKind, ...]
    arcs: tuple[OrderArc, ...]
    num_microbatches: int
    num_ranks: int
    room: ActivationRoom
    counts_room: frozenset[int]
    tick_s: float
    is_exact: bool
    is_repeated: bool = False
    optional: frozenset[int] = frozenset()

    @cached_property
    def incoming(self) -> tuple[tuple[OrderArc, ...], ...]:
        """The arcs that each kind waits for."""
        return tuple(tuple(arc for arc in self.arcs if arc.after == kind) for kind in range(len(self.kinds)))

    @cached_property
    def of_rank(self) -> tuple[tuple[int, ...], ...]:
        """The kinds of each rank."""
        ranks = range(self.num_ranks)
        return tuple(tuple(i for i, kind in enumerate(self.kinds) if kind.rank == rank) for rank in ranks)

    @cached_property
    def index_of(self) -> Mapping[Compute | Step, int]:
        """The index of each kind by its op."""
        return {kind.op: index for index, kind in enumerate(self.kinds)}

    def coarser(self, factor: int) -> OrderProblem:
        """Return the problem with ticks that are `factor` times as long, all times rounded down to them."""
        kinds = tuple(kind._replace(ticks=kind.ticks // factor) for kind in self.kinds)
        arcs = tuple(arc._replace(ticks=arc.ticks // factor) for arc in self.arcs)
        return replace(self, kinds=kinds, arcs=arcs, tick_s=self.tick_s * factor)

    @cached_property
    def relaxed(self) -> OrderProblem:
        """The problem with zero-time optional ops; no order of it is longer than the best of this problem."""
        kinds = (kind._replace(ticks=0) if i in self.optional else kind for i, kind in enumerate(self.kinds))
        return replace(self, kinds=tuple(kinds)) if self.optional else self

    def less(self, sizes: Sequence[int]) -> OrderProblem:
        """Return the problem with less room on each rank, by `sizes`."""
        limits = tuple(limit - size for limit, size in zip(self.room.limits, sizes, strict=True))
        return replace(self, room=replace(self.room, limits=limits))

    def since(self, arc: OrderArc) -> int:
        """Return the first micro-batch whose op another op waits for, by an arc."""
        return max(arc.since, self.first(arc.before), self.first(arc.after) - arc.distance)

    def first(self, kind: int) -> int:
        """Return the first micro-batch that has an op of a kind."""
        return self.num_microbatches - 1 if isinstance(self.kinds[kind].op, Step) else 0

    def op(self, kind: int, microbatch: int) -> Compute | Step:
        """Return an op of a kind."""
        op = self.kinds[kind].op
        return op if isinstance(op, Step) else Compute(op.phase, op.stage, microbatch)


def order_problem(
    schedule: Schedule,
    costs: StageCosts,
    cluster: Cluster,
    room: ActivationRoom,
    *,
    is_repeated: bool = False,
    optional: Collection[int] = (),
    left_out: Collection[int] = (),
) -> OrderProblem:
    """Return the order problem of a schedule.

    Each message takes the time of a link of its own. Contention for links and hand-over are left out. Both can only
    make a run longer, so a lower bound stays valid.

    Args:
        schedule: Lists from `orderable`.
        costs: Seconds of every op, and bytes of messages.
        cluster: Speeds and links.
        room: Memory per micro-batch, and the limits of the ranks.
        is_repeated: Whether the batch is repeated without a pause, and its period is to be the least.
        optional: Stages whose R may be done for all micro-batches, or for none.
        left_out: Stages whose R is not done.

    Raises:
        ProfileError: The costs lack the seconds of an op.
    """
    rows = (of_one_kind(op) for row in schedule.ops for op in row if isinstance(op, Compute | Step))
    ops = sorted({op for op in rows if costs.seconds(op) > 0 or isinstance(op, Compute)}, key=_depth_in(schedule))
    speeds = [cluster.devices[device].speed for device in schedule.rank_to_device]
    of_all = {op: costs.seconds(op) / speeds[schedule.homes[op.stage][0]] for op in ops}
    ops = [op for op in ops if op.stage not in left_out or not is_phase(op, Phase.RECOMPUTE)]
    ranks = [schedule.homes[op.stage][0] for op in ops]
    seconds = [of_all[op] for op in ops]
    waits = list(_waits(ops, ranks, schedule, costs, cluster))
    work_s = [0.0] * schedule.num_ranks
    for op, op_s in of_all.items():
        work_s[schedule.homes[op.stage][0]] += op_s * (1 if isinstance(op, Step) else schedule.num_microbatches)
    tick_s, is_exact = _tick({*of_all.values(), *(wait_s for _, _, wait_s in waits)}, max(work_s))
    if is_repeated and is_exact:
        tick_s /= math.lcm(*range(1, min(schedule.num_ranks, _MOST_RANKS) + 1))
        is_exact = schedule.num_ranks <= _MOST_RANKS
    kinds = tuple(OrderKind(op, rank, _ticks(op_s, tick_s)) for op, rank, op_s in zip(ops, ranks, seconds, strict=True))
    arcs = [OrderArc(before, after, _ticks(wait_s, tick_s), 0) for before, after, wait_s in waits]
    arcs += [OrderArc(kind, kind, 0, 1) for kind, op in enumerate(ops) if isinstance(op, Compute)]
    arcs += _room_arcs(kinds, room)
    counting = frozenset(rank for rank in range(schedule.num_ranks) if _counts(kinds, rank, room))
    return OrderProblem(
        kinds,
        tuple(arcs),
        schedule.num_microbatches,
        schedule.num_ranks,
        room,
        counting,
        tick_s,
        is_exact,
        is_repeated,
        frozenset(i for i, op in enumerate(ops) if op.stage in optional and is_phase(op, Phase.RECOMPUTE)),
    )


def _depth_in(schedule: Schedule) -> Callable[[Compute | Step], tuple[int, int]]:
    """Return the function that computes how late in a micro-batch an op is."""
    last = 2 * schedule.num_stages

    def depth(op: Compute | Step) -> tuple[int, int]:
        if isinstance(op, Step):
            return last + 1, op.stage
        match op.phase:
            case Phase.FORWARD:
                return op.stage, 0
            case Phase.BACKWARD_WEIGHT:
                return last, op.stage
            case Phase.RECOMPUTE:
                return last - 1 - op.stage, 0
            case _:
                return last - 1 - op.stage, 1

    return depth


def _waits(
    ops: list[Compute | Step], ranks: list[int], schedule: Schedule, costs: StageCosts, cluster: Cluster
) -> Iterator[tuple[int, int, float]]:
    """Yield (earlier kind, later kind, seconds between them) for each dependency within a micro-batch."""
    maker = {gives(op): index for index, op in enumerate(ops) if isinstance(op, Compute)}
    for after, op in enumerate(ops):
        if isinstance(op, Step):
            ends = (before for before, o in enumerate(ops) if isinstance(o, Compute) and o.stage == op.stage)
            yield from ((before, after, 0.0) for before in ends)
            continue
        if is_phase(op, Phase.BACKWARD, Phase.BACKWARD_INPUT):
            own = (before for before, o in enumerate(ops) if o.stage == op.stage and is_phase(o, Phase.RECOMPUTE))
            yield from ((before, after, 0.0) for before in own)
        for message in needs(op, schedule.num_stages):
            before = maker[message]
            yield before, after, travel_s(message, ranks[before], ranks[after], schedule, costs, cluster)


def travel_s(
    message: Message, source: int, target: int, schedule: Schedule, costs: StageCosts, cluster: Cluster
) -> float:
    """Return how long a message takes from rank to rank on a link of its own [s]."""
    if source == target:
        return 0.0
    link = cluster.link(schedule.rank_to_device[source], schedule.rank_to_device[target])
    return link.transfer_s(costs.message_bytes(message))


def _tick(seconds: Collection[float], work_s: float) -> tuple[float, bool]:
    """Return seconds of a tick, and whether all of `seconds` are whole ticks."""
    known = [value for value in seconds if value > 0]
    if not known:
        return 1.0, True
    least = min(known)
    ratios = [Fraction(value / least).limit_denominator(_FINEST) for value in known]
    parts = math.lcm(*(ratio.denominator for ratio in ratios))
    is_whole = all(abs(ratio * least / value - 1) <= _SAME for ratio, value in zip(ratios, known, strict=True))
    if is_whole and parts * max(ratios) <= _MOST_PARTS:
        return least / parts, True
    return work_s / _TICKS, False


def _ticks(seconds: float, tick_s: float) -> int:
    return math.floor(seconds / tick_s + _NOISE)


def _counts(kinds: tuple[OrderKind, ...], rank: int, room: ActivationRoom) -> bool:
    """Whether arcs cannot express a rank's limit: the rank has several stages or R, or W keeps fewer bytes than I."""
    if room.counts_bytes:
        return True
    stages = {kind.op.stage for kind in kinds if kind.rank == rank}
    is_rebuilt = any(kind.rank == rank and is_phase(kind.op, Phase.RECOMPUTE) for kind in kinds)
    return len(stages) > 1 or is_rebuilt or any(room.stages[stage].saved != room.stages[stage].kept for stage in stages)


def _room_arcs(kinds: Sequence[OrderKind], room: ActivationRoom) -> Iterator[OrderArc]:
    """Yield the arcs of a limit on one stage, and on two stages of a rank: the forward of k + n after a backward of k.

    F of k + n comes after B of k if n + 1 micro-batches, and the memory that a B needs beside them, do not fit. The
    first F that must wait for B of micro-batch 0 is followed by ops that also hold gradients, so n is smaller from
    there on. If a stage holds n + 1 micro-batches, the oldest of them must also fit on the later stages of the rank,
    unless its backward there is over: no micro-batch frees memory before its backward.
    """
    stages = {kind.op.stage: index for index, kind in enumerate(kinds) if is_phase(kind.op, Phase.FORWARD)}
    rebuilding = {kind.op.stage: index for index, kind in enumerate(kinds) if is_phase(kind.op, Phase.RECOMPUTE)}
    for stage, index in stages.items():
        rank, own = kinds[index].rank, room.stages[stage]
        limit, inside, gradients = room.limits[rank], own.inside, own.gradients
        held = own.inputs if stage in rebuilding else own.saved
        weights = [before for before, k in enumerate(kinds) if k.op.stage == stage and is_phase(k.op, _WEIGHT)]
        least = min(held, own.kept) if weights else held
        begun = _most(limit if weights else limit - inside, least)
        for before in weights:
            yield from _arcs(before, index, limit, least, gradients, begun)
        for before, kind in enumerate(kinds):
            if kind.rank != rank or not is_phase(kind.op, *_BACKWARDS):
                continue
            other = kind.op.stage
            if other == stage:
                yield from _arcs(before, index, limit - inside, held, gradients, begun)
                if stage in rebuilding:
                    rebuilt = rebuilding[stage]
                    yield from _arcs(before, rebuilt, limit - inside, own.saved, gradients, begun)
            elif other > stage:
                free = limit - room.stages[other].saved - room.stages[other].inside
                yield from _arcs(before, index, free, least, gradients, begun)


def _most(limit: int, size: int) -> int | None:
    return limit // size if size else None


def _arcs(before: int, after: int, limit: int, size: int, gradients: int, begun: int | None) -> Iterator[OrderArc]:
    """Yield the arc of a limit and, for the time from micro-batch `begun` on, the stricter arc with gradients held."""
    most = _most(limit, size)
    if most is None:
        return
    yield OrderArc(before, after, 0, most)
    fewer = (limit - gradients) // size
    if begun is not None and 1 <= fewer < most:
        yield OrderArc(before, after, 0, fewer, max(0, begun - fewer))
