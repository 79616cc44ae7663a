"""The layout of a Gantt chart: a row per rank, a box per op; and the chart as text."""

from __future__ import annotations

from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import assert_never

from pipesched.schedules import (
    Average,
    Compute,
    Op,
    Overlap,
    Recv,
    Reduce,
    Reshard,
    Send,
    Span,
    Step,
    Timeline,
    Unshard,
    computes,
    printable,
)
from pipesched.simulator.analysis import Metrics, label, metrics, readable_s, sources

_MEANINGS = {
    "F": "forward", "B": "backward", "I": "backward for inputs", "W": "backward for weights", "R": "recompute",
    "O": "overlap", "S": "step", "+": "reduce", "A": "average", "u": "unshard", "r": "reshard",
}  # fmt: skip
"""What the letters of `text_gantt` mean, in the order of its legend."""


@dataclass(frozen=True, slots=True)
class Row:
    """The row of one rank of one Timeline; `y` is its middle, counted downwards in rows."""

    timeline: int
    rank: int
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class Box:
    """The box of one computation in a chart.

    Attributes:
        op: The computation; of an Overlap one half.
        text: The micro-batch.
        row: Place of the row among all rows.
        y: The middle, counted downwards in rows.
        lightness: 0 for the rank's first stage, nearer to 1 for each later one.
    """

    op: Op
    text: str
    row: int
    start_s: float
    end_s: float
    y: float
    height: float
    lightness: float

    @property
    def kind(self) -> str:
        """The kind of the op, as in `Label`; of an Overlap, that of one half."""
        return label(self.op).kind


@dataclass(frozen=True, slots=True)
class Chart:
    """What is to be drawn, and where.

    Attributes:
        timelines: Each with its first work at 0 s.
        makespans_s: Makespan of each Timeline.
        names: A different one for each Timeline.
        measures: The metrics of each Timeline.
        captions: The makespan and bubble of each Timeline, for people.
        works: Works of each row, all but its Sends and Recvs; of a Reduce the parts that no other work covers.
        headings: The height of each Timeline's heading; empty when they are paired, or one.
        depth: Height of all rows.
    """

    timelines: tuple[Timeline, ...]
    makespans_s: tuple[float, ...]
    names: tuple[str, ...]
    measures: tuple[Metrics, ...]
    captions: tuple[str, ...]
    rows: tuple[Row, ...]
    works: tuple[tuple[Span, ...], ...]
    headings: tuple[float, ...]
    depth: float

    @property
    def is_paired(self) -> bool:
        """Whether the rows of a rank stand together."""
        return len(self.timelines) > 1 and not self.headings

    @property
    def boxes(self) -> Iterator[Box]:
        """A box for every work that takes time, row by row; the halves of an Overlap lie one above the other."""
        for place, (row, spans) in enumerate(zip(self.rows, self.works, strict=True)):
            stages = sorted({part.stage for span in spans for part in computes(span.op)})
            for span in (span for span in spans if span.end_s > span.start_s):
                parts = computes(span.op) if isinstance(span.op, Overlap) else (span.op,)
                height = row.height / len(parts)
                for index, part in enumerate(parts):
                    shown = label(part)
                    text = "" if shown.microbatch is None else str(shown.microbatch)
                    lightness = stages.index(shown.stage) / max(2, len(stages)) if shown.stage in stages else 0.0
                    y = row.y + (index - (len(parts) - 1) / 2) * height
                    yield Box(part, text, place, span.start_s, span.end_s, y, height, lightness)


def gantt_layout(timelines: Sequence[Timeline]) -> Chart:
    """Return the places of all rows."""
    shown = tuple(timeline.from_zero() for timeline in timelines)
    names = sources(shown)
    rows: list[Row] = []
    headings: list[float] = []
    y = 0.0
    if len(shown) > 1 and len({(timeline.name, timeline.rank_to_device) for timeline in shown}) == 1:
        for rank in range(len(shown[0].rank_to_device)):
            rows += [Row(index, rank, y + 0.36 + 0.74 * index, 0.7) for index in range(len(shown))]
            y += 0.74 * len(shown) + 0.42
        y -= 0.42
    else:
        for index, timeline in enumerate(shown):
            if len(shown) > 1:
                y += 0.9 if index == 0 else 1.3
                headings.append(y - 0.4)
            rows += [Row(index, rank, y + rank + 0.5, 0.78) for rank in range(len(timeline.rank_to_device))]
            y += len(timeline.rank_to_device)
    makespans_s, measures = tuple(timeline.makespan_s for timeline in shown), tuple(map(metrics, shown))
    captions = tuple(map(_caption, measures))
    return Chart(shown, makespans_s, names, measures, captions, tuple(rows), _works(shown, rows), tuple(headings), y)


