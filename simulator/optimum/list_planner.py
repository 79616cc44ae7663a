"""A quick planner of order problems: blocks of due dates that are repeated, of many the best, and moves of its ops.

A block has a due date for each op of a micro-batch, and the next micro-batch is due an interval later
(arXiv:2405.15362, section 3). Along the way of a micro-batch, from F of the first stage to the backward of the first
stage, due dates are stretched: each passage through the ranks has a factor of what its ops take, and a gap before it.
On longer ways more is held. Lists that take what is due first and fits (`due_scheduling`) have no needless gaps.

Some blocks are tried first, those of 1F1B, V-Min, V-Half and the like. From then on the best one is changed at random:
its stretches, gaps and interval, and the due dates of single ops, with two micro-batches for each rank, as a block
that is good for a short batch mostly is for a long one. In the end single ops of the best lists are moved
(`order_annealing`). The same numbers are drawn every time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from random import Random
from typing import Any, final

from pipesched.schedules import Compute, Phase, machine_code
from pipesched.simulator.optimum.due_arrays import due_arrays, due_state, due_times, recomputed_before
from pipesched.simulator.optimum.due_scheduling import DOES_NOT_FIT, DueArrays, DueState, fits_by_due, schedule_by_due
from pipesched.simulator.optimum.op_times import OpTimes
from pipesched.simulator.optimum.order_annealing import ANNEALING_PARTS, OrderState, anneal_order, order_state
from pipesched.simulator.optimum.order_bound import least_ticks_of_ranks
from pipesched.simulator.optimum.order_problem import OrderProblem

_LARGE_OPS, _SCHEDULED_OPS, _MOST_TRIES = 3072, 70_000, 4000
"""Ops of p = 8, m = 64 in a V; ops of all tries together for as many or more; the most tries."""
_MOVED_OPS, _MOST_MOVES, _ANNEALINGS = 3_000_000, 20_000, ((0.5, 0.9), (0.5, 0.6), (0.1, 0.6))
"""Ops of all orders that an annealing tries; the most orders; how warm each is, in mean times of ops, and which share
of its moves is on the critical path."""
_MOST_CELLS = 256
"""Micro-batches times ranks above which that would take too long."""
_STEPS = 10
"""Steps of a loop that count for an op, where machine code is loaded after so many."""
_PLAIN_OPS = 100_000
"""Ops to schedule for one problem where nothing compiles."""
_STRETCHES = ((1.0, 1.0), (2.0, 1.0), (1.0, 2.0), (1.5, 1.0), (1.5, 1.5), (2.0, 2.0), (3.0, 1.0), (3.0, 3.0))
"""Stretches of odd and even passages that are tried first."""
_UNSCREENED, _SCREENED = 3, 4
"""Blocks that are tried first on the whole of a long batch; the best of others, for a short one, that are, too."""
_INTERVALS = (1.25, 1.5, 2.0, 3.0)
"""Longer intervals that are tried with the shortest way."""


@final
@dataclass(frozen=True, slots=True)
class _Block:
    """Due dates; gaps and shifts in what ops take in the mean.

    Attributes:
        stretches: Factor of what the ops of a passage take, by passage.
        gaps: Gap before a passage.
        interval: From one micro-batch to the next, in what the busiest rank works on one.
        is_patient: Whether ranks leave out a W that would delay others.
        is_strict: Whether ranks wait for the forward or backward that is due first.
        shifts: How much later ops are due, in the order of the way.
    """

    stretches: tuple[float, ...]
    gaps: tuple[float, ...]
    interval: float
    is_patient: bool
    is_strict: bool
    shifts: tuple[float, ...]


def planned_times(problem: OrderProblem) -> OpTimes:
    """Return the starts of the best order that the planner makes [ticks]."""
    num_ops = problem.num_microbatches * len(problem.kinds)
    left = _SCHEDULED_OPS * max(1.0, _LARGE_OPS / num_ops) ** 0.8 if machine_code.has_numba() else _PLAIN_OPS
    num_short = min(problem.num_microbatches, 2 * problem.num_ranks)
    short_problem = replace(problem, num_microbatches=num_short)
    whole, short = _BlockSearch(problem), _BlockSearch(short_problem)
    least = _about_least(problem, short_problem)
    num_short_ops, blocks = num_short * len(problem.kinds), whole.first_blocks()
    if num_short_ops < num_ops:
        left -= len(blocks) * num_short_ops
        blocks = _screened(blocks, short)
    for block in blocks:
        left -= num_ops
        if whole.learn(block) <= least:
            break
    if whole.fewest > least:
        _search(whole, short, least, min(_MOST_TRIES, int(left / num_short_ops)))
    num_moves = int((_MOVED_OPS if machine_code.has_numba() else _PLAIN_OPS) / num_ops)
    if problem.num_ranks * problem.num_microbatches <= _MOST_CELLS and not problem.is_repeated:
        for warmth, critical_share in _ANNEALINGS:
            if whole.fewest > least:
                whole.anneal(min(_MOST_MOVES, num_moves), warmth, critical_share, least)
    return due_times(problem, whole.best_starts)


def _about_least(problem: OrderProblem, short: OrderProblem) -> int:
    """Return ticks at which lists are good enough: what a short batch takes at least, and the work on the rest."""
    num_more = problem.num_microbatches - short.num_microbatches
    works = (sum(problem.kinds[k].ticks for k in kinds if not problem.first(k)) for kinds in problem.of_rank)
    return max(least + num_more * work for least, work in zip(least_ticks_of_ranks(short), works, strict=True))


def _screened(blocks: list[_Block], short: _BlockSearch) -> list[_Block]:
    """Return the first few blocks, of the others those that are the best for a short batch, and the last one."""
    ranked = sorted(blocks[_UNSCREENED:-1], key=short.ticks_of)
    return [*blocks[:_UNSCREENED], *ranked[:_SCREENED], blocks[-1]]


def _search(whole: _BlockSearch, short: _BlockSearch, least: int, num_tries: int) -> None:
    """Change the best block at random, for a short batch, and try what is better there for the whole one."""
    draw = Random(0)
    short.learn(whole.best)
    for count in range(num_tries):
        block = short.changed(short.best, draw, shifts_ops=count > num_tries // 3)
        fewest = short.fewest
        if short.learn(block) < fewest and whole.learn(block) <= least:
            break


@final
class _BlockSearch:
    """The blocks of one problem, and how long their lists take.

    Attributes:
        fewest: Ticks of the best lists; `DOES_NOT_FIT`: there are none yet.
        best: The block of those that came last.
        best_starts: Their starts, by op [ticks].
    """

    def __init__(self, problem: OrderProblem) -> None:
        self._num_microbatches, self._is_repeated = problem.num_microbatches, problem.is_repeated
        arrays = due_arrays(problem)
        self._num_ops = problem.num_microbatches * len(problem.kinds)
        self._lists = arrays, due_state(problem)
        self._state = self._lists[1]
        self._num_kinds = len(problem.kinds)
        self._way = _way(problem)
        self._passages = _passages(problem, self._way)
        delays = {(arc.before, arc.after): arc.ticks for arc in problem.arcs if not arc.distance}
        taken = [arrays.ticks[kind] for kind in self._way]
        self._unit = unit = max(1.0, sum(taken) / len(taken))
        self._ticks = [ticks / unit for ticks in taken]
        self._delays = [0.0, *(delays.get(pair, 0) / unit for pair in zip(self._way, self._way[1:], strict=False))]
        works = (sum(arrays.ticks[k] for k in kinds if not arrays.firsts[k]) for kinds in problem.of_rank)
        self._interval = max(1.0, max(works) / unit)
        self.fewest, self.best, self.best_starts = DOES_NOT_FIT, self.first_blocks()[0], list[int]()

    def first_blocks(self) -> list[_Block]:
        """Return those that are tried first; with the last one, micro-batches come one after the other."""
        num_passages = self._passages[-1] + 1
        gaps, shifts = (0.0,) * num_passages, (0.0,) * len(self._way)
        rules = ((False, False), (True, False), (True, True))
        blocks = [
            _Block(tuple(stretch[i % 2] for i in range(num_passages)), gaps, 1.0, is_patient, is_strict, shifts)
            for stretch, (is_patient, is_strict) in product(_STRETCHES, rules)
        ]
        alone = 2 * (sum(self._ticks) + sum(self._delays)) / self._interval
        return blocks + [replace(blocks[0], interval=interval) for interval in (*_INTERVALS, alone)]

    def changed(self, block: _Block, draw: Random, *, shifts_ops: bool) -> _Block:
        """Return a block with something changed at random, or now and then another one."""
        if draw.random() < 0.15:
            stretches = tuple(draw.choice((1.0, 1.0, 1.5, 2.0, 3.0)) for _ in block.stretches)
            gaps = tuple(draw.choice((0.0, 0.0, 1.0, 2.0)) for _ in block.gaps)
            interval, is_patient = draw.choice((0.8, 0.9, 1.0, 1.0, 1.1)), draw.random() < 0.5
            return _Block(stretches, gaps, interval, is_patient, block.is_strict, (0.0,) * len(block.shifts))
        at, chance = draw.randrange(len(block.gaps)), draw.random()
        if shifts_ops and draw.random() < 0.5:
            shifts = [*block.shifts]
            for _ in range(draw.choice((1, 1, 2, 3))):
                first = draw.randrange(len(shifts))
                last = first + 1 if draw.random() < 0.5 else len(shifts)
                shift = draw.choice((-3.0, -2.0, -1.0, -0.5, 0.5, 1.0, 2.0, 3.0))
                shifts[first:last] = [value + shift for value in shifts[first:last]]
            return replace(block, shifts=tuple(shifts))
        if chance < 0.5:
            stretch = max(0.3, block.stretches[at] + draw.choice((-0.5, -0.25, 0.25, 0.5)))
            return replace(block, stretches=(*block.stretches[:at], stretch, *block.stretches[at + 1 :]))
        if chance < 0.85:
            gap = max(0.0, block.gaps[at] + draw.choice((-1.0, -0.5, 0.5, 1.0, 2.0)))
            return replace(block, gaps=(*block.gaps[:at], gap, *block.gaps[at + 1 :]))
        if chance < 0.95:
            return replace(block, interval=block.interval * draw.choice((0.9, 0.95, 1.05, 1.1)))
        if chance < 0.98:
            return replace(block, is_patient=not block.is_patient)
        return replace(block, is_strict=not block.is_strict)

    def learn(self, block: _Block) -> int:
        """Try a block, keep it if none is better, and return the fewest ticks that are known."""
        ticks = self.ticks_of(block)
        if ticks < self.fewest:
            self.best_starts = _in_list(self._state.starts)
        if ticks <= self.fewest and ticks < DOES_NOT_FIT:
            self.best, self.fewest = block, ticks
        return self.fewest

    def anneal(self, num_moves: int, warmth: float, critical_share: float, least: int) -> None:
        """Move single ops of the best lists, so many times, or until they take no longer than the least [ticks]."""
        in_arrays = machine_code.is_hot(_STEPS * num_moves * self._num_ops)
        arrays = self._in_numpy()[0] if in_arrays else self._lists[0]
        state = order_state(arrays, self.best_starts, self._num_microbatches)
        state = OrderState(*map(_in_numpy, state)) if in_arrays else state
        loop = machine_code.compiled(anneal_order, ANNEALING_PARTS) if in_arrays else anneal_order
        options = num_moves, warmth * self._unit, critical_share, least
        self.fewest = int(loop(arrays, state, self._num_microbatches, *options))
        self.best_starts = _in_list(state.best)

    def ticks_of(self, block: _Block) -> int:
        """Return what the lists of a block take [ticks]; `DOES_NOT_FIT` where they do not fit."""
        offsets = self._offsets(block)
        options = block.interval * self._interval, block.is_patient, block.is_strict, self._is_repeated
        if not machine_code.is_hot(_STEPS * self._num_ops):
            arrays, self._state = self._lists
            return schedule_by_due(arrays, self._state, self._num_microbatches, offsets, *options)
        arrays, self._state = self._in_numpy()
        loop = machine_code.compiled(schedule_by_due, (fits_by_due,))
        return int(loop(arrays, self._state, self._num_microbatches, _in_numpy(offsets, float), *options))

    def _offsets(self, block: _Block) -> list[float]:
        """Return when each kind of op is due, in what ops take in the mean; what waits for another is due later."""
        offsets, due, last = [0.0] * self._num_kinds, 0.0, 0.0
        for at, kind in enumerate(self._way):
            passage = self._passages[at]
            if at:
                is_same = passage == self._passages[at - 1]
                factor, gap = (block.stretches[passage], 0.0) if is_same else (1.0, block.gaps[passage])
                due += self._ticks[at - 1] * factor + self._delays[at] + gap
            last = max(last, due + block.shifts[at]) + 1e-7
            offsets[kind] = last
        return offsets

    def _in_numpy(self) -> tuple[DueArrays, DueState]:
        if not hasattr(self, "_arrays"):
            arrays, state = self._lists
            self._arrays = DueArrays(*map(_in_numpy, arrays)), DueState(*map(_in_numpy, state))
        return self._arrays


def _way(problem: OrderProblem) -> list[int]:
    """Return the forwards and backwards in the order in which a micro-batch goes through them."""
    merged = {*recomputed_before(problem).values()}
    places = {}
    for index, kind in enumerate(problem.kinds):
        if index not in merged and isinstance(kind.op, Compute) and kind.op.phase is not Phase.BACKWARD_WEIGHT:
            is_forward = kind.op.phase is Phase.FORWARD
            places[index] = (0, kind.op.stage) if is_forward else (1, -kind.op.stage)
    return sorted(places, key=places.__getitem__)


def _passages(problem: OrderProblem, way: list[int]) -> list[int]:
    """Return of each op of the way how often it has gone through the ranks before, there or back."""
    num_stages = len(way) // 2
    return [
        place % num_stages // problem.num_ranks + place // num_stages * -(-num_stages // problem.num_ranks)
        for place in range(len(way))
    ]


def _in_numpy(numbers: Sequence[float], kind: type[int] | type[float] = int) -> Any:
    import numpy as np

    return np.array(numbers, dtype=np.int64 if kind is int else np.float64)


def _in_list(numbers: Any) -> list[int]:
    return [*numbers] if isinstance(numbers, list) else numbers.tolist()
