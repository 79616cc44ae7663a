"""Two Timelines of one schedule side by side: a prediction and a measurement, or two of one kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipesched.schedules import Timeline
from pipesched.schedules.ops import Reduce, WeightsOp
from pipesched.simulator import views
from pipesched.simulator.analysis import (
    CellValue,
    Comparison,
    Quantity,
    compare_timelines,
    readable_change,
    readable_s,
)
from pipesched.workflows import (
    NOT_ONE_SPEED,
    Result,
    Table,
    cell_text,
    merged_notes,
    other_speed,
    quantity_title,
    timeline_notes,
    with_equal_devices,
    without_dull,
)
from pipesched.workflows.timelines.replaying import Explanation, explain_error, split_table
from pipesched.workflows.timelines.timeline_views import TimelineArgument, read_timeline_argument

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_OF_WEIGHTS = (Reduce, WeightsOp)
"""Work that a trace shows only if its writer names it."""


@dataclass(frozen=True, slots=True, repr=False)
class TimelineComparison(Result):
    """Two Timelines of one schedule: a prediction and a measurement, or two of one kind.

    Attributes:
        timelines: The prediction first; two Timelines of one kind in the given order, with distinct names.
        comparison: Every quantity in both, and their differences.
        explanation: Why the prediction is off; None for two predictions or two measurements.
        left_out: Sentences on ops that only one of the two has.
    """

    timelines: tuple[Timeline, Timeline]
    comparison: Comparison
    explanation: Explanation | None = None
    left_out: tuple[str, ...] = ()

    def __repr__(self) -> str:
        first, second = self.timelines
        makespans = f"{first.makespan_s:.6g} s and {second.makespan_s:.6g} s"
        return f"TimelineComparison({first.name!r}: {first.source} and {second.source}, makespans {makespans})"

    def to_frame(self) -> pd.DataFrame:
        """Return a row per quantity: makespan, bubble, and busy, idle and peak memory of each device."""
        import pandas as pd

        return pd.DataFrame(self.to_rows()).astype({"device": "Int64"})

    def to_rows(self) -> list[dict[str, CellValue]]:
        """Return the quantities as plain data, a row each, with the parts of the error of a prediction."""
        rows = self.comparison.to_rows()
        return rows if self.explanation is None else self.explanation.added_to(rows)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as ``pipesched compare --json`` prints it."""
        return {**self.comparison.to_dict(), **({} if self.explanation is None else self.explanation.to_dict())}

    @property
    def notes(self) -> list[str]:
        """Cautions about the seconds, a line each."""
        first, second = self.timelines
        speeds = (first.yardstick, second.yardstick)
        of_two = other_speed(*speeds, NOT_ONE_SPEED, (first.source, second.source))
        speed = of_two if self.explanation is None else other_speed(*speeds)
        return [
            *self.left_out,
            *speed,
            *merged_notes(
                (timeline.source, f"{timeline.source}: {note}")
                for timeline in self.timelines
                for note in timeline_notes(timeline)
            ),
        ]

    @property
    def caption(self) -> str:
        """The caption of a picture: why the prediction is off; empty for two predictions or measurements."""
        return "" if self.explanation is None else self.explanation.sentence

    def plot(self) -> Figure:
        """Draw both on one time axis, the rows of a rank together."""
        return views.gantt_figure(self.timelines, caption=self.caption)

    def table(self) -> Table:
        """Return a row per device, formatted for people; below, makespan and bubble."""
        return comparison_table([self.comparison])

    def tables(self) -> list[Table]:
        """Return the comparison, and the parts of the error of a prediction."""
        return [*filter(None, (self.table(), self.split_table()))]

    def split_table(self) -> Table | None:
        """Return the parts of the error of a prediction, or None for two predictions or two measurements."""
        return None if self.explanation is None else split_table([self.explanation])


def compare_runs(first: TimelineArgument, second: TimelineArgument) -> TimelineComparison:
    """Compare two runs of the same op lists, without optimizer steps and reductions that one of them lacks.

    Args:
        first: A Timeline, a simulation, or a file of a Timeline; a prediction and a measurement may come in any order.
        second: The other one, given as the first.

    Raises:
        ArgumentError: One is neither a Timeline nor a simulation nor a file.
        ScheduleError: A file is no Timeline.
        SimulationError: The devices or op lists differ, or nothing in one takes time.
    """
    given = (first, second)
    *timelines, left_out = _in_common(read_timeline_argument(first, "first"), read_timeline_argument(second, "second"))
    predicted, measured = sorted(timelines, key=lambda timeline: timeline.is_measured)
    if predicted.is_predicted and measured.is_measured:
        comparison = compare_timelines(predicted, measured)
        return TimelineComparison((predicted, measured), comparison, explain_error(measured, predicted), left_out)
    files = [
        Path(timeline) if isinstance(timeline, str | Path) else Path(f"run {index}")
        for index, timeline in enumerate(given, 1)
    ]
    names = _told_apart(files, timelines)
    first_timeline, second_timeline = (
        replace(timeline, source=name) for timeline, name in zip(timelines, names, strict=True)
    )
    comparison = compare_timelines(timelines[0], timelines[1], names)
    return TimelineComparison((first_timeline, second_timeline), comparison, left_out=left_out)


