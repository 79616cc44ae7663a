"""Cells that are spelled: a text, a letter for each cell, which machine code writes out on first access.

    text      FFBB FFBB    begins    0 4 8      two ranks
    F  number 0, code F, of stages 0 1          B  number 1, code B, of stages 0 1

The texts of many lists are written out by one call.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from pipesched.schedules import machine_code


class Alphabet(NamedTuple):
    """The meaning of letters, as tables of bytes, or of the bytes of int32.

    Attributes:
        numbers: For each byte the number of the letter whose turns it takes.
        codes: For each byte the code of its cells.
        places: For each letter by its number where its chunks begin, and where its micro-batches do; -1 without any.
        stages: Its stage on each rank.
        firsts: Offset of its micro-batches on each rank.
        lists: Chunks and micro-batches of the letters that have them, one behind the other.
    """

    numbers: bytes
    codes: bytes
    places: bytes
    stages: bytes
    firsts: bytes
    lists: bytes


class SpelledCells(NamedTuple):
    """Cells of all ranks.

    Attributes:
        text: Their letters.
        begins: Where the cells of each rank begin, and the end.
        alphabet: The meaning of the letters.
    """

    text: bytes
    begins: Sequence[int]
    alphabet: Alphabet


def int32_bytes(numbers: Iterable[int]) -> bytes:
    """Return numbers as the bytes of int32."""
    return array("i", numbers).tobytes()


def write_out(lists: Sequence[SpelledCells]) -> tuple[Any, Any, Any]:
    """Return codes, stages and micro-batches of lists of as many ranks, one list behind the other, in arrays."""
    import numpy as np

    alphabets = {id(cells.alphabet): cells.alphabet for cells in lists}
    place_of = {key: place for place, key in enumerate(alphabets)}
    numbers, codes, *tables = (b"".join(column) for column in zip(*alphabets.values(), strict=True))
    first_letters = int32_bytes(accumulate((len(alphabet.places) // 8 for alphabet in alphabets.values()), initial=0))
    first_numbers = int32_bytes(accumulate((len(alphabet.lists) // 4 for alphabet in alphabets.values()), initial=0))
    begins = int32_bytes([begin for cells in lists for begin in cells.begins])
    of_lists = int32_bytes([place_of[id(cells.alphabet)] for cells in lists])
    text = b"".join([cells.text for cells in lists])
    written = np.empty(len(text), np.int8), np.empty(len(text), np.int32), np.empty(len(text), np.int32)
    machine_code.compiled(write_cells)(
        np.frombuffer(text, np.uint8), np.frombuffer(numbers, np.uint8), np.frombuffer(codes, np.int8),
        *(np.frombuffer(table, np.int32) for table in (begins, of_lists, first_letters, first_numbers, *tables)),
        np.empty(256, np.int64), *written,
    )  # fmt: skip
    return written


def write_cells(
    text: Any, number_of: Any, code_of: Any, begins: Any, alphabet_of: Any, first_letters: Any, first_numbers: Any,
    places: Any, stages_of: Any, firsts_of: Any, lists: Any, turns: Any, codes: Any, stages: Any, microbatches: Any,
) -> None:  # fmt: skip
    """Write code, stage and micro-batch of each letter.

    Args:
        text: The letters of k lists, one behind the other.
        number_of: Tables of alphabets, one behind the other, as are all but the next four.
        code_of: Codes.
        begins: R + 1 numbers of each list: where the letters of each rank begin, and the end.
        alphabet_of: The alphabet of each list.
        first_letters: Number of letters of the alphabets before each one.
        first_numbers: Number of numbers in `lists` before each one.
        places: Where the lists of letters begin.
        stages_of: Their stages.
        firsts_of: Offsets of their micro-batches.
        lists: Chunks and micro-batches.
        turns: Occurrences of each letter so far; to be written, as are all arrays that follow.
        codes: Codes.
        stages: Stages.
        microbatches: Micro-batches.
    """
    num_ranks, first = len(begins) // len(alphabet_of) - 1, 0
    for number in range(len(alphabet_of)):
        alphabet, at = alphabet_of[number], number * (num_ranks + 1)
        first_letter, first_number = first_letters[alphabet], first_numbers[alphabet]
        for rank in range(num_ranks):
            turns[:] = 0
            for i in range(first + begins[at + rank], first + begins[at + rank + 1]):
                byte = 256 * alphabet + text[i]
                letter = number_of[byte]
                turn, own = turns[letter], first_letter + letter
                turns[letter] = turn + 1
                chunks, known = places[2 * own], places[2 * own + 1]
                stage, microbatch = stages_of[own * num_ranks + rank], firsts_of[own * num_ranks + rank]
                codes[i] = code_of[byte]
                stages[i] = stage + (lists[first_number + chunks + turn] if chunks >= 0 else 0)
                microbatches[i] = microbatch + (lists[first_number + known + turn] if known >= 0 else turn)
        first += begins[at + num_ranks]
