"""Zero bubble, scheduled for given costs under a memory limit: arXiv:2401.10241, section 3.1 (their B is our I).

The paper's heuristic goes through the batch in time and chooses op by op:

* Warm-up: as many F as fit, in time before the first I and in memory, each rank at least one more than the next.
* Then rounds of one F and one I per rank. W is put where a rank would wait for longer than W takes, where a shorter
  wait would make it the rank that has waited longest, and where F needs memory; the remaining W come at the end.

Three questions stay open. May the last F of the warm-up delay the first I? Does a rank that is two F ahead of the
next one leave out an F, if an I would have to wait for it? May W fill a wait that is shorter than W on a rank that
has waited less than others? The builder tries all eight answers, and keeps the list with the shortest longest span of
a rank, from its first F to its last W.

ZB-1p is a limit of p micro-batches, ZB-2p one of 2 p. With equal costs and limit = 4, between ZB-H1's 3 and ZB-H2's 5:

    rank 0  F0 F1 F2 F3 .. I0 W0 F4 I1 W1 F5 I2 W2 I3 W3 I4 W4 I5 W5 ..
    rank 1  .. F0 F1 F2 I0 F3 I1 W0 F4 I2 W1 F5 I3 I4 W2 W3 I5 W4 W5 ..
    rank 2  .. .. F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 W3 W4 W5

The optimizer steps after the last W of its stage. The paper's validation after the step and its integer program are
not part of these lists.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import final

from pipesched.schedules import Schedule, ScheduleError, make_schedule
from pipesched.schedules.builders._spelling import rank_letters, spelled
from pipesched.schedules.common import positive


def zb_auto(
    num_ranks: int,
    num_microbatches: int,
    f: float = 1.0,
    i: float = 1.0,
    w: float = 1.0,
    c: float = 0.0,
    limit: float | None = None,
    kept: float = 1.0,
) -> Schedule:
    """Build the best list of the heuristic for these costs, the same on every rank.

    Args:
        num_ranks: p.
        num_microbatches: m.
        f: Seconds of F; only the ratios of `f`, `i`, `w` and `c` matter.
        i: Seconds of I.
        w: Seconds of W.
        c: Seconds of one transfer.
        limit: Memory limit of a rank, in units of a micro-batch's memory from F to I (M_B), or None for p, as 1F1B.
        kept: Share of M_B that is kept from I to W (M_W / M_B).

    Raises:
        ScheduleError: A count or the limit is below 1, a cost is below 0, or the share is outside of 0 to 1.
    """
    positive(num_ranks=num_ranks, num_microbatches=num_microbatches)
    limit = num_ranks if limit is None else limit
    _require_numbers(f=f, i=i, w=w, c=c, limit=limit, kept=kept)
    seconds = _Seconds(*_integers(f, i, w, c))
    room = _Room(*_integers(1, kept, limit))
    plans = (
        _Plan(num_ranks, num_microbatches, seconds, room, _Choices(*answers)).run()
        for answers in product((False, True), repeat=3)
    )
    best = min(plans, key=_Plan.longest_span)
    rows = ["".join(rank.letters) + "S" for rank in best.ranks]
    return make_schedule("zb_auto", num_ranks, num_microbatches, spelled(rows, rank_letters(num_ranks)))


@dataclass(frozen=True, slots=True)
class _Seconds:
    """Times of ops and transfers as integers of one unit, so that comparisons are exact."""

    f: int
    i: int
    w: int
    c: int


@dataclass(frozen=True, slots=True)
class _Room:
    """Memory of one micro-batch from F to I and from I to W, and the limit of a rank."""

    until_input: int
    until_weight: int
    limit: int


@dataclass(frozen=True, slots=True)
class _Choices:
    """Answers to the three open questions that the module docstring asks."""

    late_forward: bool  # the last F of the warm-up may delay the first I
    leave_out: bool  # a rank two F ahead may leave one out
    fill_short: bool  # W also fills short waits of a rank that has waited less


@final
class _Rank:
    """One rank's growing list with its clock, and the numbers of its next F, I and W."""

    def __init__(self, seconds: _Seconds, room: _Room) -> None:
        self._seconds, self._room = seconds, room
        self.letters: list[str] = []
        self.forward_ends: list[int] = []
        self.input_ends: list[int] = []
        self.num_waiting = 0  # micro-batches between I and W
        self.begin = self.free = self.waited = self._held = 0

    def lacks_room(self, num_forwards: int, num_weights: int = 0) -> bool:
        """Whether the memory is too small for `num_forwards` more F after `num_weights` more W."""
        room = self._room
        return self._held + num_forwards * room.until_input - num_weights * room.until_weight > room.limit

    def forward(self, arrival: int) -> None:
        """Run the next F, not before `arrival`."""
        if not self.forward_ends:
            self.begin = self.free = arrival
        self._run("F", arrival, self._seconds.f)
        self._held += self._room.until_input
        self.forward_ends.append(self.free)

    def input(self, arrival: int) -> None:
        """Run the next I, not before `arrival`."""
        self._run("I", arrival, self._seconds.i)
        self._held += self._room.until_weight - self._room.until_input
        self.num_waiting += 1
        self.input_ends.append(self.free)

    def weight(self) -> None:
        """Run the oldest W that is waiting."""
        self._run("W", self.free, self._seconds.w)
        self._held -= self._room.until_weight
        self.num_waiting -= 1

    def _run(self, letter: str, arrival: int, duration: int) -> None:
        if arrival > self.free:
            self.waited += arrival - self.free
            self.free = arrival
        self.free += duration
        self.letters.append(letter)


