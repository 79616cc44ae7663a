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
from typing import Any, NamedTuple, TypeAlias

from pipesched.schedules import OpColumns, Phase, Reduce, StageOp, Step, cell_code, machine_code

_PLAIN_CELLS = 100_000
"""Most ops that are spelled without NumPy, where that is not loaded: above, loading it takes less time."""

_LAST_BYTE = "\u00ff"
"""The last letter that NumPy takes as a byte; where there are others, it is not asked."""


LetterKind: TypeAlias = Phase | type[StageOp]
"""Phase of a computation, or class of an op."""


class Letter(NamedTuple):
    """The ops of one letter: the n-th on rank k is of stage ``stages[k] + chunks[n]``.

    Attributes:
        kind: What its ops do.
        stages: Its stage, for each rank.
        microbatches: Its n-th micro-batch; None: n.
        chunks: By how much the stage of its n-th op is above; None: by nothing.
        firsts: What is added to its micro-batches, for each rank; None: nothing.
        turns_of: The letter whose turns it takes, which say stage and micro-batch.
        is_overlapped: Whether its ops overlap the ones that follow.
    """

    kind: LetterKind
    stages: Sequence[int]
    microbatches: Sequence[int] | None = None
    chunks: Sequence[int] | None = None
    firsts: Sequence[int] | None = None
    turns_of: str | None = None
    is_overlapped: bool = False


def spelled(rows: Sequence[str], letters: Mapping[str, Letter]) -> OpColumns:
    """Return the ops that the letters of each rank stand for.

    Args:
        rows: The letters of each rank.
        letters: What each letter stands for.
    """
    begins = [*accumulate(map(len, rows), initial=0)]
    code_of = {letter: cell_code(known.kind, is_overlapped=known.is_overlapped) for letter, known in letters.items()}
    if max(letters) <= _LAST_BYTE:
        if machine_code.is_hot(begins[-1]):
            return _spelled_in_machine_code("".join(rows).encode("latin-1"), letters, code_of, begins)
        if _takes_numpy(begins[-1]):
            return _spelled_at_once("".join(rows).encode("latin-1"), letters, code_of, begins)
    stages: list[int] = []
    microbatches: list[int] = []
    for rank, row in enumerate(rows):
        own = {letter: known for letter, known in letters.items() if known.turns_of is None}
        stages_of = {letter: _stages(known, rank) for letter, known in own.items()}
        microbatches_of = {letter: _microbatches(known, rank) for letter, known in own.items()}
        stages += map(next, map(_shared(stages_of, letters).__getitem__, row))
        microbatches += map(next, map(_shared(microbatches_of, letters).__getitem__, row))
    return OpColumns(begins, [code_of[letter] for row in rows for letter in row], stages, microbatches)


def _takes_numpy(num_ops: int) -> bool:
    return "numpy" in sys.modules or num_ops > _PLAIN_CELLS


