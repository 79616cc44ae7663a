"""PyTorch's schedule CSV in both dialects, read and written.

`torch.distributed.pipelining` 2.13 and torchtitan use this file. Files of 2024 are read too.

    0F0,0F1,,0B0,0B1                            compute-only: a row per rank, no header, an empty cell is idle
    0F0,0SEND_F0,0F1,...,0RECV_B0,0B0,...       compute+comms: no empty cells

PyTorch reads `2F0junk` as `2F0` and checks no communication; this reader refuses text after an op. The file has no
optimizer step: reading adds a Step at the end of each list, and writing drops it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pipesched.schedules import Schedule, ScheduleError, make_schedule
from pipesched.schedules.common import MAX_CELLS, shown
from pipesched.schedules.formats.files import Faults, fault, read_text
from pipesched.schedules.formats.older_torch_csv import in_todays_words, paired_messages, warn_older, word_of_today
from pipesched.schedules.formats.op_text import NO_PEER, parse_op
from pipesched.schedules.formats.torch_rules import (
    OUR_JSON,
    Rows,
    Survey,
    check_complete,
    check_losses,
    check_others,
    is_communication,
    peer_stage,
    survey,
    unsayable,
)
from pipesched.schedules.ops import Compute, Op, Recv, Reduce, Send, Step, Summed, computes


def has_communication(rows: Rows) -> bool:
    """Return whether `rows` have at least one word of the compute+comms dialect."""
    return any(is_communication(op) for row in rows for op in row)


def read_csv(path: Path | str, *, steps: bool = True) -> Schedule:
    """Return the schedule in a CSV file of either dialect, named after the file.

    Args:
        path: The file.
        steps: Whether to end each rank's list with a Step of each of its stages, as PyTorch's training loop does.

    Raises:
        ScheduleError: The file is not such a schedule.
    """
    return read_csv_text(read_text(path), str(path), steps=steps)


def read_csv_text(text: str, origin: str, *, steps: bool = True) -> Schedule:
    """Return the schedule in the text of a CSV file, as `read_csv`; `origin` is the name of the text in messages."""
    faults = Faults(origin)
    full: set[Compute] = set()
    parsed = _parse(text, origin, full, faults)
    _check_dialect(parsed, faults)
    faults.settle()
    older = in_todays_words(parsed, full, _cell, faults)
    faults.settle()
    rows = parsed if older is None else older
    surveyed = survey(rows, _cell, faults)
    num_microbatches = len(surveyed.microbatches)
    check_complete(surveyed, len(surveyed.rank_of), num_microbatches, _cell, faults)
    check_others(rows, surveyed, _cell, faults)
    faults.settle()
    if older is not None:
        warn_older(origin)
    lists = [[_with_peer(op, surveyed) for op in row if op is not None] for row in rows]
    if steps:
        for stage, rank in sorted(surveyed.rank_of.items()):
            lists[rank].append(Step(stage))
    return make_schedule(Path(origin).stem, len(surveyed.rank_of), num_microbatches, lists)


def write_csv(schedule: Schedule) -> str:
    """Return `schedule` in the compute-only dialect: a row per rank, no idle cells, lines ended by CR LF.

    Raises:
        ScheduleError: The CSV cannot represent the schedule.
    """
    return _write(schedule, [[None if is_communication(op) else op for op in row] for row in schedule.ops])


def write_csv_comms(schedule: Schedule) -> str:
    """Return `schedule` in the compute+comms dialect: a row per rank, lines ended by CR LF.

    Raises:
        ScheduleError: The CSV cannot represent the schedule, or the schedule lacks Sends and Recvs.
    """
    return _write(schedule, schedule.ops, comms=True)


def _cell(rank: int, index: int) -> str:
    return f"row {rank + 1}" if index < 0 else f"row {rank + 1}, cell {index + 1}"


def _op(rank: int, index: int) -> str:
    return f"rank {rank}" if index < 0 else f"rank {rank}, op {index}"


def _parse(text: str, origin: str, full: set[Compute], faults: Faults) -> list[list[Op | None]]:
    """Return the ops of each row; add the backwards named BW in the file to `full`."""
    rows: list[list[Op | None]] = []
    num_cells = 0
    for cells in _rows(text, origin):
        if not rows:
            _require_ops(cells, origin)
        num_cells += len(cells) or 1
        if num_cells > MAX_CELLS:
            problem = f"got more than {MAX_CELLS} cells, expected at most {MAX_CELLS}; try fewer micro-batches"
            raise fault(origin, f"row {len(rows) + 1}: {problem}")
        rows.append([_parse_cell(cell, _cell(len(rows), index), full, faults) for index, cell in enumerate(cells)])
    return rows


def _rows(text: str, origin: str) -> Iterator[list[str]]:
    if not text.strip():
        raise fault(origin, "got an empty file, expected a row per rank; try writing it again")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        yield from reader
    except csv.Error as error:
        problem = f"got no CSV ({error}), expected CSV; try the file without quotes"
        raise fault(origin, f"line {reader.line_num}: {problem}") from error


def _require_ops(cells: Sequence[str], origin: str) -> None:
    """Refuse the first row of another kind of table, with one message for all cells of the row.

    Raises:
        ScheduleError: The cells are separated by semicolons, or the row has several words and no op.
    """
    words = [word for cell in cells if (word := cell.strip())]
    if len(words) == 1 and ";" in words[0] and not words[0].startswith("("):
        raise fault(
            origin, f"row 1: got {shown(words[0])}, expected commas between ops; try commas in place of the semicolons"
        )
    if len(words) < 2 or any(map(_is_op, words)):
        return
    got = f"row 1: got {shown(','.join(words))}, expected ops of rank 0, as 0F0,0F1,0B0"
    if any(_is_op(word.upper()) for word in words):
        raise fault(origin, f"{got}; try capital letters")
    raise fault(origin, f"{got}; try without this line if it is a header; a table of costs is no schedule")


def _is_op(word: str) -> bool:
    try:
        parse_op(word_of_today(word) or word)
    except ScheduleError:
        return False
    return True


def _parse_cell(cell: str, place: str, full: set[Compute], faults: Faults) -> Op | None:
    cell = cell.strip(" \t")  # PyTorch strips them too
    if not cell:
        return None
    today = word_of_today(cell)
    try:
        op = parse_op(today or cell)
    except ScheduleError as error:
        faults.add(place, paired_messages(cell) or str(error))
        return None
    if today and isinstance(op, Compute):
        full.add(op)
    reason = unsayable(op)
    if isinstance(op, Send | Recv) and op.peer != NO_PEER:
        reason = "a peer"
    if reason is not None:
        faults.add(place, _unsayable(op, reason))
    return op


def _check_dialect(rows: Rows, faults: Faults) -> None:
    """Refuse empty cells in a file with communication; a cell without a valid op does not count as either."""
    if faults or not has_communication(rows):
        return
    for rank, row in enumerate(rows):
        for index, op in enumerate(row):
            if op is None:
                faults.add(
                    _cell(rank, index),
                    "got an empty cell, expected none in a file with communication; try removing it",
                )


def _with_peer(op: Op, surveyed: Survey) -> Op:
    return replace(op, peer=surveyed.rank_of[peer_stage(op)]) if isinstance(op, Send | Recv) else op


def _write(schedule: Schedule, rows: Rows, *, comms: bool = False) -> str:
    faults = Faults(f"schedule {shown(schedule.name)}")
    if schedule.rank_to_device != tuple(range(schedule.num_ranks)):
        got = f"got rank_to_device {list(schedule.rank_to_device[:8])}"
        faults.add("", f"{got}, expected a device per rank, in order: PyTorch's CSV has no devices; try {OUR_JSON}")
    rows = [_without_last_steps(row) for row in rows]
    _check_sayable(rows, faults)
    surveyed = survey(rows, _op, faults)
    check_complete(surveyed, schedule.num_stages, schedule.num_microbatches, _op, faults)
    check_others(rows, surveyed, _op, faults)
    if not faults:
        check_losses(rows, surveyed, _op, faults)
    if comms and not schedule.is_lowered and len(set(surveyed.rank_of.values())) > 1:
        faults.add(
            "", "got no Send and no Recv, expected the communication between ranks; try lowering the schedule first"
        )
    faults.settle()
    return "".join(",".join(str(op) for op in row if op is not None) + "\r\n" for row in rows)


def _without_last_steps(row: Sequence[Op | None]) -> list[Op | None]:
    """Return `row` without the Step after each stage's last computation, and the sum of norms before it.

    The end of a CSV row implies these Steps, and the caller of PyTorch's runtime clips gradients.
    """
    kept = list(row)
    own = {part.stage for op in kept if op is not None for part in computes(op)}
    busy: set[int] = set()
    for index in range(len(kept) - 1, -1, -1):
        op = kept[index]
        if isinstance(op, Step) and op.stage in own - busy:
            kept[index] = None
            busy.add(op.stage)
        elif isinstance(op, Reduce) and op.content is Summed.NORM and op.stage in busy:
            kept[index] = None
        elif op is not None:
            busy.update(part.stage for part in computes(op))
    return kept


def _unsayable(op: Op | None, reason: str) -> str:
    return f"got {op} ({reason}), expected ops that PyTorch's CSV has; try {OUR_JSON}"


def _check_sayable(rows: Rows, faults: Faults) -> None:
    for rank, row in enumerate(rows):
        for index, op in enumerate(row):
            reason = None if op is None else unsayable(op)
            if reason is not None:
                faults.add(_op(rank, index), _unsayable(op, reason))
