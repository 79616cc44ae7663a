"""A quick planner of order problems: it searches repeated blocks of due dates, and then moves ops of the best lists.

List scheduling by due dates (`due_scheduling`) leaves no needless gaps. The planner first tries known blocks of due
dates (`due_blocks`): 1F1B, V-Min, V-Half and the like. It then changes the best block at random, on a batch of two
micro-batches per rank, because a good block for a short batch is mostly good for a long batch. If ranks also hold
messages, only lists with room for all messages count (`message_room`). Then the planner moves single ops of the best
lists (`order_annealing`). If gradients are large, it first moves ops as if gradients were small, and then starts from
the best block of each family, because random changes seldom lead from one family to another. Unless the planner is to
be quick, it moves ops of the best result once more, for longer. Each annealing has its own random numbers, which
depend only on the problem.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from random import Random
from typing import Any, TypeVar, final

import numpy as np

from pipesched.schedules.columns import machine_code
from pipesched.simulator.optimum.due_arrays import due_arrays, due_state, due_times, message_state
from pipesched.simulator.optimum.due_blocks import DueBlock, DueBlocks
from pipesched.simulator.optimum.due_scheduling import DOES_NOT_FIT, DUE_PARTS, schedule_by_due
from pipesched.simulator.optimum.message_room import MESSAGE_PARTS, messages_fit
from pipesched.simulator.optimum.op_times import OpTimes
from pipesched.simulator.optimum.order_annealing import ANNEALING_PARTS, anneal_order, order_state
from pipesched.simulator.optimum.order_bound import least_ticks_of_ranks
from pipesched.simulator.optimum.order_problem import OrderProblem

_LARGE_OPS = 3072
"""Ops of a problem, as of p = 8, m = 64 in a V, from which on all tries together have a fixed number of ops."""
_SCHEDULED_OPS = 85_000
"""Ops of all tries together."""
_MOST_TRIES = 8000
"""Largest number of tries."""
_PLAIN_OPS = 100_000
"""Ops of all tries together, and of all moved orders, if nothing compiles."""
_UNSCREENED = 3
"""First blocks of a long batch that are tried at once on the whole of it."""
_SCREENED = 4
"""Other blocks that are tried on the whole batch: the best ones for a short batch."""
_MORE = 2
"""Tries of the best block, if there are several families, over the tries of all others together."""
_MOVED_OPS = 3_000_000
"""Ops of all orders that an annealing tries."""
_MOST_MOVES = 20_000
"""Largest number of orders that an annealing tries."""
_ANNEALINGS = ((1.0, 0.9), (1.0, 0.6), (0.5, 0.6))
"""Warmth of each annealing [mean op times], and the share of its moves on the critical path."""
_LAST_ANNEALINGS = 2 * _ANNEALINGS
"""The annealings of the best lists of all searches."""
_LONGER = 6
"""Moves of these annealings over the moves of the first ones."""
_MOST_CELLS = 256
"""Largest number of micro-batches times ranks whose lists are annealed."""
_STEPS = 10
"""Loop steps per op, for the estimate whether to load machine code."""
_Group = TypeVar("_Group", bound=tuple[Any, ...])


def planned_times(problem: OrderProblem, *, is_quick: bool = False) -> OpTimes | None:
    """Return the starts of the planner's best order [ticks], or None if it finds no order that fits.

    Args:
        problem: The problem.
        is_quick: Whether to skip the last annealings, which take most of the time if ops are few.
    """
    num_ops = problem.num_microbatches * len(problem.kinds)
    left = _SCHEDULED_OPS * max(1.0, _LARGE_OPS / num_ops) ** 0.8 if machine_code.has_numba() else _PLAIN_OPS
    num_short = min(problem.num_microbatches, 2 * problem.num_ranks)
    short_problem = replace(problem, num_microbatches=num_short)
    whole, short = _BlockSearch(problem), _BlockSearch(short_problem)
    least = _about_least(problem, short_problem)
    num_short_ops, is_whole = num_short * len(problem.kinds), num_short == problem.num_microbatches
    for block in _first_blocks(short, short.blocks.usual, is_whole=is_whole):
        left -= num_ops
        if whole.learn(block) <= least:
            break
    if not is_whole:  # the first blocks have been ranked by a short batch
        left -= len(short.blocks.usual) * num_short_ops
    num_tries = min(_MOST_TRIES, int(left / num_short_ops))
    ends = [_searched(problem, (whole, short), whole.best, least, num_tries, Random(0), is_usual=True)]
    if len(short.blocks.families) > 1 and machine_code.has_numba():
        whole.begin(short.blocks.first[0])
        for block in _first_blocks(short, short.blocks.first, is_whole=is_whole):
            whole.learn(block)
        starts = [whole.best, *(_other_starts(whole.best, short) or [whole.best])]
        for number, start in enumerate(starts):
            if min(ends)[0] > least:
                tries = num_tries // (len(starts) - 1) if number else _MORE * num_tries
                ends.append(_searched(problem, (whole, short), start, least, tries, Random(number)))
    fewest, best_starts = min(ends)
    if machine_code.has_numba() and not is_quick:
        whole.keep(fewest, best_starts)
        _anneal(whole, problem, least, _LAST_ANNEALINGS, longer=_LONGER)
        fewest, best_starts = whole.fewest, whole.best_starts
    return None if fewest == DOES_NOT_FIT else due_times(problem, best_starts)


def _searched(
    problem: OrderProblem,
    searches: tuple[_BlockSearch, _BlockSearch],
    start: DueBlock,
    least: int,
    num_tries: int,
    draw: Random,
    *,
    is_usual: bool = False,
) -> tuple[int, list[int]]:
    """Return ticks and starts of the best lists of a search from `start`, with moves of their ops."""
    whole, short = searches
    whole.begin(start)
    short.begin(start)
    if whole.fewest > least:
        _search(whole, short, least, num_tries, draw, is_usual=is_usual)
        _anneal(whole, problem, least, _ANNEALINGS)
    return whole.fewest, whole.best_starts


def _other_starts(best: DueBlock, short: _BlockSearch) -> list[DueBlock]:
    """Return the best fitting block of each other family, the best one first."""
    families = [family for family in short.blocks.families if best not in family]
    timed = [min(((short.ticks_of(block), at) for at, block in enumerate(family))) for family in families]
    blocks = [(ticks, family[at]) for (ticks, at), family in zip(timed, families, strict=True) if ticks < DOES_NOT_FIT]
    return [block for _, block in sorted(blocks, key=itemgetter(0))]


def _anneal(
    whole: _BlockSearch,
    problem: OrderProblem,
    least: int,
    annealings: Sequence[tuple[float, float]],
    *,
    longer: int = 1,
) -> None:
    """Move ops of the best lists, where that does not take too long."""
    if problem.is_repeated or problem.num_ranks * problem.num_microbatches > _MOST_CELLS:
        return
    num_ops = problem.num_microbatches * len(problem.kinds)
    num_moves = min(_MOST_MOVES, (_MOVED_OPS if machine_code.has_numba() else _PLAIN_OPS) // num_ops)
    for warmth, critical_share in annealings:
        if least < whole.fewest < DOES_NOT_FIT:
            whole.anneal(longer * num_moves, warmth, critical_share, least)


def _about_least(problem: OrderProblem, short: OrderProblem) -> int:
    """Return ticks at which lists are good enough: the bound of a short batch plus the work on the rest."""
    num_more = problem.num_microbatches - short.num_microbatches
    works = (sum(problem.kinds[k].ticks for k in kinds if not problem.first(k)) for kinds in problem.of_rank)
    return max(least + num_more * work for least, work in zip(least_ticks_of_ranks(short), works, strict=True))


def _first_blocks(short: _BlockSearch, blocks: Sequence[DueBlock], *, is_whole: bool) -> Iterator[DueBlock]:
    """Yield the blocks to try first: all where the short batch is the whole one, else some that are good for it."""
    yield from blocks[:_UNSCREENED]
    others = blocks[_UNSCREENED:-1]
    yield from others if is_whole else sorted(others, key=short.ticks_of)[:_SCREENED]
    yield blocks[-1]


def _search(
    whole: _BlockSearch, short: _BlockSearch, least: int, num_tries: int, draw: Random, *, is_usual: bool
) -> None:
    """Change the best block at random for a short batch, and try each improvement on the whole batch."""
    for count in range(num_tries):
        block = short.blocks.changed(short.best, draw, shifts_ops=count > num_tries // 3, is_usual=is_usual)
        fewest = short.fewest
        if short.learn(block) < fewest and whole.learn(block) <= least:
            break


@final
class _BlockSearch:
    """The times of the lists of blocks, of one problem.

    Attributes:
        blocks: The blocks.
        fewest: Ticks of the best lists; `DOES_NOT_FIT` before any fit.
        best: The last block with the fewest ticks.
        best_starts: Starts of its lists, by op [ticks].
    """

    def __init__(self, problem: OrderProblem) -> None:
        self._num_microbatches, self._is_repeated = problem.num_microbatches, problem.is_repeated
        self._num_ops, self._num_annealings = problem.num_microbatches * len(problem.kinds), 0
        arrays, due = due_arrays(problem), due_arrays(problem, is_w_due=True)
        self._numbers = arrays
        by_treatment = (arrays, due, due._replace(is_filling=[0] * len(problem.kinds)))
        self._arrays = [*map(_as_int64s, by_treatment)]  # of W: no due dates; due dates, but filling gaps; in turn
        self._state: Any = _as_int64s(due_state(problem))
        self._messages_state = _as_int64s(message_state(problem, arrays))
        sizes = list(map(max, arrays.sent, arrays.received))
        self._largest_messages = [max(sizes[kind] for kind in kinds) for kinds in problem.of_rank]
        self.blocks = DueBlocks(problem, arrays.ticks, has_messages=any(sizes))
        self.fewest, self.best, self.best_starts = DOES_NOT_FIT, self.blocks.first[0], list[int]()

    def begin(self, block: DueBlock) -> None:
        """Forget all blocks but the given one."""
        self.fewest = DOES_NOT_FIT
        self.learn(block)

    def keep(self, fewest: int, starts: list[int]) -> None:
        """Take known starts as the best ones, with their length `fewest` [ticks]."""
        self.fewest, self.best_starts = fewest, starts

    def learn(self, block: DueBlock) -> int:
        """Return the length of a block's lists [ticks], and keep the block if no other is shorter."""
        ticks = self.ticks_of(block)
        if ticks < self.fewest:
            self.best_starts = self._state.starts.tolist()
        if ticks <= self.fewest and ticks < DOES_NOT_FIT:
            self.best, self.fewest = block, ticks
        return ticks

    def anneal(self, num_moves: int, warmth: float, critical_share: float, least: int) -> None:
        """Try `num_moves` moves of single ops of the best lists; stop early at `least` ticks."""
        state: Any = _as_int64s(order_state(self._numbers, self.best_starts, self._num_microbatches))
        self._num_annealings += 1
        options = num_moves, warmth * self.blocks.unit, critical_share, least, self._num_annealings
        fewest = machine_code.run_loop(
            anneal_order, self._arrays[0], state, self._messages_state, self._num_microbatches,
            *options, num_steps=_STEPS * num_moves * self._num_ops, parts=ANNEALING_PARTS,
        )  # fmt: skip
        self.fewest, self.best_starts = int(fewest), state.best.tolist()

    def ticks_of(self, block: DueBlock) -> int:
        """Return the length of a block's lists [ticks], or `DOES_NOT_FIT`."""
        arrays = self._arrays[1 + block.is_w_in_turn if block.lags else 0]
        limits = arrays.limits - np.array([int(block.reserve * size) for size in self._largest_messages], np.int64)
        by_kind, by_microbatch, lags = self.blocks.dues(block)
        dues = (np.array(by_kind, np.float64)[:, None] + np.array(by_microbatch, np.float64)).ravel()
        for kind, lag in lags:
            dues[kind * self._num_microbatches] += lag
        options = block.is_patient, block.is_strict, self._is_repeated
        num_steps = _STEPS * self._num_ops
        ticks = machine_code.run_loop(
            schedule_by_due, arrays, self._state, self._num_microbatches, dues, limits, *options,
            num_steps=num_steps, parts=DUE_PARTS,
        )  # fmt: skip
        if ticks == DOES_NOT_FIT or not any(self._largest_messages):
            return int(ticks)
        orders = self._state.kinds, self._state.starts
        has_room = machine_code.run_loop(
            messages_fit, self._arrays[0], self._messages_state, *orders, self._num_microbatches,
            num_steps=num_steps, parts=MESSAGE_PARTS,
        )  # fmt: skip
        return int(ticks) if has_room else DOES_NOT_FIT


def _as_int64s(group: _Group) -> _Group:
    """Return a tuple of the same type with arrays of int64 in place of sequences of whole numbers."""
    return type(group)(*(np.array(numbers, np.int64) for numbers in group))
