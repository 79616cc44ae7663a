"""A Timeline as tables: a row per span for pandas, CSV and Parquet, and its memory over time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from io import BytesIO
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, assert_never

from pipesched.schedules import MemorySample, Span, Timeline
from pipesched.schedules.ops import Compute, Overlap, Recv, Send, StageOp
from pipesched.simulator import SimulationError
from pipesched.simulator.analysis import CellValue, label
from pipesched.simulator.memory import InFlight
from pipesched.simulator.views.figure import require_suffix, write_bytes

if TYPE_CHECKING:
    import pandas as pd

_WHOLE = ("rank", "device", "stage", "microbatch", "version", "lookahead", "peer")
_COLUMNS = (
    "rank", "device", "op", "phase", "stage", "microbatch", "version", "lookahead", "peer",
    "posted_s", "start_s", "end_s",
)  # fmt: skip


def to_frame(timeline: Timeline) -> pd.DataFrame:
    """Return a row per span, in the Timeline's order.

    `phase` is the kind of op (``F``, ``SEND_F``, ``Step``, ``F+B`` for an Overlap). Numbers that an op does not have
    are missing (pandas' nullable integers). An Overlap has two values for some columns, so these are missing too; see
    `op`.
    """
    import pandas as pd

    frame = pd.DataFrame([_record(span, timeline) for span in timeline.spans], columns=list(_COLUMNS))
    types = dict.fromkeys(_WHOLE, "Int64") | dict.fromkeys(("posted_s", "start_s", "end_s"), "float64")
    return frame.astype(types)


def write_frame(timeline: Timeline, path: Path | str) -> None:
    """Write the table of `timeline` to a .csv or .parquet file.

    Raises:
        SimulationError: The suffix is another one, Parquet is asked for without pyarrow, or the file cannot be written.
    """
    if require_suffix(path, (".csv", ".parquet")) == ".csv":
        write_bytes(path, to_frame(timeline).to_csv(index=False, lineterminator="\n").encode())
        return
    write_parquet(to_frame(timeline), path)


def write_parquet(frame: pd.DataFrame, path: Path | str) -> None:
    """Write a table as Parquet.

    Raises:
        SimulationError: pyarrow is not installed, or the file cannot be written.
    """
    require_parquet(path)
    data = BytesIO()
    frame.to_parquet(data, index=False, engine="pyarrow")
    write_bytes(path, data.getvalue())


def require_parquet(path: Path | str) -> None:
    """Refuse to write `path` as Parquet where that is not possible.

    Raises:
        SimulationError: pyarrow is not installed.
    """
    if find_spec("pyarrow") is None:
        raise SimulationError(
            f"{path}: got no package pyarrow, which Parquet needs, expected it installed; try pip install pyarrow, or "
            ".csv"
        )


def _record(span: Span, timeline: Timeline) -> dict[str, Any]:
    """Return one row; omitted values are missing."""
    shown = label(span.op)
    row: dict[str, Any] = {
        "rank": span.rank,
        "device": timeline.rank_to_device[span.rank],
        "op": str(span.op),
        "phase": shown.kind,
        "posted_s": span.posted_s,
        "start_s": span.start_s,
        "end_s": span.end_s,
    }
    place = {"stage": shown.stage, "microbatch": shown.microbatch}
    op = span.op
    match op:
        case Overlap():
            return row
        case Compute():
            return row | place | {"version": op.version, "lookahead": op.lookahead}
        case Send() | Recv():
            return row | place | {"peer": op.peer}
        case StageOp():
            return row | place
        case _:
            assert_never(op)


_Sample = TypeVar("_Sample", InFlight, MemorySample)


def memory_table(counts: Iterable[InFlight], samples: Sequence[MemorySample]) -> list[dict[str, CellValue]]:
    """Return a row per device and instant: micro-batches, and the bytes if known, in all and by kind.

    Args:
        counts: Counts in order of device, then time.
        samples: Samples in order of device, then time; empty where no bytes are known.
    """
    changes: dict[tuple[int, float, int], dict[str, CellValue]] = {
        place: {"microbatches": count.microbatches} for place, count in _placed(counts)
    }
    for place, sample in _placed(samples):
        sizes: dict[str, CellValue] = {"total_bytes": sample.total_bytes}
        sizes |= {f"{kind}_bytes": num_bytes for kind, num_bytes in sample.bytes_by_kind}
        changes.setdefault(place, {}).update(sizes)
    rows: list[dict[str, CellValue]] = []
    held: dict[str, CellValue] = {}
    for (device, time_s, _), changed in sorted(changes.items(), key=lambda item: item[0]):
        if not rows or rows[-1]["device"] != device:
            held = {}
        held |= changed  # other columns keep their values
        rows.append({"device": device, "time_s": time_s, **held})
    return rows


def _placed(samples: Iterable[_Sample]) -> Iterator[tuple[tuple[int, float, int], _Sample]]:
    """Yield each sample with its device, its time, and its place among simultaneous samples: -1 is the last."""
    for (device, time_s), group in groupby(samples, key=lambda sample: (sample.device, sample.time_s)):
        together = list(group)
        for place, sample in enumerate(together, -len(together)):
            yield (device, time_s, place), sample