def _spelled_at_once(
    text: bytes, letters: Mapping[str, Letter], code_of: Mapping[str, int], begins: Sequence[int]
) -> OpColumns:
    """Return the same by sorting the text: letter by letter, and of one letter rank by rank, the ops have their turns.

    Args:
        text: The letters of all ranks, n in all.
        letters: What each letter stands for.
        code_of: The code of each letter.
        begins: Where those of each rank begin, and n.
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
    return OpColumns(begins, np.frombuffer(text.translate(_table(code_of)), np.int8), stages, microbatches)


def _spelled_in_machine_code(
    text: bytes, letters: Mapping[str, Letter], code_of: Mapping[str, int], begins: Sequence[int]
) -> OpColumns:
    """Return the same by going through the text once; arguments are those of `_spelled_at_once`."""
    import numpy as np

    own = [letter for letter, known in letters.items() if known.turns_of is None]
    number = {letter: own.index(known.turns_of or letter) for letter, known in letters.items()}
    zeros, stages_of, firsts_of, lists, places = (
        [0] * (len(begins) - 1),
        list[int](),
        list[int](),
        list[int](),
        list[int](),
    )
    for letter in own:
        known = letters[letter]
        stages_of += known.stages
        firsts_of += zeros if known.firsts is None else known.firsts
        for numbers in (known.chunks, known.microbatches):
            places.append(-1 if numbers is None else len(lists))
            lists += () if numbers is None else numbers
    of_letters, columns = np.frombuffer(text.translate(_table(number)), np.uint8), np.empty((2, len(text)), np.int32)
    tables = (np.array(numbers, np.int64) for numbers in (begins, stages_of, firsts_of, lists, places))
    machine_code.compiled(_write_spelled)(of_letters, *tables, np.empty(len(own), np.int64), *columns)
    return OpColumns(begins, np.frombuffer(text.translate(_table(code_of)), np.int8), *columns)


def _write_spelled(
    of_letters: Any, begins: Any, stages_of: Any, firsts_of: Any, lists: Any, places: Any, turns: Any, stages: Any,
    microbatches: Any,
) -> None:  # fmt: skip
    """Write stage and micro-batch of each letter of a text.

    Args:
        of_letters: Of each letter the number of the one whose turns it takes.
        begins: Where the letters of each rank begin; and the end.
        stages_of: Of each of these its stage on each rank.
        firsts_of: What is added to its micro-batches on each rank.
        lists: Chunks and micro-batches of all letters that have them, one behind the other.
        places: Of each letter where its chunks begin, and where its micro-batches do; -1 where it has none.
        turns: Of each how often it has come; to be written, as are the next two.
        stages: Stages.
        microbatches: Micro-batches.
    """
    num_ranks = len(begins) - 1
    for rank in range(num_ranks):
        turns[:] = 0
        for i in range(begins[rank], begins[rank + 1]):
            letter = of_letters[i]
            turn = turns[letter]
            turns[letter] = turn + 1
            chunks, known = places[2 * letter], places[2 * letter + 1]
            stages[i] = stages_of[letter * num_ranks + rank] + (lists[chunks + turn] if chunks >= 0 else 0)
            microbatches[i] = firsts_of[letter * num_ranks + rank] + (lists[known + turn] if known >= 0 else turn)


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


def stage_letters(
    stages: Sequence[int], firsts: Sequence[int] | None = None, microbatches: Sequence[int] | None = None
) -> dict[str, Letter]:
    """Return F, B, I, W and S(tep) of one stage on each rank."""
    letters = {name: Letter(Phase(name), stages, microbatches, firsts=firsts) for name in "FBIW"}
    return letters | {"S": Letter(Step, stages)}


def v_letters(num_ranks: int) -> dict[str, Letter]:
    """Return the letters of a V: F, B, I, W, S of the stages on the way down, f, b, i, w, s of those on the way up."""
    return _both(stage_letters(range(num_ranks)), stage_letters(range(2 * num_ranks - 1, num_ranks - 1, -1)))


def replica_letters(num_ranks: int, going_down: Sequence[int], going_up: Sequence[int]) -> dict[str, Letter]:
    """Return the letters of two replicas: F, B, R(educe), S of that which goes down, f, b, r, s of that which goes up.

    Args:
        num_ranks: Ranks and stages.
        going_down: Micro-batches of the replica that has stage k on rank k.
        going_up: Micro-batches of the other one, whose first stage is on the last rank.
    """
    down, up = range(num_ranks), range(num_ranks - 1, -1, -1)
    reduces = _both({"R": Letter(Reduce, down)}, {"R": Letter(Reduce, up)})
    return _both(stage_letters(down, microbatches=going_down), stage_letters(up, microbatches=going_up)) | reduces


def chunk_steps(num_ranks: int, num_chunks: int) -> dict[str, Letter]:
    """Return S, the Steps of stages `num_ranks` apart."""
    return {"S": Letter(Step, range(num_ranks), [0] * num_chunks, range(0, num_ranks * num_chunks, num_ranks))}


def _both(down: Mapping[str, Letter], up: Mapping[str, Letter]) -> dict[str, Letter]:
    return {**down, **{name.lower(): letter for name, letter in up.items()}}


def _table(numbers: Mapping[str, int]) -> bytes:
    """Return the translation of letters into numbers."""
    return bytes.maketrans("".join(numbers).encode("latin-1"), bytes(numbers.values()))


def _stages(letter: Letter, rank: int) -> Iterator[int]:
    stage = letter.stages[rank]
    return repeat(stage) if letter.chunks is None else map(add, letter.chunks, repeat(stage))


def _microbatches(letter: Letter, rank: int) -> Iterator[int]:
    first = 0 if letter.firsts is None else letter.firsts[rank]
    return count(first) if letter.microbatches is None else map(add, letter.microbatches, repeat(first))


def _shared(turns: dict[str, Iterator[int]], letters: Mapping[str, Letter]) -> dict[str, Iterator[int]]:
    """Return the turns of all letters: two letters of one order go through the same ones."""
    return {letter: turns[known.turns_of or letter] for letter, known in letters.items()}
