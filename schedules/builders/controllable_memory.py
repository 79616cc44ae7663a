"""V-Half and V-Min, a V with a half and a third of 1F1B's activations: arXiv:2405.15362, section 3.

A schedule repeats a *building block*: the F and I of one micro-batch on the two chunks of every rank. The next
micro-batch does the same 6 slots later, as many as it has ops on a rank, and each W takes the first slot left free.
So the block's length decides how many micro-batches are in flight. The blocks of V-Min and of V-Half for p = 4 ranks,
F and I of the chunk on the way down, f and i of that on the way up:

    rank 0  F . . . . . . f i . . . . . . I
    rank 1  . F . . . . f . . i . . . . I .
    rank 2  . . F . . f . . . . i . . I . .
    rank 3  . . . F f . . . . . . i I . . .

    rank 0  F . . . . . . . . . f . . . i . . . . . . . . . . I
    rank 1  . . F . . . . . . f . . . . . . i . . . . . . . I .
    rank 2  . . . . F . . . f . . . . . . . . . i . . . . I . .
    rank 3  . . . . . . F f . . . . . . . . . . . . i . I . . .

Where 3 (V-Min) or 2 (V-Half) divides p, i and I come 2 or 3 slots later, or two blocks would want the same slot.

Then the slots that are idle for want of work are squeezed out. In every slot a rank takes the first F or I of its
repeated blocks that has all it needs, or else a W; an F that passes others must leave memory for them. V-Half, p = 3
ranks, m = 3 micro-batches, stages k and 5 - k on rank k, written stage F micro-batch:

    rank 0  0F0 0F1 0F2 ..  ..  5F0 5I0 5W0 ..  ..  5F1 5I1 0I0 5W1 0W0 5F2 5I2 0I1 5W2 0W1 ..  0I2 0W2
    rank 1  ..  1F0 1F1 1F2 4F0 ..  ..  4I0 4W0 4F1 1I0 1W0 4I1 4W1 4F2 ..  1I1 4I2 1W1 4W2 1I2 1W2 ..
    rank 2  ..  ..  2F0 3F0 2F1 3F1 ..  ..  3I0 2I0 3W0 2F2 2W0 3F2 3I1 2I1 3W1 2W1 3I2 2I2 3W2 2W2 ..

The most that a rank holds from F to W is floor((p + 2) / 2) micro-batches (V-Half) or floor((p + 4) / 3) (V-Min), where
two chunks make one. Where F, I and W take as long, the batch takes 6 m chunk times and about 3 p or 4 p more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from itertools import accumulate
from typing import TypeAlias, final

from pipesched.schedules import (
    Compute,
    Message,
    Op,
    Phase,
    Schedule,
    Step,
    backward_input,
    backward_weight,
    forward,
    gives,
    make_schedule,
    needs,
    positive,
)

UnitBlock: TypeAlias = tuple[int, int, int, int]
"""The slots of F, f, i and I of micro-batch 0 on one rank."""

_INTERVAL = 6
"""Slots from one block to the next: F, I and W on two chunks."""


def v_half(num_ranks: int, num_microbatches: int) -> Schedule:
    """Build V-Half: floor((p + 2) / 2) micro-batches in flight."""
    return _build("v_half", num_ranks, num_microbatches, v_half_block)


def v_min(num_ranks: int, num_microbatches: int) -> Schedule:
    """Build V-Min: floor((p + 4) / 3) micro-batches in flight."""
    return _build("v_min", num_ranks, num_microbatches, v_min_block)


def v_half_block(p: int, rank: int) -> UnitBlock:
    """Return the slots of V-Half: F moves on 2 slots per rank, f one, i two, I one."""
    wait = 0 if p % 2 else 3
    return 2 * rank, 3 * p - 2 - rank, 3 * p - 1 + wait + 2 * rank, 6 * p - 2 + wait - rank


def v_min_block(p: int, rank: int) -> UnitBlock:
    """Return the slots of V-Min: all of them move on one slot per rank."""
    wait = 0 if p % 3 else 2
    return rank, 2 * p - 1 - rank, 2 * p + wait + rank, 4 * p - 1 + wait - rank


def _build(name: str, num_ranks: int, num_microbatches: int, block: Callable[[int, int], UnitBlock]) -> Schedule:
    positive(num_ranks=num_ranks, num_microbatches=num_microbatches)
    p, m = num_ranks, num_microbatches
    stages = [(rank, 2 * p - 1 - rank) for rank in range(p)]
    repeated = [_repeated(block(p, rank), *stages[rank], m) for rank in range(p)]
    rows: list[list[Op]] = [
        [*row, *map(Step, own)] for row, own in zip(_squeezed(repeated, 2 * p), stages, strict=True)
    ]
    return make_schedule(name, 2 * p, m, rows)


def _repeated(block: UnitBlock, down: int, up: int, num_microbatches: int) -> list[Compute]:
    """Return the list of one rank: every micro-batch's block, and the Ws in the slots left free."""
    kinds = ((forward, down), (forward, up), (backward_input, up), (backward_input, down))
    slots: dict[int, Compute] = {}
    for (make, stage), first in zip(kinds, block, strict=True):
        slots |= {first + _INTERVAL * i: make(stage, i) for i in range(num_microbatches)}
    row: list[Compute] = []
    due: deque[Compute] = deque()
    for slot in range(max(slots) + 1):
        if slot in slots:
            op = slots[slot]
            row.append(op)
            if op.phase is Phase.BACKWARD_INPUT:
                due.append(backward_weight(op.stage, op.microbatch))
        elif due:
            row.append(due.popleft())
    return [*row, *due]