def _works(timelines: Sequence[Timeline], rows: Sequence[Row]) -> tuple[tuple[Span, ...], ...]:
    spans_of: dict[tuple[int, int], list[Span]] = defaultdict(list)
    for index, timeline in enumerate(timelines):
        for span in timeline.without_messages:
            spans_of[index, span.rank].append(span)
    return tuple(tuple(_uncovered(spans_of[row.timeline, row.rank])) for row in rows)


def _uncovered(works: Sequence[Span]) -> Iterator[Span]:
    """Yield the works of a rank: of a Reduce, which only posts, the parts beside which nothing else runs."""
    others = sorted((s for s in works if not isinstance(s.op, Reduce)), key=attrgetter("start_s"))
    for span in works:
        if not isinstance(span.op, Reduce):
            yield span
            continue
        at_s = span.start_s
        for other in others[max(0, bisect(others, at_s, key=attrgetter("start_s")) - 1) :]:
            if other.start_s >= span.end_s:
                break
            if other.start_s > at_s:
                yield replace(span, start_s=at_s, end_s=other.start_s)
            at_s = max(at_s, other.end_s)
        if at_s < span.end_s:
            yield replace(span, start_s=at_s)


def _caption(measures: Metrics) -> str:
    return f"{readable_s(measures.makespan_s)}, bubble_fraction {measures.bubble_fraction:.1%}"


def text_gantt(timeline: Timeline, width: int = 100) -> str:
    """Return `timeline` for a terminal: a line per rank, a letter per slot of time for what took most of it.

        rank 0  FFFF......BBBBBBBB
        rank 1  ..FFFFBBBBBBBB....
                0             3 s
                F forward  B backward  . idle

    Args:
        timeline: What is shown.
        width: Characters in a line, names included; at least 20 slots are drawn.

    Raises:
        SimulationError: Nothing in the timeline takes time.
    """
    shown = timeline.from_zero()
    caption = _caption(metrics(shown))
    names = [f"rank {rank}" for rank in range(len(shown.rank_to_device))]
    margin = max(map(len, names)) + 2
    num_slots = max(20, width - margin)
    slot_s = shown.makespan_s / num_slots
    lines = [name.ljust(margin) + _slots(shown, rank, num_slots, slot_s) for rank, name in enumerate(names)]
    end = readable_s(shown.makespan_s)
    axis = " " * margin + "0" + end.rjust(num_slots - 1)
    used = {letter for line in lines for letter in line[margin:]} - {"."}
    words = [f"{letter} {_MEANINGS[letter]}" for letter in sorted(used, key=[*_MEANINGS].index)]
    legend = "  ".join([*words, ". idle"])
    return "\n".join([printable(f"{shown.name} {shown.source}: {caption}"), *lines, axis, " " * margin + legend])


def _slots(timeline: Timeline, rank: int, num_slots: int, slot_s: float) -> str:
    """Return the letters of one rank; idle has a slot only if it took more of it than any kind of op."""
    shares: list[dict[str, float]] = [defaultdict(float) for _ in range(num_slots)]
    for span in _uncovered([span for span in timeline.of_rank(rank) if not isinstance(span.op, Send | Recv)]):
        letter = _letter(span.op)
        first = min(num_slots - 1, max(0, int(span.start_s / slot_s)))
        for slot in range(first, min(num_slots, int(span.end_s / slot_s) + 1)):
            shares[slot][letter] += max(0.0, min(span.end_s, (slot + 1) * slot_s) - max(span.start_s, slot * slot_s))
    return "".join(_winner(share, slot_s) for share in shares)


def _letter(op: Op) -> str:
    match op:
        case Compute():
            return op.phase.value
        case Overlap():
            return "O"
        case Step():
            return "S"
        case Reduce():
            return "+"
        case Average():
            return "A"
        case Unshard():
            return "u"
        case Reshard():
            return "r"
        case Send() | Recv():
            raise AssertionError("a message has no slot")
        case _:
            assert_never(op)


def _winner(share: dict[str, float], slot_s: float) -> str:
    """Return the letter of what took most of one slot."""
    idle_s = slot_s - sum(share.values())
    letter = max(share, key=share.__getitem__, default=".")
    return letter if share and share[letter] > 0 and share[letter] >= idle_s * (1 - 1e-9) else "."
