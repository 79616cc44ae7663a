"""A spelling: the ops of each rank, a letter for each op, and the meanings of the letters.

    rank 0  FFBFBBS     F  of stage 0 on micro-batches 0, 1, 2     B  likewise     S  the Step of stage 0
    rank 1  FBFBFBS     F  of stage 1                              ..

The n-th occurrence of a letter in a rank's row is the n-th op of this letter on the rank, so a spelling has no
numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from pipesched.schedules.columns import OpColumns, cell_code
from pipesched.schedules.ops import AnyStageOp, Phase, Reduce, Step

LetterKind: TypeAlias = Phase | type[AnyStageOp]
"""Phase of a computation, or class of an op."""


class Letter(NamedTuple):
    """The ops of one letter: the n-th op on rank k is of stage ``stages[k] + chunks[n]``.

    Attributes:
        kind: The kind of the ops.
        stages: The stage on each rank.
        microbatches: The micro-batch of the n-th op, or None for n.
        chunks: Offset of the stage of the n-th op, or None for 0.
        firsts: Offset of the micro-batches on each rank, or None for 0.
        turns_of: Another letter that counts together with this one: the n-th op of both has the n-th stage and
            micro-batch of the other letter. None for a letter that counts alone.
        is_overlapped: Whether each op overlaps the next op of the rank.
    """

    kind: LetterKind
    stages: Sequence[int]
    microbatches: Sequence[int] | None = None
    chunks: Sequence[int] | None = None
    firsts: Sequence[int] | None = None
    turns_of: str | None = None
    is_overlapped: bool = False


def spelled(rows: Sequence[str], letters: Mapping[str, Letter]) -> OpColumns:
    """Return the ops of the letters of each rank.

    The texts of all ranks are sorted by letter, so each letter counts its ops in one pass.

    Args:
        rows: The letters of each rank.
        letters: The meaning of each letter.
    """
    begins = np.array([0, *accumulate(map(len, rows))])
    text = np.frombuffer("".join(rows).encode("utf-32-le"), np.uint32)
    code_of = {letter: cell_code(known.kind, is_overlapped=known.is_overlapped) for letter, known in letters.items()}
    own = [letter for letter, known in letters.items() if known.turns_of is None]
    number_of = {letter: own.index(known.turns_of or letter) for letter, known in letters.items()}
    kinds = _translated(text, number_of, np.uint16)
    num_ranks = len(begins) - 1
    ranks = np.repeat(np.arange(num_ranks, dtype=np.int32), np.diff(begins))
    counts = np.bincount(kinds * np.int32(num_ranks) + ranks, minlength=len(own) * num_ranks)
    turns = np.arange(len(text), dtype=np.int32) - np.repeat((np.cumsum(counts) - counts).astype(np.int32), counts)
    first_stages = np.array([stage for letter in own for stage in letters[letter].stages], np.int32)
    in_turn = np.repeat(first_stages, counts), turns.copy()
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
    return OpColumns(begins, _translated(text, code_of, np.int8), stages, microbatches)


def _translated(
    text: npt.NDArray[np.uint32], numbers: Mapping[str, int], kind: type[np.integer[Any]]
) -> npt.NDArray[Any]:
    """Return the number of each letter of a text."""
    table = np.zeros(1 + max(map(ord, numbers)), kind)
    table[[*map(ord, numbers)]] = [*numbers.values()]
    return table[text]


def first_turns(row: str, count: int) -> str:
    """Return `row` with only the first `count` occurrences of each letter."""
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


@cache
def rank_letters(num_ranks: int) -> Mapping[str, Letter]:
    """Return F, B, I, W and S of stage k on rank k."""
    return stage_letters(range(num_ranks))


@cache
def v_letters(num_ranks: int) -> Mapping[str, Letter]:
    """Return the letters of a V: F, B, I, W, S for stages on the way down, f, b, i, w, s for stages on the way up."""
    up = stage_letters(range(2 * num_ranks - 1, num_ranks - 1, -1))
    return _both(rank_letters(num_ranks), up)


def replica_letters(num_ranks: int, going_down: Sequence[int], going_up: Sequence[int]) -> dict[str, Letter]:
    """Return the letters of two replicas: F, B, R(educe), S of the replica downwards, f, b, r, s of the one upwards.

    Args:
        num_ranks: Number of ranks, and of stages.
        going_down: Micro-batches of the replica with stage k on rank k.
        going_up: Micro-batches of the other replica, with its first stage on the last rank.
    """
    down, up = range(num_ranks), range(num_ranks - 1, -1, -1)
    reduces = _both({"R": Letter(Reduce, down)}, {"R": Letter(Reduce, up)})
    return _both(stage_letters(down, microbatches=going_down), stage_letters(up, microbatches=going_up)) | reduces


def chunk_steps(num_ranks: int, num_chunks: int) -> dict[str, Letter]:
    """Return S, the Steps of stages `num_ranks` apart."""
    return {"S": Letter(Step, range(num_ranks), [0] * num_chunks, range(0, num_ranks * num_chunks, num_ranks))}


def _both(down: Mapping[str, Letter], up: Mapping[str, Letter]) -> dict[str, Letter]:
    return {**down, **{name.lower(): letter for name, letter in up.items()}}


def cross(slots: list[str], letters: str, stage: int, num_stages: int, start: int, num_microbatches: int) -> None:
    """Put F and B of `stage` into slots; a micro-batch enters in every other slot, and crosses one stage per slot.

    A micro-batch goes through all stages and back at once: B of the last stage is in the slot after its F.

    Args:
        slots: The letter of one rank in each slot.
        letters: The letters of F and B.
        stage: The stage.
        num_stages: Number of all stages.
        start: Slot in which the first micro-batch enters.
        num_microbatches: Number of consecutive micro-batches.
    """
    for letter, first in zip(letters, (start + stage, start + 2 * num_stages - 1 - stage), strict=True):
        slots[first : first + 2 * num_microbatches : 2] = letter * num_microbatches
