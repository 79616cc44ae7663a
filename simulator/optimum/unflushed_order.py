"""The least period of a run without a flush, and how far ahead each rank runs for it.

    rank k    F of i + h - 1, B of i, Step, F of i + h, B of i + 1, Step, ..    h micro-batches in flight, h - 1 ahead

One stage per rank, whole backwards, a Step after each, or one without time after several. F and B of micro-batch i
start a period T after F and B of micro-batch i - 1 on every rank; the first F starts at f, the first B at b, and
transfers take c:

    f(k) + F + c <= f(k + 1)                b(k + 1) + B + c <= b(k)
    f(k) + F + (h(k) - 1) T <= b(k)         b(k) + B + Step <= f(k) + h(k) T

Such starts exist unless the waits of a cycle are longer than its periods. A cycle goes down the ranks from j to k with
the forwards, and back with the backwards: with the way (j, k) of all passed ops, and the Step of j,

    T >= way(j, k) / (h(j) - h(k) + 1)      for all j <= k

For a given T, the last rank needs h = 1. Going back from there, each rank takes the least h that satisfies this; no
rank can have a smaller h. A rank that runs ahead, h > 1, may have weights to predict, or to keep for its backwards: its
forwards or Steps then take longer, which an order of another kind may avoid for some of its micro-batches. The period
of any order has three lower bounds: the work of a rank, the time that the messages of one micro-batch occupy one
direction of a link, and a round trip from rank j to the last rank and back, divided by the micro-batches that fit on
rank j (Little's law). With a period no shorter than the second bound, no message waits for the message before it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias, final

from pipesched.profiles.clusters import Cluster, Link
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Schedule, make_generated_schedule
from pipesched.schedules.builders import without_flush
from pipesched.schedules.ops import Compute, Message, Op, Payload, Phase, Step
from pipesched.schedules.transforms import compute_only
from pipesched.simulator import SimulationError

FlightCounts: TypeAlias = tuple[int, ...]
"""The micro-batches in flight on each rank."""
_NOISE = 1e-9
"""Relative rounding by which a quotient may be above a whole number that it is."""


@final
@dataclass(frozen=True, slots=True)
class UnflushedRule:
    """Which weights the ops of a run read, and after which backwards its stages step.

    Attributes:
        accumulate: Micro-batches for each Step. With 1, a forward reads the newest weights. With more, it reads the
            weights before the last Step, so at most `accumulate` + 1 micro-batches are in flight.
        is_stashed: Whether a backward reads the weights of its forward; otherwise it reads the newest weights.
        beyond: Steps that a forward looks beyond its backward, by rank, or None without prediction.
        backward_looks: Steps that a backward looks ahead, by rank.
    """

    accumulate: int
    is_stashed: bool
    beyond: tuple[int, ...] | None = None
    backward_looks: tuple[int, ...] = ()

    @property
    def most_in_flight(self) -> float:
        """The most micro-batches in flight with which no op reads weights before the Step that makes them."""
        return math.inf if self.accumulate == 1 else self.accumulate + 1


@final
@dataclass(frozen=True, slots=True)
class UnflushedRun:
    """Times of one micro-batch on each rank [s].

    Attributes:
        forward_s: Forward, by rank.
        backward_s: Backward, by rank.
        step_s: Step, by rank.
        predict_s: Extra time of a forward if more than one micro-batch is in flight, by rank.
        copy_s: Extra time of a Step if more than one micro-batch is in flight, by rank.
        travel_s: Transfers there and back between each rank and the next.
        occupied_s: Longest time that the messages of one micro-batch occupy one direction of a link.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    step_s: tuple[float, ...]
    predict_s: tuple[float, ...]
    copy_s: tuple[float, ...]
    travel_s: tuple[float, ...]
    occupied_s: float = 0.0

    def way_s(self, first: int, last: int, in_flight: Sequence[float]) -> float:
        """Return the seconds of a micro-batch from one rank down to another and back, plus the following Step."""
        passed, ahead = slice(first, last + 1), [rank for rank in range(first, last + 1) if in_flight[rank] > 1]
        ops_s = math.fsum((*self.forward_s[passed], *self.backward_s[passed], self.step_s[first]))
        more_s = math.fsum(self.predict_s[rank] + (self.copy_s[rank] if rank == first else 0.0) for rank in ahead)
        return ops_s + more_s + math.fsum(self.travel_s[first:last])

    def period_s(self, in_flight: Sequence[int]) -> float:
        """Return the period with these micro-batches in flight on each rank, or infinity if the ranks deadlock."""
        cycles_s = (
            self.way_s(j, k, in_flight) / (in_flight[j] - in_flight[k] + 1)
            if in_flight[j] >= in_flight[k]
            else math.inf
            for j, k in self._pairs()
        )
        return max(self.occupied_s, *cycles_s)

    def in_flight(self, period_s: float) -> FlightCounts | None:
        """Return the fewest micro-batches in flight on each rank that keep a period, or None if no number does."""
        counts = [1] * len(self.forward_s)
        for j in reversed(range(len(counts))):
            while (needed := self._needed(j, counts, period_s)) > counts[j]:
                counts[j] = needed
            if self._periods(self.way_s(j, j, counts), period_s) > 1:
                return None
        return tuple(counts)

    def _needed(self, rank: int, counts: Sequence[int], period_s: float) -> int:
        """Return the micro-batches in flight that a rank needs to keep a period; later ranks have `counts`."""
        return max(
            (
                counts[k] - 1 + self._periods(self.way_s(rank, k, counts), period_s)
                for k in range(rank + 1, len(counts))
            ),
            default=1,
        )

    @staticmethod
    def _periods(seconds: float, period_s: float) -> int:
        return math.ceil(seconds / period_s * (1 - _NOISE))

    def periods(self) -> list[float]:
        """Return all periods at which the micro-batches in flight of a rank may change, from the lower bound up."""
        num_ranks = len(self.forward_s)
        least_s = self.bound_s([math.inf] * num_ranks)
        shares = {least_s}
        longer_s = math.inf
        for num_ahead in range(num_ranks) if any((*self.predict_s, *self.copy_s)) else (num_ranks,):
            counts = [2] * num_ahead + [1] * (num_ranks - num_ahead)  # ranks that run ahead come first
            alone_s = max((self.way_s(num_ahead, k, counts) for k in range(num_ahead, num_ranks)), default=0.0)
            shortest_s = max(least_s, alone_s)  # that one after them need not
            for j, k in self._pairs():
                way_s = self.way_s(j, k, counts)
                few, many = (max(1, int(way_s / seconds)) for seconds in (longer_s, shortest_s))
                shares.update(way_s / n for n in range(few, many + 2))
            longer_s = shortest_s
        return sorted(period_s for period_s in shares if period_s >= least_s)

    def bound_s(self, limits: Sequence[float]) -> float:
        """Return a lower bound of the period of any order, with the given limits of micro-batches in flight by rank."""
        ranks, alone = range(len(self.forward_s)), [1] * len(self.forward_s)
        works = (self.way_s(rank, rank, alone) for rank in ranks)
        trips = ((self.way_s(rank, ranks[-1], alone) - self.step_s[rank]) / limits[rank] for rank in ranks)
        return max(self.occupied_s, *works, *trips)

    def _pairs(self) -> Iterator[tuple[int, int]]:
        return ((j, k) for k in range(len(self.forward_s)) for j in range(k + 1))