@final
class _Plan:
    """One walk of the heuristic through a batch."""

    def __init__(self, p: int, m: int, seconds: _Seconds, room: _Room, choices: _Choices) -> None:
        self.ranks = [_Rank(seconds, room) for _ in range(p)]
        self._m, self._seconds, self._choices = m, seconds, choices

    def run(self) -> _Plan:
        self._warm_up()
        for _ in range(1, self._m):
            self._forwards()
            self._inputs()
        for rank in self.ranks:
            while rank.num_waiting:
                rank.weight()
        return self

    def longest_span(self) -> int:
        return max(rank.free - rank.begin for rank in self.ranks)

    def _warm_up(self) -> None:
        for k, rank in enumerate(self.ranks):
            rank.forward(self._forward_arrival(k))
        extra = self._extra_forwards()
        for k, rank in enumerate(self.ranks):
            for _ in range(extra[k]):
                rank.forward(self._forward_arrival(k))
        self._inputs()

    def _extra_forwards(self) -> list[int]:
        """Return the number of F that each rank runs between its first F and its first I."""
        s, last = self._seconds, len(self.ranks) - 1
        extra = [0] * (last + 1)
        input_end = self.ranks[last].free + s.i
        for k in range(last - 1, -1, -1):
            end, arrival = self.ranks[k].free, input_end + s.c
            while extra[k] < self._m - 1 and not self.ranks[k].lacks_room(extra[k] + 1):
                if end >= arrival or (end + s.f > arrival and not self._choices.late_forward):
                    break
                extra[k] += 1
                end += s.f
            input_end = max(end, arrival) + s.i
        for k in range(1, last + 1):
            if extra[k] < self._m - 1:
                extra[k] = max(0, min(extra[k], extra[k - 1] - 1))
        return extra

    def _forwards(self) -> None:
        """Run one F on every rank that has one left. If a rank leaves it out, so do all ranks before it."""
        first = len(self.ranks)
        while first and len(self.ranks[first - 1].forward_ends) < self._m and not self._leaves_out(first - 1):
            first -= 1
        for k in range(first, len(self.ranks)):
            rank, arrival = self.ranks[k], self._forward_arrival(k)
            while rank.lacks_room(1):
                rank.weight()
            self._fill(rank, arrival)
            rank.forward(arrival)

    def _leaves_out(self, k: int) -> bool:
        """Whether rank k, two F ahead of the next rank, waits for its next I instead of running an F."""
        if not self._choices.leave_out or k + 1 == len(self.ranks):
            return False
        s, rank, after = self._seconds, self.ranks[k], self.ranks[k + 1]
        if len(rank.forward_ends) < len(after.forward_ends) + 2:
            return False
        arrival = after.free + s.f + s.i + s.c
        if rank.free >= arrival:
            return True
        num_weights = 0
        while rank.lacks_room(1, num_weights):
            num_weights += 1
        if rank.free + s.f + num_weights * s.w <= arrival:
            return False
        return arrival - rank.free <= self._worst_wait() - rank.waited

    def _inputs(self) -> None:
        """Run one I on every rank, from the last to the first."""
        for k in range(len(self.ranks) - 1, -1, -1):
            rank, arrival = self.ranks[k], self._input_arrival(k)
            self._fill(rank, arrival)
            if k == 0 and len(rank.forward_ends) == self._m:  # no rank waits for these I
                while rank.num_waiting:
                    rank.weight()
            rank.input(arrival)

    def _fill(self, rank: _Rank, arrival: int) -> None:
        """Put W where `rank` would wait until `arrival`."""
        while rank.num_waiting and rank.free + self._seconds.w <= arrival:
            rank.weight()
        wait = arrival - rank.free
        if rank.num_waiting and wait > 0 and (self._choices.fill_short or wait > self._worst_wait() - rank.waited):
            rank.weight()

    def _worst_wait(self) -> int:
        return max(rank.waited for rank in self.ranks)

    def _forward_arrival(self, k: int) -> int:
        """Return the time at which the next F of rank k has its activation."""
        if k == 0:
            return 0
        return self.ranks[k - 1].forward_ends[len(self.ranks[k].forward_ends)] + self._seconds.c

    def _input_arrival(self, k: int) -> int:
        """Return the time at which the next I of rank k has its gradient."""
        if k + 1 == len(self.ranks):
            return 0
        return self.ranks[k + 1].input_ends[len(self.ranks[k].input_ends)] + self._seconds.c


def _integers(*values: float) -> tuple[int, ...]:
    """Return whole numbers in the same ratios as the printed decimals of `values`."""
    fractions = [Fraction(str(value)) for value in values]
    common = math.lcm(*(fraction.denominator for fraction in fractions))
    return tuple(int(fraction * common) for fraction in fractions)


def _require_numbers(**numbers: float) -> None:
    lowest = {"limit": 1.0}
    highest = {"kept": 1.0}
    faults = []
    for name, value in numbers.items():
        low, high = lowest.get(name, 0.0), highest.get(name, math.inf)
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number or not low <= value <= high:
            upper = "" if high == math.inf else f" and at most {high:g}"
            faults.append(f"{name} is {value!r}, expected a finite number of at least {low:g}{upper}")
    if faults:
        raise ScheduleError("zb_auto: " + "; ".join(faults))
