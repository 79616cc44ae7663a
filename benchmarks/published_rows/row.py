"""Rows of a table of published runs, with typed columns; a row that cannot be read has a reason."""

from __future__ import annotations

import csv
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

FAILED = ("FAILED", "OOM")
"""Words of `peak_gib_per_rank` for a run that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """A published run: its configuration and its measurements; None is an unknown value.

    Attributes:
        id: Name of the row.
        source: Repository and file of the row.
        gpu: Name of the GPU, with remarks on its cluster.
        n_gpus: Number of GPUs.
        model: Name of the model.
        layers: Number of blocks.
        hidden: Width of the model.
        ffn: Inner width of the dense feed-forward part.
        heads: Attention heads.
        kv_heads: Heads of keys and values.
        seq: Tokens of a sample.
        vocab: Size of the vocabulary.
        experts: Routed experts of a block.
        topk: Experts that a token visits.
        tp: GPUs of a tensor-parallel group.
        pp: Stages of the pipeline.
        dp: Copies of the pipeline, without context parallelism.
        vpp: Chunks of a rank.
        ep: GPUs of an expert-parallel group.
        cp: GPUs of a context-parallel group.
        zero: Sharding of the training states, as the source words it.
        schedule: Name of the schedule, or ``none``.
        global_batch: Samples of an iteration.
        micro_batch: Samples of a micro-batch.
        recompute: Recomputation, as the source words it.
        dtype: Number types, as the source words them.
        iter_s: Measured seconds of an iteration.
        tflops_per_gpu: Published TFLOP/s of a GPU, by the source's own formula.
        mfu: Published model FLOP utilisation, as the source prints it.
        peak_gib_per_rank: Measured peak memory: one number, or a number for each rank; empty if unknown [GiB].
        has_failed: The run crashed or ran out of memory.
        note: Remarks of the table.
    """

    id: str
    source: str
    gpu: str
    n_gpus: int | None
    model: str
    layers: int
    hidden: int
    ffn: int | None
    heads: int | None
    kv_heads: int | None
    seq: int
    vocab: int | None
    experts: int | None
    topk: int | None
    tp: int
    pp: int
    dp: int | None
    vpp: int
    ep: int
    cp: int
    zero: str
    schedule: str
    global_batch: int | None
    micro_batch: int | None
    recompute: str
    dtype: str
    iter_s: float | None
    tflops_per_gpu: float | None
    mfu: str
    peak_gib_per_rank: tuple[float, ...]
    has_failed: bool
    note: str

    @property
    def is_fitted(self) -> bool:
        """Whether the row belongs to the half whose errors may guide the model.

        A stable hash of its setting is even: of its source, model, GPU and layout, so that rows that differ in the
        batch alone are on one side.
        """
        layout = self.n_gpus, self.tp, self.pp, self.dp, self.vpp, self.ep, self.cp
        setting = self.id.split("-")[0], self.model, self.gpu, *layout
        return zlib.crc32(repr(setting).encode()) % 2 == 0

    @property
    def peak_gib(self) -> float | None:
        """The peak memory of the fullest rank that the row has [GiB]."""
        return max(self.peak_gib_per_rank, default=None)


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be read, with the reason."""

    id: str
    reason: str


COLUMNS = tuple(field.name for field in fields(PublishedRun) if field.name != "has_failed")
"""The columns of the table."""
_NEEDED = ("layers", "hidden", "seq")
_ONE_IF_EMPTY = ("tp", "pp", "vpp", "ep", "cp")
_COUNTS = ("n_gpus", "ffn", "heads", "kv_heads", "vocab", "experts", "topk", "dp", "global_batch", "micro_batch")
_NUMBERS = ("iter_s", "tflops_per_gpu")


def read_rows(path: Path) -> list[PublishedRun | BadRow]:
    """Return the rows of a CSV file in order.

    Raises:
        ValueError: The file has no rows, or lacks columns.
        OSError: The file cannot be read.
    """
    with path.open(newline="", encoding="utf-8") as lines:
        table = csv.DictReader(lines)
        missing = [name for name in COLUMNS if name not in (table.fieldnames or ())]
        if missing:
            raise ValueError(f"{path}: lacks the columns {', '.join(missing)}; expected {', '.join(COLUMNS)}")
        rows = [_row(cells, line) for line, cells in enumerate(table, start=2)]
    if not rows:
        raise ValueError(f"{path}: has no rows")
    return rows


def _row(cells: Mapping[str, str | None], line: int) -> PublishedRun | BadRow:
    texts = {name: (cells.get(name) or "").strip() for name in COLUMNS}
    name = texts["id"] or f"line {line}"
    try:
        return _parsed(texts, name)
    except ValueError as error:
        return BadRow(name, str(error))


def _parsed(texts: Mapping[str, str], name: str) -> PublishedRun:
    values: dict[str, Any] = dict(texts, id=name)
    for column in _NEEDED:
        values[column] = _number(column, texts[column], _count)
        if values[column] is None:
            raise ValueError(f"{column} is empty; expected a whole number of at least 1")
    for column in _ONE_IF_EMPTY:
        values[column] = _number(column, texts[column], _count) or 1
    for column in _COUNTS:
        values[column] = _number(column, texts[column], _count)
    for column in _NUMBERS:
        values[column] = _number(column, texts[column], _positive)
    memory = texts["peak_gib_per_rank"]
    values["has_failed"] = memory.upper() in FAILED
    peaks = [] if values["has_failed"] or not memory else memory.split(";")
    values["peak_gib_per_rank"] = tuple(
        value for peak in peaks if (value := _number("peak_gib_per_rank", peak, _positive)) is not None
    )
    return PublishedRun(**values)


def _number(column: str, text: str, parse: Callable[[str], Any]) -> Any:
    if not text.strip():
        return None
    try:
        return parse(text)
    except ValueError:
        kind = "a whole number of at least 1" if parse is _count else "a positive number"
        raise ValueError(f"{column} is {text!r}; expected {kind} or an empty cell") from None


def _count(text: str) -> int:
    number = float(text)
    if not (number.is_integer() and number >= 1):
        raise ValueError
    return int(number)


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError
    return number


def runs_of(rows: Sequence[PublishedRun | BadRow]) -> list[PublishedRun]:
    """Return the rows that could be read."""
    return [row for row in rows if isinstance(row, PublishedRun)]