def unflushed_run(schedule: Schedule, costs: StageCosts, cluster: Cluster) -> UnflushedRun:
    """Return the times of each rank of a schedule with one stage per rank; messages have links of their own."""
    devices = [cluster.devices[device] for device in schedule.rank_to_device]

    def seconds(op_of: Callable[[int], Compute | Step]) -> tuple[float, ...]:
        return tuple(costs.seconds(op_of(rank)) / device.speed for rank, device in enumerate(devices))

    def messages(rank: int) -> list[tuple[Link, int]]:
        here, there = schedule.rank_to_device[rank : rank + 2]
        output, gradient = Message(Payload.ACTIVATION, rank, 0), Message(Payload.GRADIENT, rank + 1, 0)
        ways = ((cluster.link(here, there), output), (cluster.link(there, here), gradient))
        return [(link, costs.message_bytes(message)) for link, message in ways]

    between = [messages(rank) for rank in range(schedule.num_ranks - 1)]

    rule = unflushed_rule(schedule)
    beyond, looks = rule.beyond or (0,) * schedule.num_ranks, rule.backward_looks or (0,) * schedule.num_ranks
    alone_s = seconds(lambda rank: Compute(Phase.FORWARD, rank, 0, 1, beyond[rank]))
    ahead_s = seconds(lambda rank: Compute(Phase.FORWARD, rank, 0, 1, beyond[rank] + (rule.beyond is not None)))
    copied_s = tuple(
        costs.seconds(Step(rank), copies=rule.is_stashed) / device.speed for rank, device in enumerate(devices)
    )
    step_s = seconds(Step)
    return UnflushedRun(
        alone_s,
        seconds(lambda rank: Compute(Phase.BACKWARD, rank, 0, 1, looks[rank])),
        step_s,
        tuple(later - sooner for later, sooner in zip(ahead_s, alone_s, strict=True)),
        tuple(later - sooner for later, sooner in zip(copied_s, step_s, strict=True)),
        tuple(sum(link.transfer_s(size) for link, size in ways) for ways in between),
        max((link.occupied_s(size) for ways in between for link, size in ways), default=0.0),
    )