def _in_common(first: Timeline, second: Timeline) -> tuple[Timeline, Timeline, tuple[str, ...]]:
    """Return both without the kinds of work on weights that only one has, and a sentence for each kind."""
    spans = [[span for span in timeline.spans if isinstance(span.op, _OF_WEIGHTS)] for timeline in (first, second)]
    kinds = [{type(span.op) for span in own} for own in spans]
    kept, sentences = [], []
    for place, (timeline, other) in enumerate(((first, second), (second, first))):
        extra = tuple(kinds[place] - kinds[1 - place])
        for kind in sorted(extra, key=lambda kind: kind.__name__):
            seconds = sum(span.end_s - span.start_s for span in spans[place] if type(span.op) is kind)
            whose = timeline.source if timeline.source != other.source else ("first", "second")[place]
            ops = f"{kind.__name__} ops ({readable_s(seconds)} in all)"
            sentences.append(f"only the {whose} run has {ops}: left out of the comparison")
        kept.append(timeline if not extra else _without(timeline, extra))
    return kept[0], kept[1], tuple(sentences)


def _without(timeline: Timeline, kinds: tuple[type, ...]) -> Timeline:
    spans = tuple(span for span in timeline.spans if not isinstance(span.op, kinds))
    hand_overs = tuple(hand_over for hand_over in timeline.hand_overs if not isinstance(hand_over.op, kinds))
    return replace(timeline, spans=spans, hand_overs=hand_overs, launch_s=None)  # it covered all ops


def _told_apart(paths: Sequence[Path], timelines: Sequence[Timeline]) -> tuple[str, str]:
    """Return distinct names for two files, as short as possible."""
    (first, second), (first_timeline, second_timeline) = paths, timelines
    whole = str(first.with_suffix("")), str(second.with_suffix(""))
    for names in ((first.stem, second.stem), (first_timeline.name, second_timeline.name), whole):
        if len({*names, "quantity", "device", "difference"}) == 5:  # the other columns are called so
            return names
    return f"{first.stem} 1", f"{second.stem} 2"


def comparison_table(comparisons: Sequence[Comparison]) -> Table:
    """Return a row per device of every comparison, in both runs, with differences; below, the whole runs."""
    rows: list[Mapping[str, str]] = []
    caption: dict[str, None] = {}
    for comparison in comparisons:
        whose = {"schedule": comparison.name} if len(comparisons) > 1 else {}
        rows += [{**whose, **row} for row in with_equal_devices(_device_rows(comparison))]
        caption |= dict.fromkeys(_whole_lines(comparison, "".join(f"{name}: " for name in whose.values())))
    caption |= dict.fromkeys(map(_meaning, comparisons)) | dict.fromkeys(filter(None, map(_furthest_off, comparisons)))
    columns = dict.fromkeys(name for row in rows for name in row)
    cells = without_dull({name: row.get(name, "-") for name in columns} for row in rows)
    return Table(comparisons[0].name if len(comparisons) == 1 else "", cells, "\n".join(caption))


def _device_rows(comparison: Comparison) -> list[Mapping[str, str]]:
    rows: defaultdict[int, dict[str, str]] = defaultdict(dict)
    for name in ("busy_s", "peak_memory_bytes", "idle_s"):  # idle last: it is the makespan without busy time
        for quantity in comparison.quantities:
            if quantity.name == name and quantity.device is not None:
                cells = _cells(quantity, comparison.names)
                rows[quantity.device] |= {f"{quantity_title(name)} {column}": cell for column, cell in cells.items()}
    return [{"device": str(device), **row} for device, row in sorted(rows.items())]


def _whole_lines(comparison: Comparison, whose: str) -> list[str]:
    """Return a line for each quantity of the whole runs."""
    lines = []
    for quantity in comparison.quantities:
        if quantity.device is None:
            cells = _cells(quantity, comparison.names)
            lines.append(
                f"{whose}{quantity_title(quantity.name)}: {', '.join(f'{name} {cell}' for name, cell in cells.items())}"
            )
    return lines


def _meaning(comparison: Comparison) -> str:
    if comparison.names is None:
        return "error = (predicted - measured) / measured"
    first, second = comparison.names
    return f"difference = ({second} - {first}) / {first}"


def _cells(quantity: Quantity, names: tuple[str, str] | None) -> dict[str, str]:
    first, second = names or ("predicted", "measured")
    relative = quantity.error if names is None else quantity.difference
    return {
        first: cell_text(quantity.name, quantity.predicted),
        second: cell_text(quantity.name, quantity.measured),
        "error" if names is None else "difference": "-" if relative is None else readable_change(relative),
    }


def _furthest_off(comparison: Comparison) -> str | None:
    worst = comparison.largest_disagreement
    if worst is None or worst.predicted_s == worst.measured_s:
        return None
    what = f"{worst.kind} of stage {worst.stage}, {worst.count} times"
    if comparison.names is None:
        times = f"{readable_s(worst.predicted_s)} predicted, {readable_s(worst.measured_s)} measured"
        return f"{comparison.name}: furthest off is {what}: {times}"
    first, second = comparison.names
    times = f"{readable_s(worst.predicted_s)} in {first}, {readable_s(worst.measured_s)} in {second}"
    return f"{comparison.name}: furthest apart is {what}: {times}"
