"""The layout of a Gantt chart: a row per rank, a box per op; and the details of a run beside it."""

from __future__ import annotations

from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Annotated, ClassVar

from pipesched.profiles.clusters import Cluster
from pipesched.schedules import Span, Timeline
from pipesched.schedules.common import Description
from pipesched.schedules.ops import Compute, Op, Overlap, Reduce, computes
from pipesched.simulator.analysis import Metrics, label, metrics, readable_s, sources
from pipesched.simulator.views.figure import FigureStyle

_STEP, _LIGHTEST = 0.45, 0.6
"""The lightness from a rank's stage to its next, and of the last of many, still far from the colour of idle time."""
_MOST_NAMES = 5  # more make no title, and are in the headings


@dataclass(frozen=True, slots=True)
class ChartOptions:
    """The visible parts of a chart, and the size and font of a picture; a page has its own."""

    panel: ClassVar[str] = "Output"

    from_s: Annotated[
        float,
        Description("Start of the axis [s], after the first work.", least=0.0, option="--from", more="Or as 10ms."),
    ] = 0.0
    to_s: Annotated[
        float | None,
        Description("End of the axis [s]; none: the end of the run.", least=0.0, option="--to", more="Or as 50ms."),
    ] = None
    has_idle: Annotated[bool, Description("Colour idle time by its causes.", more="With --out.")] = False
    has_memory: Annotated[
        bool, Description("Draw the memory of the devices below, with its limits.", more="With --out.")
    ] = False
    style: FigureStyle = FigureStyle()  # noqa: RUF009 -- frozen


WHOLE = ChartOptions()
"""All of the time, without idle causes and memory."""


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
        lightness: 0 for the rank's first stage, more for each later one, never so much that it looks idle.
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
        """The kind of the op, as in `Label`; for half of an Overlap, the kind of that half."""
        return label(self.op).kind


@dataclass(frozen=True, slots=True)
class Chart:
    """The contents of a chart, and their places.

    Attributes:
        timelines: Each with its first work at 0 s.
        makespans_s: Makespan of each Timeline.
        names: A different one for each Timeline.
        measures: The metrics of each Timeline.
        captions: The makespan and bubble of each Timeline, for people.
        works: Works of each row, without Sends and Recvs; a Reduce has only the parts that no other work covers.
        headings: The height of each Timeline's heading; empty if there is one Timeline, or the rows are paired.
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

    def interval(self, options: ChartOptions) -> tuple[float, float]:
        """Return where the axis begins and ends [s].

        Without `to_s`, a few Timelines that take more than twice as long as most are cut, so that most can be seen.
        """
        if options.to_s is not None:
            return options.from_s, options.to_s
        longest_s = max(self.makespans_s)
        usual_s = 2 * sorted(self.makespans_s)[len(self.makespans_s) // 2]
        if longest_s <= usual_s or options.from_s:
            return options.from_s, longest_s
        return 0.0, 1.1 * max(makespan_s for makespan_s in self.makespans_s if makespan_s <= usual_s)

    def boxes_between(self, from_s: float, to_s: float) -> list[Box]:
        """Return the boxes that are seen between two instants, each cut at them."""
        return [
            replace(box, start_s=max(from_s, box.start_s), end_s=min(to_s, box.end_s))
            for box in self.boxes
            if box.start_s < to_s and box.end_s > from_s
        ]

    @property
    def title(self) -> str:
        """The names of the schedules, with the numbers of ranks, micro-batches and chunks if all have the same."""
        names = list(dict.fromkeys(timeline.name for timeline in self.timelines))
        name = ", ".join(names) if len(names) <= _MOST_NAMES else f"{len(names)} schedules"
        counts = list(map(_counts, self.timelines))
        told = [text for text in counts[0] if all(text in others for others in counts)]
        return f"{name}: {', '.join(told)}" if told else name

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
                    chunk = stages.index(shown.stage) if isinstance(part, Compute) else 0
                    lightness = chunk * min(_STEP, _LIGHTEST / max(1, len(stages) - 1))
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
    captions = tuple(map(caption_of, measures))
    return Chart(shown, makespans_s, names, measures, captions, tuple(rows), _works(shown, rows), tuple(headings), y)


def _works(timelines: Sequence[Timeline], rows: Sequence[Row]) -> tuple[tuple[Span, ...], ...]:
    spans_of: dict[tuple[int, int], list[Span]] = defaultdict(list)
    for index, timeline in enumerate(timelines):
        for span in timeline.without_messages:
            spans_of[index, span.rank].append(span)
    return tuple(tuple(uncovered(spans_of[row.timeline, row.rank])) for row in rows)


def uncovered(works: Sequence[Span]) -> Iterator[Span]:
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


def caption_of(measures: Metrics) -> str:
    """Return the makespan and bubble of a Timeline, for people."""
    return f"{readable_s(measures.makespan_s)}, bubble_fraction {measures.bubble_fraction:.1%}"


def _counts(timeline: Timeline) -> list[str]:
    """Return the numbers of ranks p, of micro-batches m and, if above 1, of stages of a rank v."""
    stages: dict[int, set[int]] = defaultdict(set)
    microbatches = set()
    for span in timeline.spans:
        for part in computes(span.op):
            stages[span.rank].add(part.stage)
            microbatches.add(part.microbatch)
    most = max(map(len, stages.values()), default=1)
    texts = [f"p = {len(timeline.rank_to_device)}", f"m = {len(microbatches)}"]
    return texts if most < 2 else [*texts, f"v = {most}"]


@dataclass(frozen=True, slots=True)
class RunDetails:
    """Details of a run beside its Timeline.

    Attributes:
        memory_bytes: Memory of each device [bytes]; a missing device has no limit.
        settings: Settings of the run by name, as text for people; ``costs`` is the source of the costs.
        in_flight: The most micro-batches that each device holds; empty if unknown.
    """

    memory_bytes: Mapping[int, int] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    in_flight: Mapping[int, float] = field(default_factory=dict)


def run_details(
    timeline: Timeline,
    cluster: Cluster,
    settings: Mapping[str, object] | None = None,
    in_flight: Mapping[int, float] | None = None,
) -> RunDetails:
    """Return the details of a run.

    Args:
        timeline: Timeline with the devices in use.
        cluster: Cluster with their memory.
        settings: Settings of the run by name; None values are left out.
        in_flight: The most micro-batches that each device holds, or None if unknown.
    """
    limits = {device: cluster.devices[device].memory_bytes for device in timeline.devices}
    told = {name: str(value) for name, value in (settings or {}).items() if value is not None}
    known = {device: limit for device, limit in limits.items() if limit is not None}
    return RunDetails(known, told, in_flight or {})


def title_of(chart: Chart, details: Sequence[RunDetails]) -> str:
    """Return the title of a chart that was given none: schedules, numbers, and the costs if all have the same."""
    costs = {run.settings.get("costs") for run in details}
    origin = costs.pop() if len(costs) == 1 else None
    return f"{chart.title}; costs: {origin}" if origin else chart.title