def _squeezed(repeated: Sequence[Sequence[Compute]], num_stages: int) -> list[list[Compute]]:
    """Return the lists without their gaps: in every slot each rank takes what it can.

    What is left of a list fits into memory in its own order, and the op that comes first in the repeated blocks has
    all it needs, so in every slot some rank takes one.
    """
    limit = max(max(accumulate(map(_growth, row))) for row in repeated)
    ranks = [_Rank(row, limit, num_stages) for row in repeated]
    given: set[Message | None] = set()
    while any(rank.left for rank in ranks):
        places = [rank.place(given) for rank in ranks]
        given.update(rank.take(place) for rank, place in zip(ranks, places, strict=True) if place is not None)
    return [rank.taken for rank in ranks]


@final
class _Rank:
    """What one rank has taken and what is left to take, in the order of the repeated blocks."""

    def __init__(self, repeated: Iterable[Compute], limit: int, num_stages: int) -> None:
        self.left = deque(repeated)
        self.taken: list[Compute] = []
        self._kinds = {(op.phase, op.stage) for op in self.left}
        self._limit = limit
        self._num_stages = num_stages
        self._held = 0

    def place(self, given: Container[Message | None]) -> int | None:
        """Return where in `left` the op to take is, if there is one; each kind is taken in its own order."""
        held = most = self._held
        weight: int | None = None
        seen: set[tuple[Phase, int]] = set()
        for place, op in enumerate(self.left):
            if (op.phase, op.stage) not in seen and all(need in given for need in needs(op, self._num_stages)):
                if op.phase is Phase.BACKWARD_WEIGHT:
                    weight = place if weight is None else weight
                elif op.phase is Phase.BACKWARD_INPUT or most < self._limit:
                    return place
            seen.add((op.phase, op.stage))
            if seen == self._kinds:
                break
            held += _growth(op)
            most = max(most, held)
        return weight

    def take(self, place: int) -> Message | None:
        """Take the op at `place`, and return the message that it makes."""
        op = self.left[place]
        del self.left[place]
        self.taken.append(op)
        self._held += _growth(op)
        return gives(op)


def _growth(op: Compute) -> int:
    """Return how many more chunks are held after `op`."""
    match op.phase:
        case Phase.FORWARD:
            return 1
        case Phase.BACKWARD_WEIGHT:
            return -1
        case _:
            return 0
