"""The data of a page of Timelines: columns of whole numbers, a few bytes for each box.

Times are in ticks, the power of ten that cuts the longest makespan into 1e9 to 1e10 of them. Spans that follow one
another are two columns: `gap` from the end of the one before to the start, and `width`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Any, TypeAlias

from pipesched.schedules import MemorySample
from pipesched.schedules.common import printable
from pipesched.schedules.ops import Compute, Message, Op, Recv, Send, gives, needs_from_others
from pipesched.schedules.semantics import transfers
from pipesched.simulator.analysis import Piece, idle_parts, label
from pipesched.simulator.views.figure import DARK_RED, FAINT, IDLE, INK, WHITE
from pipesched.simulator.views.gantt_chart import WHOLE, Box, Chart, ChartOptions
from pipesched.simulator.views.op_looks import CAUSE_LOOKS, LEGEND, Face, hex_of, is_dark, kind_looks, lighter, look

_Data: TypeAlias = dict[str, Any]
_Ticks: TypeAlias = Callable[[float], int]


def page_data(
    chart: Chart,
    paths: Sequence[Sequence[Piece]],
    memory_bytes: Sequence[Mapping[int, int]],
    options: ChartOptions = WHOLE,
) -> _Data:
    """Return the data of a chart for the script of a page.

    Args:
        chart: Rows and boxes.
        paths: The critical path of each Timeline.
        memory_bytes: Memory of the devices of each Timeline [bytes]; a missing device has no limit.
        options: Parts that are visible at first.
    """
    tick_s = 10.0 ** (math.floor(math.log10(max(chart.makespans_s))) - 9)

    def ticks(time_s: float) -> int:
        return round(time_s / tick_s)

    boxes = _boxes_of_rows(chart)
    faces: dict[tuple[str, Face], int] = {}
    rows = _rows(chart, boxes, faces, ticks)
    used = {name for name, _ in faces}
    colours = dict(look(box.op) for row in boxes for box in row)
    kinds = kind_looks(chart.timelines)
    return {
        "tick_s": tick_s,
        "end": max(map(ticks, chart.makespans_s)),
        "from": ticks(options.from_s),
        "to": None if options.to_s is None else ticks(options.to_s),
        "has_idle": options.has_idle,
        "depth": chart.depth,
        "palette": {"ink": INK, "faint": FAINT, "idle": IDLE, "limit": DARK_RED, "paper": WHITE},
        "looks": [{"name": name, "colour": hex_of(face), "dark": is_dark(face)} for name, face in faces],
        "legend": [[name, colours[name]] for name in LEGEND if name in used],
        "has_lighter": any(box.lightness for row in boxes for box in row),
        "causes": [[cause, colour, meaning] for cause, (colour, meaning) in CAUSE_LOOKS.items()],
        "kinds": [[printable(kind), hex_of(face)] for kind, face in kinds.items()],
        "headings": list(chart.headings),
        "rows": rows,
        "runs": [
            _run(chart, index, path, limits, list(kinds), ticks)
            for index, (path, limits) in enumerate(zip(paths, memory_bytes, strict=True))
        ],
    }


def _columns(spans: Iterable[tuple[float, float]], ticks: _Ticks) -> _Data:
    """Return (start, end) of each span as two columns."""
    timed = [(ticks(start_s), ticks(end_s)) for start_s, end_s in spans]
    gaps = [start - before for (_, before), (start, _) in pairwise([(0, 0), *timed])]
    return {"gap": gaps, "width": [end - start for start, end in timed]}


def _boxes_of_rows(chart: Chart) -> list[list[Box]]:
    """Return the boxes of each row, in order of their starts."""
    boxes: list[list[Box]] = [[] for _ in chart.rows]
    for box in chart.boxes:
        boxes[box.row].append(box)
    return [sorted(row, key=attrgetter("start_s")) for row in boxes]


def _rows(
    chart: Chart, boxes: Sequence[Sequence[Box]], faces: dict[tuple[str, Face], int], ticks: _Ticks
) -> list[_Data]:
    """Return a row per rank of each Timeline; fill `faces` with the name and colour of boxes.

    `half` of a box is 0, or 1 and 2 for the upper and the lower half of an Overlap; `after` is the number of the box,
    in order of all rows, that made the message it needs from another rank, or -1.
    """
    makers = _makers(chart, boxes)
    rows = []
    for row, own, works in zip(chart.rows, boxes, chart.works, strict=True):
        timeline = chart.timelines[row.timeline]
        senders, num_stages = makers[row.timeline]
        after = []
        for box in own:
            needed = needs_from_others(box.op, num_stages) if isinstance(box.op, Compute) else ()
            after.append(next((senders.get((row.rank, message), -1) for message in needed), -1))
        looks = [(look(box.op)[0], lighter(look(box.op)[1], box.lightness)) for box in own]
        shown = [label(box.op) for box in own]
        busy_s = sum(span.end_s - span.start_s for span in works if span.is_work)
        rows.append(
            {
                "run": row.timeline,
                "rank": row.rank,
                "device": timeline.rank_to_device[row.rank],
                "y": round(row.y, 4),
                "height": row.height,
                "busy": f"{busy_s / chart.makespans_s[row.timeline]:.0%}",
                **_columns(((box.start_s, box.end_s) for box in own), ticks),
                "look": [faces.setdefault(face, len(faces)) for face in looks],
                "stage": [part.stage for part in shown],
                "microbatch": [-1 if part.microbatch is None else part.microbatch for part in shown],
                "half": [0 if box.height == row.height else 1 if box.y < row.y else 2 for box in own],
                "after": after,
            }
        )
    return rows


def _makers(chart: Chart, boxes: Sequence[Sequence[Box]]) -> list[tuple[dict[tuple[int, Message], int], int]]:
    """Return, for each Timeline, the box that made each received message, and the number of stages."""
    made: list[dict[tuple[int, Message], int]] = [{} for _ in chart.timelines]
    num_stages = [0] * len(chart.timelines)
    first = 0
    for row, own in zip(chart.rows, boxes, strict=True):
        for number, box in enumerate(own, start=first):
            if isinstance(box.op, Compute):
                num_stages[row.timeline] = max(num_stages[row.timeline], box.op.stage + 1)
                message = gives(box.op)
                if message is not None:
                    made[row.timeline][row.rank, message] = number
        first += len(own)
    return [
        (
            {
                (recv.rank, message): made[index][send.rank, message]
                for message, send, recv in transfers(timeline.spans)
                if (send.rank, message) in made[index]
            },
            num_stages[index],
        )
        for index, timeline in enumerate(chart.timelines)
    ]


def _run(
    chart: Chart, index: int, path: Sequence[Piece], limits: Mapping[int, int], kinds: Sequence[str], ticks: _Ticks
) -> _Data:
    """Return the data of a whole Timeline: its idle time and memory by device, and its critical path."""
    timeline = chart.timelines[index]
    causes = list(CAUSE_LOOKS)
    idle = {
        device: {
            **_columns(((part.start_s, part.end_s) for part in parts), ticks),
            "cause": [causes.index(part.cause) for part in parts],
        }
        for device, parts in idle_parts(timeline).items()
    }
    path = [piece for piece in path if piece.seconds > 0]
    samples: defaultdict[int, list[MemorySample]] = defaultdict(list)
    for sample in timeline.memory:
        samples[sample.device].append(sample)
    return {
        "name": printable(chart.names[index]),
        "heading": printable(f"{timeline.name}, {timeline.source}: {chart.captions[index]}"),
        "caption": chart.captions[index],
        "end": ticks(chart.makespans_s[index]),
        "idle": idle,
        "path": {
            **_columns(((piece.start_s, piece.end_s) for piece in path), ticks),
            "kind": [piece.kind.value for piece in path],
            "from": [_ranks(piece.span.op, piece.span.rank)[0] for piece in path],
            "to": [_ranks(piece.span.op, piece.span.rank)[1] for piece in path],
        },
        "memory": [_memory(device, samples[device], limits.get(device), kinds, ticks) for device in sorted(samples)],
    }


def _ranks(op: Op, rank: int) -> tuple[int, int]:
    """Return the rank on which a piece of the critical path begins, and the one on which it ends."""
    match op:
        case Recv(peer=peer):
            return peer, rank
        case Send(peer=peer):
            return rank, peer
        case _:
            return rank, rank


def _memory(
    device: int, samples: Sequence[MemorySample], limit: int | None, kinds: Sequence[str], ticks: _Ticks
) -> _Data:
    """Return the memory of a device: instants and bytes of each kind, each as the difference to the one before."""
    held = [dict(sample.bytes_by_kind) for sample in samples]
    return {
        "device": device,
        "limit": limit,
        "time": _differences([ticks(sample.time_s) for sample in samples]),
        "bytes": [_differences([kinds_held.get(kind, 0) for kinds_held in held]) for kind in kinds],
    }


def _differences(values: Sequence[int]) -> list[int]:
    return [after - before for before, after in pairwise([0, *values])]
