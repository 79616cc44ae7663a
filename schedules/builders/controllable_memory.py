"""V-Half and V-Min, a V with a half and a third of 1F1B's activations: arXiv:2405.15362, section 3.

A schedule repeats a *building block*: the F and I of one micro-batch on the two chunks of every rank. The next
micro-batch does the same 6 slots later (it has 6 ops on a rank), and each W takes the first slot left free.
So the block's length decides how many micro-batches are in flight. The blocks of V-Min and of V-Half for p = 4 ranks,
F and I of the chunk on the way down, f and i of the chunk on the way up:

    rank 0  F . . . . . . f i . . . . . . I
    rank 1  . F . . . . f . . i . . . . I .
    rank 2  . . F . . f . . . . i . . I . .
    rank 3  . . . F f . . . . . . i I . . .

    rank 0  F . . . . . . . . . f . . . i . . . . . . . . . . I
    rank 1  . . F . . . . . . f . . . . . . i . . . . . . . I .
    rank 2  . . . . F . . . f . . . . . . . . . i . . . . I . .
    rank 3  . . . . . . F f . . . . . . . . . . . . i . I . . .

If 3 divides p, i and I of V-Min come 2 slots later; if 2 divides p, i and I of V-Half come 3 slots later. Without this
delay two blocks would use the same slot.

Then idle slots are squeezed out. In every slot a rank takes the first F or I of its repeated blocks that can run, or
else a W; an F that passes another F must leave memory for it. From 3 p / 2 + 2 micro-batches on, every further
micro-batch adds the same six ops in the middle of each list. V-Half, p = 3 ranks, m = 3 micro-batches, stages k and
5 - k on rank k, written as stage, op and micro-batch (1F0):

    rank 0  0F0 0F1 0F2 ..  ..  5F0 5I0 5W0 ..  ..  5F1 5I1 0I0 5W1 0W0 5F2 5I2 0I1 5W2 0W1 ..  0I2 0W2
    rank 1  ..  1F0 1F1 1F2 4F0 ..  ..  4I0 4W0 4F1 1I0 1W0 4I1 4W1 4F2 ..  1I1 4I2 1W1 4W2 1I2 1W2 ..
    rank 2  ..  ..  2F0 3F0 2F1 3F1 ..  ..  3I0 2I0 3W0 2F2 2W0 3F2 3I1 2I1 3W1 2W1 3I2 2I2 3W2 2W2 ..

A rank holds at most floor((p + 2) / 2) (V-Half) or floor((p + 4) / 3) (V-Min) micro-batches from F to W, where two
chunks make one micro-batch. If F, I and W take equal time, the batch takes 6 m chunk times and about 3 p or 4 p more.
"""

from __future__ import annotations

from bisect import bisect
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import TypeAlias, final

from pipesched.schedules import Schedule, make_schedule
from pipesched.schedules.builders._spelling import spelled, v_letters
from pipesched.schedules.common import positive

UnitBlock: TypeAlias = tuple[int, int, int, int]
"""The slots of F, f, i and I of micro-batch 0 on one rank."""

BlockRule: TypeAlias = Callable[[int, int], UnitBlock]
"""Returns the block of one of p ranks."""

_INTERVAL = 6
"""Slots from one block to the next: F, I and W on two chunks."""

_LETTERS = "FfiIwW"
_F_DOWN, _F_UP, _I_UP, _I_DOWN, _W_UP, _W_DOWN = range(6)
"""Where each letter stands among them; capitals are the chunk on the way down."""


def v_half(num_ranks: int, num_microbatches: int) -> Schedule:
    """Build V-Half, with floor((p + 2) / 2) micro-batches in flight."""
    return _build("v_half", num_ranks, num_microbatches, v_half_block)


def v_min(num_ranks: int, num_microbatches: int) -> Schedule:
    """Build V-Min, with floor((p + 4) / 3) micro-batches in flight."""
    return _build("v_min", num_ranks, num_microbatches, v_min_block)


def v_half_block(p: int, rank: int) -> UnitBlock:
    """Return the slots of V-Half: F moves on 2 slots per rank, f one, i two, I one."""
    wait = 0 if p % 2 else 3
    return 2 * rank, 3 * p - 2 - rank, 3 * p - 1 + wait + 2 * rank, 6 * p - 2 + wait - rank


def v_min_block(p: int, rank: int) -> UnitBlock:
    """Return the slots of V-Min: F, f, i and I move on one slot per rank."""
    wait = 0 if p % 3 else 2
    return rank, 2 * p - 1 - rank, 2 * p + wait + rank, 4 * p - 1 + wait - rank


def _build(name: str, num_ranks: int, num_microbatches: int, block: BlockRule) -> Schedule:
    positive(num_ranks=num_ranks, num_microbatches=num_microbatches)
    p, m = num_ranks, num_microbatches
    rows = [row + "Ss" for row in _rows(block, p, m)]
    return make_schedule(name, 2 * p, m, spelled(rows, v_letters(p)))


def _rows(block: BlockRule, p: int, m: int) -> Sequence[str]:
    """Return the letters of each rank."""
    settled = 3 * p // 2 + 2
    if m <= settled:
        return _squeezed(block, p, m)
    half = _INTERVAL // 2 * settled
    rows = _squeezed(block, p, settled)
    return [row[:half] + row[half : half + _INTERVAL] * (m - settled) + row[half:] for row in rows]


