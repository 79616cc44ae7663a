"""Several schedules of one model in one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from pipesched.profiles import ProfileError
from pipesched.questions import RunCount, ScheduleCounts
from pipesched.schedules import ScheduleError
from pipesched.schedules.common import Description
from pipesched.schedules.lowering import lower
from pipesched.simulator import SimulationError, views
from pipesched.simulator.analysis import CellValue, Summary, readable_s, readable_share, summarize
from pipesched.simulator.fast import distribution
from pipesched.workflows import (
    ArgumentError,
    Result,
    Table,
    asks,
    cell_text,
    merged_notes,
    require_names,
    with_nan,
)
from pipesched.workflows.arguments import (
    ScheduleArgument,
    ScheduleSource,
    known_entry,
    label_of,
    read_schedule_argument,
    require_taken,
)
from pipesched.workflows.simulating.prediction import Prediction, predict_source
from pipesched.workflows.simulating.setup import Setup, SetupArgument, read_setup_argument
from pipesched.workflows.simulating.simulation import makespans_of_runs, require_runs

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


REFUSED = (ArgumentError, ScheduleError, ProfileError, SimulationError)
"""Errors of a schedule that is impossible or cannot be predicted; their text is the reason."""


@dataclass(frozen=True, slots=True)
class ComparedSchedule:
    """One schedule of a comparison.

    Attributes:
        summary: The schedule's row; only a name and a reason if it could not be predicted.
        prediction: The prediction, or None without one.
    """

    summary: Summary
    prediction: Prediction | None = None

    @property
    def stage_share(self) -> float | None:
        """The share of each stage in a `DeviceCost`, or None with other costs or without a prediction."""
        return None if self.prediction is None else self.prediction.stage_share

    def to_row(self) -> dict[str, CellValue]:
        """Return plain data."""
        return self.summary.to_row() | {"stage_share": self.stage_share}


@dataclass(frozen=True, slots=True, repr=False)
class ScheduleComparison(Result):
    """Several schedules under the same setup, in the given order."""

    schedules: tuple[ComparedSchedule, ...]

    def __repr__(self) -> str:
        makespans = (
            f"{row.name}: {'-' if row.makespan_s is None else readable_s(row.makespan_s)}" for row in self.summaries
        )
        return f"ScheduleComparison({', '.join(makespans)})"

    @property
    def summaries(self) -> tuple[Summary, ...]:
        """The row of each schedule."""
        return tuple(compared.summary for compared in self.schedules)

    @property
    def predictions(self) -> tuple[Prediction, ...]:
        """The predictions of the schedules that could be predicted."""
        return tuple(compared.prediction for compared in self.schedules if compared.prediction is not None)

    @property
    def notes(self) -> list[str]:
        """Cautions about the numbers, a line each."""
        return merged_notes((p.schedule.name, note) for p in self.predictions for note in p.notes)

    def __getitem__(self, name: str) -> ComparedSchedule:
        """Return the schedule `name`.

        Raises:
            KeyError: The schedule does not exist; the message lists all names.
        """
        compared = {compared.summary.name: compared for compared in reversed(self.schedules)}
        if name not in compared:
            names = ", ".join(row.name for row in self.summaries)
            raise KeyError(f"got {name!r}, expected one of {names}")
        return compared[name]

    def to_rows(self) -> list[dict[str, CellValue]]:
        """Return plain data, a row per schedule."""
        return [compared.to_row() for compared in self.schedules]

    def to_frame(self) -> pd.DataFrame:
        """Return a row per schedule; the columns are the fields of a `Summary`, and missing numbers are NaN."""
        import pandas as pd

        return with_nan(pd.DataFrame(self.to_rows()), ("fits", "reason")).set_index("name")

    def plot(self) -> Figure:
        """Draw the Timelines one under another on one time axis."""
        timelines = [prediction.timeline for prediction in self.predictions]
        return views.gantt_figure(timelines, details=[prediction.details for prediction in self.predictions])

    def table(self, notes: Sequence[str] = ()) -> Table:
        """Return a row per schedule, formatted for people; columns without any value are left out.

        Args:
            notes: Lines of the caption, before the lines on schedules without a prediction.
        """
        rows = self.summaries
        known = {
            title: names
            for title, names in _COLUMNS.items()
            if any(getattr(row, name) is not None for row in rows for name in names)
        }
        cells = tuple({title: _cell(row, names) for title, names in known.items()} for row in rows)
        names: dict[str, list[str]] = {}
        for row in rows:
            if row.reason is not None:
                names.setdefault(row.reason.removeprefix(f"{row.name}: "), []).append(row.name)
        refused = [f"{', '.join(alike)}: {reason}" for reason, alike in names.items()]
        return Table(
            "Schedules, predicted", cells, "\n".join([*_suppositions(self.predictions), *notes, *refused]), _LEGEND
        )


def _suppositions(predictions: Sequence[Prediction]) -> list[str]:
    """Return lines on defaults: the size of micro-batches, stages per rank, and their layers."""
    names: dict[str, list[str]] = {}
    for prediction in predictions:
        if prediction.cut:
            names.setdefault(prediction.cut, []).append(prediction.schedule.name)
    given = [p for p in predictions if p.costs.microbatch_size is not None and p.setup.microbatch_size is None]
    sizes = dict.fromkeys(
        f"micro-batches of {size} sample{'s' * (size != 1)}, where no microbatch_size is given"
        for size in dict.fromkeys(prediction.costs.microbatch_size for prediction in given)
    )
    return [*sizes, *(f"{', '.join(alike)}: {cut}" for cut, alike in names.items()), *_batches(predictions)]


def _batches(predictions: Sequence[Prediction]) -> list[str]:
    """Return a line if schedules have different numbers of micro-batches."""
    names: dict[int, list[str]] = {}
    for prediction in predictions:
        names.setdefault(prediction.schedule.num_microbatches, []).append(prediction.schedule.name)
    counts = "; ".join(f"m = {count}: {', '.join(alike)}" for count, alike in names.items())
    return [f"{counts}; makespans of different batches are not comparable"] if len(names) > 1 else []


_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "schedule": ("name",),
    "makespan": ("makespan_s",),
    "p50 / p90 / p99": ("makespan_p50_s", "makespan_p90_s", "makespan_p99_s"),
    "bubble fraction": ("bubble_fraction",),
    "steady / micro-batch": ("steady_s_per_microbatch",),
    "MFU": ("utilization",),
    "peak memory": ("peak_memory_worst_bytes",),
    "fits": ("fits",),
    "in flight": ("peak_microbatches_worst",),
    "tokens/s": ("tokens_per_s",),
    "TFLOP/s": ("flops_per_s",),
    "steady bubble": ("steady_bubble_fraction",),
    "weight versions": ("weight_versions",),
    "model copies": ("model_copies",),
    "messages": ("messages",),
    "sent": ("sent_bytes",),
    "bubble overhead": ("bubble_overhead",),
    "bubble of longest span": ("bubble_of_longest_span",),
    "least peak": ("peak_memory_best_bytes",),
    "least in flight": ("peak_microbatches_best",),
}
"""Title and fields of each column, the most important first, because a narrow terminal shows only the first.

