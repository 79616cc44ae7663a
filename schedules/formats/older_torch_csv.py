"""The words of PyTorch's CSV of 2024 (2.4 and 2.5), converted to today's words.

    2024          today
    0BW1          0B1           full backward
    0B1 .. 0W1    0I1 .. 0W1    the two halves of a backward

A file is from 2024 if it has BW, or if it has W, no I, and a B for every W. In today's words, B and W of one
micro-batch are an error, so no valid file of today looks like a file from 2024.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import replace

from pipesched.schedules.formats.files import Faults, FileWarning, without_breaks
from pipesched.schedules.formats.torch_rules import CellName, Rows
from pipesched.schedules.ops import Compute, Op, Overlap, Phase, Reduce, computes

_FULL = re.compile(r"([0-9]+)BW([0-9]+)")
_PAIR = re.compile(r"([0-9]+SEND_[FB][0-9]+)_([0-9]+RECV_[FB][0-9]+)")


def word_of_today(cell: str) -> str | None:
    """Return today's word for a cell with BW, or None for any other cell."""
    match = _FULL.fullmatch(cell)
    return None if match is None else f"{match[1]}B{match[2]}"


def paired_messages(cell: str) -> str | None:
    """Return the fault of a cell with two messages, which PyTorch of 2024 posts together, or None for another cell."""
    match = _PAIR.fullmatch(cell)
    if match is None:
        return None
    return f"got {cell}, two messages of PyTorch's CSV of 2024, expected a cell for each; try {match[1]},{match[2]}"


def in_todays_words(rows: Rows, full: set[Compute], place: CellName, faults: Faults) -> Rows | None:
    """Return `rows` with I in place of each B that is the input half; None if `rows` are in today's dialect.

    Args:
        rows: The ops of a file, with B for BW.
        full: The backwards with the word BW in the file.
        place: Function that returns the name of a cell for messages.
        faults: Receives halves without their other half, and words unknown to PyTorch of 2024.
    """
    parts = {part for row in rows for op in row if op is not None for part in computes(op)}
    inputs = {part for part in parts if part.phase is Phase.BACKWARD} - full
    weights = {part for part in parts if part.phase is Phase.BACKWARD_WEIGHT}
    newer = next(_newer_words(rows, place), None)
    if not full and (newer or not weights or any(_as(part, Phase.BACKWARD) not in inputs for part in weights)):
        return None
    if newer is not None:
        where, word = newer
        faults.add(where, f"got {word} in a file with BW, expected words of PyTorch's CSV of 2024; try B for BW")
        return None
    alone = {part for part in inputs if _as(part, Phase.BACKWARD_WEIGHT) not in weights}
    for rank, row in enumerate(rows):
        for index, op in enumerate(row):
            if isinstance(op, Compute) and op in alone:
                reason = "B is the input half in PyTorch's CSV of 2024"
                got = f"got {op} without {_as(op, Phase.BACKWARD_WEIGHT)}, expected both: {reason}"
                faults.add(place(rank, index), f"{got}; try {op.stage}BW{op.microbatch}, a full backward")
    return [
        [_as(op, Phase.BACKWARD_INPUT) if isinstance(op, Compute) and op in inputs else op for op in row]
        for row in rows
    ]


def warn_older(origin: str) -> None:
    """Warn that the file `origin` is in the dialect of 2024."""
    text = "read as PyTorch's CSV of 2024: BW is a full backward, B and W are its halves (today B, I and W)"
    warnings.warn(without_breaks(f"{origin}: {text}"), FileWarning, stacklevel=2)


def _newer_words(rows: Rows, place: CellName) -> Iterator[tuple[str, Op]]:
    """Yield the words unknown to PyTorch of 2024, each with its place."""
    for rank, row in enumerate(rows):
        for index, op in enumerate(row):
            if isinstance(op, Overlap | Reduce) or (isinstance(op, Compute) and op.phase is Phase.BACKWARD_INPUT):
                yield place(rank, index), op


def _as(op: Compute, phase: Phase) -> Compute:
    return replace(op, phase=phase)