@lru_cache(maxsize=64)
def _squeezed(block: BlockRule, p: int, m: int) -> tuple[str, ...]:
    """Return the letters of each rank without their gaps: in every slot each rank takes a possible op.

    In every slot some rank takes an op: the first remaining op of the repeated blocks can run, and the rest of its list
    fits into memory.
    """
    repeated = [_repeated(block(p, rank), m) for rank in range(p)]
    limit = max(max(accumulate(map(_growth, row))) for row in repeated)
    num_taken = [0] * (len(_LETTERS) * p) + [m]
    ranks = [_Rank(row, limit, _needs(rank, p), num_taken) for rank, row in enumerate(repeated)]
    while min(num_taken) < m:
        takes = [rank.next_letter() for rank in ranks]
        for rank, letter in zip(ranks, takes, strict=True):
            if letter is not None:
                rank.take(letter)
    return tuple("".join(rank.taken) for rank in ranks)


def _repeated(block: UnitBlock, num_microbatches: int) -> str:
    """Return the letters of one rank: every micro-batch's block, and the Ws in the slots left free."""
    slots = [""] * (max(block) + _INTERVAL * num_microbatches)
    for letter, first in zip(_LETTERS, block, strict=False):
        slots[first : first + _INTERVAL * num_microbatches : _INTERVAL] = letter * num_microbatches
    due: deque[str] = deque()
    for slot, letter in enumerate(slots):
        if not letter and due:
            slots[slot] = due.popleft()
        elif letter in ("i", "I"):
            due.append("w" if letter == "i" else "W")
    return "".join([*slots, *due])


def _growth(letter: str) -> int:
    """Return the change of the number of held chunks by an op."""
    return (letter in "Ff") - (letter in "wW")


def _needs(rank: int, p: int) -> tuple[tuple[int, int], ...]:
    """Return, for each letter of `rank`, the two letters whose ops on the same micro-batch come first.

    Letters are numbered over all ranks. The number after the last letter means that the op waits for no other.
    """
    own, always = len(_LETTERS) * rank, len(_LETTERS) * p
    before, after = own - len(_LETTERS), own + len(_LETTERS)
    is_first, is_last = rank == 0, rank == p - 1
    return (
        (always if is_first else before + _F_DOWN, always),
        (own + _F_DOWN if is_last else after + _F_UP, always),
        (own + _F_UP, always if is_first else before + _I_UP),
        (own + _F_DOWN, own + _I_UP if is_last else after + _I_DOWN),
        (own + _I_UP, always),
        (own + _I_DOWN, always),
    )


@final
class _Rank:
    """The ops that one rank has taken, and the place of the next op of each letter in its repeated blocks.

    Args:
        repeated: The letters of the repeated blocks.
        limit: Most chunks that may be held.
        needs: The ops that each letter waits for.
        num_taken: Number of ops taken of each letter, numbered over all ranks.
    """

    def __init__(self, repeated: str, limit: int, needs: tuple[tuple[int, int], ...], num_taken: list[int]) -> None:
        self.taken: list[str] = []
        self._held, self._limit = 0, limit
        self._needs, self._num_taken = needs, num_taken
        self._own = needs[_W_UP][0] - _I_UP
        self._places = [[place for place, other in enumerate(repeated) if other == letter] for letter in _LETTERS]
        self._weights = [list(accumulate((other == letter for other in repeated), initial=0)) for letter in "wW"]

    def next_letter(self) -> int | None:
        """Return the letter of the op to take, or None."""
        letter = self._first_of((_I_DOWN, _I_UP, _F_UP, _F_DOWN))
        return self._first_of((_W_UP, _W_DOWN)) if letter is None else letter

    def take(self, letter: int) -> None:
        """Take the next op of `letter`."""
        self._num_taken[self._own + letter] += 1
        self._held += _growth(_LETTERS[letter])
        self.taken.append(_LETTERS[letter])

    def _first_of(self, letters: tuple[int, ...]) -> int | None:
        """Return the possible letter that comes first in the repeated blocks, or None."""
        first: int | None = None
        first_place = -1
        for letter in letters:
            turn = self._num_taken[self._own + letter]
            need, other = self._needs[letter]
            if self._num_taken[need] > turn < self._num_taken[other]:
                place = self._places[letter][turn]
                if (first is None or place < first_place) and (letter > _F_UP or self._fits(letter, place)):
                    first, first_place = letter, place
        return first

    def _fits(self, letter: int, place: int) -> bool:
        """Return whether the F at `place` leaves memory for the passed F of the other chunk."""
        others, turn = self._places[_F_UP - letter], self._num_taken[self._own + _F_UP - letter]
        passed = others[turn : bisect(others, place)]
        peaks = (self._held + count - self._weights_left(before) for count, before in enumerate(passed, 1))
        return self._held < self._limit and all(peak < self._limit for peak in peaks)

    def _weights_left(self, place: int) -> int:
        """Return the number of W before `place` that are not taken."""
        num_up, num_down = self._num_taken[self._own + _W_UP : self._own + _W_DOWN + 1]
        up, down = self._weights
        return max(0, up[place] - num_up) + max(0, down[place] - num_down)