Other fields are for programs only.
"""
_SHOWN: Mapping[str, Callable[[Any], str]] = {
    "flops_per_s": lambda rate: f"{rate / 1e12:.4g}",
    "messages": lambda count: f"{count:,}",
    "bubble_overhead": readable_share,
    "bubble_of_longest_span": readable_share,
}
"""Texts of fields whose names do not end in their unit, or whose column has another unit."""

_LEGEND = {
    "p50 / p90 / p99": "percentiles of the makespans of the runs",
    "bubble fraction": "idle / (devices x makespan)",
    "steady / micro-batch": (
        "with batch after batch, where each stage steps by itself (with --step-barrier all step together), or without "
        "a flush over a long run"
    ),
    "MFU": "share of a GPU's peak in one batch, estimated",
    "peak memory": "of the device with most",
    "in flight": "micro-batches at most, of the device with most",
    "tokens/s": "of one GPU, estimated",
    "TFLOP/s": "of one GPU, estimated; recomputation does not count",
    "steady bubble": "idle share of all device time at the steady pace",
    "model copies": "weights on all devices together, old versions and predicted ones included",
    "bubble overhead": "(makespan - busiest device) / busiest device",
    "bubble of longest span": "idle share of the rank with the longest span",
    "least peak": "of the device with least",
    "least in flight": "of the device with least",
}


def _cell(summary: Summary, names: Sequence[str]) -> str:
    values = {name: getattr(summary, name) for name in names}
    if None in values.values():
        return "-"
    texts = (_SHOWN[name](value) if name in _SHOWN else cell_text(name, value) for name, value in values.items())
    return " / ".join(dict.fromkeys(texts))


@dataclass(frozen=True)
class CompareQuestion(RunCount, ScheduleCounts):
    """The question of `compare`; its fields are the arguments of that function."""

    schedules: Sequence[ScheduleArgument]
    setup: SetupArgument
    keep_going: Annotated[
        bool,
        Description(
            "Show a schedule that cannot be predicted as a row with the reason, unless this holds for all schedules."
        ),
    ] = field(default=False, kw_only=True)


@asks(CompareQuestion)
def compare(question: CompareQuestion) -> ScheduleComparison:
    """Predict several schedules under the same conditions, each as `simulate` does.

    Args:
        schedules: Lists as `simulate` takes them, and names of the catalogue or builders of your own, as `build` takes
            them, which get the counts below; chunks and parameters are for the schedules that take them.
        setup: Costs, machines and other conditions, a `Setup`; or the costs alone. Layers are cut, and a DeviceCost
            shared, as each schedule needs it.

    Raises:
        ArgumentError: There is no schedule, or none takes `num_chunks` or one of `parameters`.
        ScheduleError: A schedule cannot be built, read or run.
        ProfileError: A file is bad, or does not fit a schedule.
        SimulationError: A schedule cannot be simulated.
    """
    schedules = require_names("schedules", question.schedules)
    num_chunks, parameters = question.num_chunks, question.parameters or {}
    entries = [known_entry(schedule) for schedule in schedules]
    require_taken([entry for entry in entries if entry is not None], num_chunks, parameters)
    sources: list[tuple[str, Callable[[], ScheduleSource]]] = []
    for schedule, entry in zip(schedules, entries, strict=True):
        if entry is None:
            sources.append((label_of(schedule), partial(read_schedule_argument, schedule)))
            continue
        known = [parameter.name for parameter in entry.parameters]
        counts = replace(
            question,
            num_chunks=num_chunks if entry.traits.takes_chunks else None,
            parameters={name: value for name, value in parameters.items() if name in known},
        )
        sources.append((entry.name, partial(read_schedule_argument, schedule, counts)))
    setup = read_setup_argument(question.setup)
    return compare_sources(
        sources,
        lambda source: setup,  # noqa: ARG005
        num_runs=require_runs(question.num_runs, setup.jitter),
        keep_going=REFUSED if question.keep_going else (),
    )


def compare_sources(
    sources: Sequence[tuple[str, Callable[[], ScheduleSource]]],
    setup: Callable[[ScheduleSource], Setup],
    *,
    num_runs: int,
    keep_going: tuple[type[Exception], ...],
    say: Callable[[Exception], str] = str,
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
) -> ScheduleComparison:
    """Compare schedules as `compare` does, from functions that build them.

    Args:
        sources: The name of each schedule, and a function that builds or reads it.
        setup: Returns the setup of each prediction.
        num_runs: Runs of each; several with jitter.
        keep_going: Errors that become a row, unless no schedule can be predicted; others are raised.
        say: Returns the text for an error, as the reason in the row.
        progress: Receives the finished share of the schedules.
    """
    if not sources:
        raise ArgumentError("schedules: got none, expected at least one; try ['gpipe', '1f1b']")
    compared: list[ComparedSchedule] = []
    refused: list[Exception] = []
    for index, (name, read) in enumerate(sources):
        progress(index / len(sources))
        try:
            source = read()
            compared.append(_compared(source, setup(source), num_runs))
        except REFUSED as error:
            refused.append(error)
            if not isinstance(error, keep_going) or len(refused) == len(sources):
                raise (refused[0] if isinstance(error, keep_going) else error) from None
            compared.append(ComparedSchedule(Summary(name=name, reason=say(error))))
    return ScheduleComparison(tuple(compared))


def _compared(source: ScheduleSource, setup: Setup, num_runs: int) -> ComparedSchedule:
    prediction = predict_source(source, setup)
    summary = summarize(
        lower(prediction.schedule),
        prediction.timeline,
        prediction.costs,
        prediction.cluster,
        prediction.pace,
    )
    if num_runs > 1:
        several = distribution(makespans_of_runs(prediction, num_runs))
        summary = replace(
            summary, makespan_p50_s=several.p50_s, makespan_p90_s=several.p90_s, makespan_p99_s=several.p99_s
        )
    rates = prediction.rates
    if rates is not None:
        summary = replace(
            summary,
            tokens_per_s=rates.tokens_per_s,
            flops_per_s=rates.flops_per_s,
            utilization=rates.utilization,
        )
    return ComparedSchedule(summary, prediction)
