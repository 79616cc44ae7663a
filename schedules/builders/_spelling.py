"""A spelling: what each rank does, a letter for each op, and what the letters stand for.

    rank 0  FFBFBBS     F  of stage 0 on micro-batches 0, 1, 2     B  likewise     S  the Step of stage 0
    rank 1  FBFBFBS     F  of stage 1                              ..

The n-th time that a letter comes on a rank it stands for its n-th op there, so a spelling has no numbers in it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, count, repeat
from operator import add
from typing import NamedTuple

from pipesched.schedules import OpColumns, Phase, StageOp, Step, cell_code

_PLAIN_CELLS = 100_000
"""Most ops that are spelled without NumPy, where that is not loaded: above, loading it takes less time."""


class Letter(NamedTuple):
    """The ops of one letter: the n-th on rank k is of stage ``stages[k] + chunks[n]``.

    Attributes:
        kind: Phase of its computations, or class of its ops.
        stages: Its stage, for each rank.
        microbatches: Its n-th micro-batch; None: n.
        chunks: By how much the stage of its n-th op is above; None: by nothing.
        firsts: What is added to its micro-batches, for each rank; None: nothing.
        turns_of: The letter whose turns it takes, which say stage and micro-batch.
        is_overlapped: Whether its ops overlap the ones that follow.
    """

    kind: Phase | type[StageOp]
    stages: Sequence[int]
    microbatches: Sequence[int] | None = None
    chunks: Sequence[int] | None = None
    firsts: Sequence[int] | None = None
    turns_of: str | None = None
    is_overlapped: bool = False


def spelled(rows: Sequence[str], letters: Mapping[str, Letter]) -> OpColumns:
    """Return the ops that the letters of each rank stand for.

    Args:
        rows: The letters of each rank, of ASCII.
        letters: What each letter stands for.
    """
    text = "".join(rows).encode()
    begins = [*accumulate(map(len, rows), initial=0)]
    code_of = {letter: cell_code(known.kind, is_overlapped=known.is_overlapped) for letter, known in letters.items()}
    codes = text.translate(_table(code_of))
    if _takes_numpy(len(text)):
        return _spelled_at_once(text, letters, begins, codes)
    stages: list[int] = []
    microbatches: list[int] = []
    for rank, row in enumerate(rows):
        own = {letter: known for letter, known in letters.items() if known.turns_of is None}
        stages_of = {letter: _stages(known, rank) for letter, known in own.items()}
        microbatches_of = {letter: _microbatches(known, rank) for letter, known in own.items()}
        stages += map(next, map(_shared(stages_of, letters).__getitem__, row))
        microbatches += map(next, map(_shared(microbatches_of, letters).__getitem__, row))
    return OpColumns(begins, list(codes), stages, microbatches)


def _takes_numpy(num_ops: int) -> bool:
    return "numpy" in sys.modules or num_ops > _PLAIN_CELLS


def _spelled_at_once(text: bytes, letters: Mapping[str, Letter], begins: Sequence[int], codes: bytes) -> OpColumns:
    """Return the same by sorting the text: letter by letter, and of one letter rank by rank, the ops have their turns.

    Args:
        text: The letters of all ranks, n in all.
        letters: What each letter stands for.
        begins: Where those of each rank begin, and n.
        codes: The n codes.
    """
    import numpy as np

    own = [letter for letter, known in letters.items() if known.turns_of is None]
    number = {letter: own.index(known.turns_of or letter) for letter, known in letters.items()}
    kinds = np.frombuffer(text.translate(_table(number)), np.uint8)
    num_ranks = len(begins) - 1
    ranks = np.repeat(np.arange(num_ranks), np.diff(begins))
    counts = np.bincount(kinds * np.int64(num_ranks) + ranks, minlength=len(own) * num_ranks)
    turns = np.arange(len(text)) - np.repeat(np.cumsum(counts) - counts, counts)
    in_turn = np.repeat(np.array([stage for letter in own for stage in letters[letter].stages]), counts), turns.copy()
    ends = np.cumsum(counts.reshape(len(own), num_ranks).sum(axis=1))
    for letter, begin, end in zip(own, [0, *ends], ends, strict=False):
        known, cells = letters[letter], slice(begin, end)
        if known.chunks is not None:
            in_turn[0][cells] += np.array(known.chunks)[turns[cells]]
        if known.microbatches is not None:
            in_turn[1][cells] = np.array(known.microbatches)[turns[cells]]
        if known.firsts is not None:
            in_turn[1][cells] += np.repeat(known.firsts, counts[own.index(letter) * num_ranks :][:num_ranks])
    order = kinds.argsort(kind="stable")
    stages, microbatches = np.empty((2, len(text)), np.int32)
    stages[order], microbatches[order] = in_turn
    return OpColumns(begins, np.frombuffer(codes, np.int8), stages, microbatches)


def first_turns(row: str, count: int) -> str:
    """Return `row` without what comes after the first `count` turns of each letter."""
    if len(row) == count * len(set(row)):
        return row
    turns = Counter[str]()
    kept = []
    for letter in row:
        turns[letter] += 1
        kept.append(letter if turns[letter] <= count else "")
    return "".join(kept)


def v_letters(num_ranks: int) -> dict[str, Letter]:
    """Return the letters of a V on `num_ranks` ranks: F, I, W Step on the way down, f, i, w, s on the way up."""
    down, up = range(num_ranks), range(2 * num_ranks - 1, num_ranks - 1, -1)
    kinds: dict[str, Phase | type[StageOp]]
    kinds = {"F": Phase.FORWARD, "I": Phase.BACKWARD_INPUT, "W": Phase.BACKWARD_WEIGHT, "S": Step}
    letters = {letter: Letter(kind, down) for letter, kind in kinds.items()}
    return letters | {letter.lower(): Letter(kind, up) for letter, kind in kinds.items()}


def _table(numbers: Mapping[str, int]) -> bytes:
    """Return the translation of letters into numbers."""
    return bytes.maketrans("".join(numbers).encode(), bytes(numbers.values()))


def _stages(letter: Letter, rank: int) -> Iterator[int]:
    stage = letter.stages[rank]
    return repeat(stage) if letter.chunks is None else map(add, letter.chunks, repeat(stage))


def _microbatches(letter: Letter, rank: int) -> Iterator[int]:
    first = 0 if letter.firsts is None else letter.firsts[rank]
    return count(first) if letter.microbatches is None else map(add, letter.microbatches, repeat(first))


def _shared(turns: dict[str, Iterator[int]], letters: Mapping[str, Letter]) -> dict[str, Iterator[int]]:
    """Return the turns of all letters: two letters of one order go through the same ones."""
    return {letter: turns[known.turns_of or letter] for letter, known in letters.items()}