def unflushed_in_flight(schedule: Schedule) -> FlightCounts:
    """Return how many micro-batches are in flight on each rank of a run in PipeDream's order."""
    firsts = (
        next((place for place, op in enumerate(_computes(row)) if op.phase is not Phase.FORWARD), 0)
        for row in schedule.ops
    )
    return tuple(max(1, first) for first in firsts)


def unflushed_rule(schedule: Schedule) -> UnflushedRule:
    """Return the rule for reading weights and for stepping in a run in PipeDream's order.

    Raises:
        SimulationError: The schedule is not a run in PipeDream's order with one stage per rank.
    """
    own, rows = unflushed_in_flight(schedule), compute_only(schedule).ops
    for is_stashed in (True, False):
        rule = _guessed_rule(rows, own, is_stashed=is_stashed)
        if rule is not None and _made(own, schedule.num_microbatches, schedule.name, rule).ops == rows:
            return rule
    raise SimulationError(
        f"{schedule.name}: got a run without a flush that optimize does not cover, expected one stage per rank, whole "
        "backwards in PipeDream's order and steps after them; try pipedream, pipedream_2bw or vanilla_1f1b"
    )


def unflushed_lists(schedule: Schedule, in_flight: FlightCounts, num_microbatches: int, name: str) -> Schedule:
    """Return the lists of a run with `in_flight` micro-batches on each rank, and the weight rule of `schedule`.

    Args:
        schedule: The schedule; each backward reads the weights of its forward, or the newest weights.
        in_flight: Micro-batches in flight, by rank; at least 1, and no more than the rule allows.
        num_microbatches: Micro-batches of the run.
        name: Name of the lists.

    Raises:
        SimulationError: The schedule is not a run in PipeDream's order with one stage per rank.
    """
    lists = _made(in_flight, num_microbatches, name, unflushed_rule(schedule))
    return replace(lists, traits=schedule.traits)


def least_period(run: UnflushedRun, fits: Callable[[FlightCounts], bool]) -> FlightCounts | None:
    """Return the micro-batches in flight of the shortest period whose lists fit, or None if no period fits.

    Args:
        run: Times of each rank.
        fits: Whether lists with these micro-batches in flight fit; lists with fewer must fit, too.
    """

    def is_kept(period_s: float) -> bool:
        in_flight = run.in_flight(period_s)
        return in_flight is not None and fits(in_flight)

    periods = run.periods()
    at = bisect_left(periods, True, key=is_kept)
    return run.in_flight(periods[at]) if at < len(periods) else None


def _guessed_rule(rows: tuple[tuple[Op, ...], ...], own: FlightCounts, *, is_stashed: bool) -> UnflushedRule | None:
    """Return the rule that matches the first ops of each rank, or None without such ops."""
    firsts = [
        [next((op for op in _computes(row) if op.phase is phase), None) for row in rows]
        for phase in (Phase.FORWARD, Phase.BACKWARD)
    ]
    forwards, backwards = ([op.lookahead for op in ops if op is not None] for ops in firsts)
    accumulate = next((place for place, op in enumerate(_backwards_and_steps(rows[0])) if isinstance(op, Step)), 0)
    if not accumulate or not len(forwards) == len(backwards) == len(rows):
        return None
    if not any(forwards + backwards):
        return UnflushedRule(accumulate, is_stashed)
    beyond = tuple(looked - (number - 1) for looked, number in zip(forwards, own, strict=True))
    return UnflushedRule(accumulate, is_stashed, beyond, tuple(backwards))


def _made(in_flight: FlightCounts, num_microbatches: int, name: str, rule: UnflushedRule) -> Schedule:
    delay = 1 if len(in_flight) > 1 else 0

    def ops(rank: int) -> Iterator[Op]:
        ahead = in_flight[rank] - 1
        looks = (0, 0) if rule.beyond is None else (rule.beyond[rank] + ahead, rule.backward_looks[rank])

        def read(i: int) -> int:
            return max(0, i - ahead if rule.accumulate == 1 else i // rule.accumulate - delay)

        forwards = (Compute(Phase.FORWARD, rank, i, read(i), looks[0]) for i in range(num_microbatches))
        backwards = (
            Compute(Phase.BACKWARD, rank, i, read(i) if rule.is_stashed else i, looks[1])
            for i in range(num_microbatches)
        )
        return without_flush(forwards, backwards, ahead, rule.accumulate)

    rows = [partial(ops, rank) for rank in range(len(in_flight))]
    return make_generated_schedule(name, len(rows), num_microbatches, rows).held()


def _backwards_and_steps(row: Sequence[Op]) -> Iterator[Op]:
    return (op for op in row if isinstance(op, Step) or (isinstance(op, Compute) and op.phase is Phase.BACKWARD))


def _computes(row: Sequence[Op]) -> Iterator[Compute]:
    return (op for op in row if isinstance(op, Compute))
