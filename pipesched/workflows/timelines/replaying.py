"""Replay a run with the measured times of its ops; and explain the error of a prediction by its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pipesched.schedules import Timeline, schedule_of
from pipesched.schedules.check import require_runnable
from pipesched.schedules.lowering import lower
from pipesched.simulator import SAME, SimulationError, views
from pipesched.simulator.analysis import CellValue, metrics, readable_change_s, readable_s
from pipesched.simulator.fidelity import ErrorSplit, NetworkModel, SplitError, split_error
from pipesched.workflows import Result, Table, timeline_notes
from pipesched.workflows.arguments import ScheduleSource
from pipesched.workflows.simulating import SetupArgument, predict_source, read_setup_argument
from pipesched.workflows.timelines.timeline_views import TimelineArgument, read_timeline_argument

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, repr=False)
class Replay(Result):
    """A run, and the simulation of its lists with the measured times of its ops.

    Attributes:
        measured: The run.
        predicted: The same lists with the given costs, or None without costs.
        split: The parts of messages and posting, and of the costs, in the error.
    """

    measured: Timeline
    predicted: Timeline | None
    split: ErrorSplit

    @property
    def explanation(self) -> Explanation:
        """Why the prediction, or the replay, is off."""
        return Explanation(self.split.sentence("the costs say"), self.split)

    @property
    def notes(self) -> list[str]:
        """Cautions about the seconds, a line each."""
        return timeline_notes(self.measured)

    def __repr__(self) -> str:
        return f"Replay({self.explanation.sentence})"

    def to_frame(self) -> pd.DataFrame:
        """Return a row per quantity: its error and the parts of it, in seconds and relative to the measurement."""
        import pandas as pd

        return pd.DataFrame(self.split.to_rows()).astype({"device": "Int64"})

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as ``pipesched replay --json`` prints it."""
        return {"name": self.measured.name, **self.explanation.to_dict()}

    def plot(self) -> Figure:
        """Draw the prediction, or without costs the replay of works alone, and the run."""
        return views.gantt_figure([self.first, self.measured], caption=self.explanation.sentence)

    @property
    def first(self) -> Timeline:
        """The baseline of the run: the prediction, or without costs the replay of works alone."""
        return self.predicted or replace(self.split.replays[0], source="works alone")

    def table(self) -> Table:
        """Return the parts of every quantity's error, formatted for people."""
        return split_table([self.explanation])


def replay(timeline: TimelineArgument, setup: SetupArgument | None = None) -> Replay:
    """Simulate the lists of a run with the measured times of its ops, and split its time into parts.

    Args:
        timeline: Timeline of a run, with its messages, or a file of it.
        setup: Costs, machines and other conditions for a prediction of the same lists, a `Setup`; or the costs alone;
            None: no prediction.

    Raises:
        ArgumentError: `timeline` is no Timeline, or an argument makes no sense.
        NotRunnableError: The lists cannot run to their end.
        ScheduleError: A file is no Timeline.
        ProfileError: The costs do not fit, or a file is bad.
        SimulationError: The Timeline is no run, takes no time, has no messages, or cannot be simulated.
    """
    measured = read_timeline_argument(timeline, "timeline")
    conditions = None if setup is None else read_setup_argument(setup)
    if not measured.is_measured:
        raise SimulationError(
            f"{measured.name}: got a Timeline that was {measured.source}, expected a measured Timeline; try a Timeline "
            "that pipesched.run has measured"
        )
    metrics(measured)  # which refuses a run that takes no time
    schedule = schedule_of(measured)
    require_runnable(schedule)
    if list(map(len, lower(schedule).ops)) != list(map(len, schedule.ops)):
        raise SimulationError(
            f"{measured.name}: got a timeline without the Sends and Recvs of its messages, expected both, because "
            "hand-over is measured from their posting; try the Timeline of a run"
        )
    if conditions is None:
        return Replay(measured, None, split_error(measured))
    prediction = predict_source(ScheduleSource(schedule), conditions)
    network = NetworkModel(prediction.costs, prediction.cluster, conditions.network)
    return Replay(measured, prediction.timeline, split_error(measured, prediction.timeline, network))


PARTS = ("costs", "hand_over", "rest")
"""The parts of an error, as programs read them."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a prediction is off.

    Attributes:
        sentence: The parts of the makespan's error, or why it cannot be split.
        split: The parts of the error, or None if it cannot be split.
    """

    sentence: str
    split: ErrorSplit | None

    def shares(self) -> dict[str, float | None]:
        """Return the parts of the makespan's error, relative to the measurement."""
        return dict.fromkeys(PARTS) if self.split is None else _shares(self.split.makespan)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"explanation": self.sentence, "split": None if self.split is None else self.split.to_dict()}

    def added_to(self, rows: Sequence[dict[str, CellValue]]) -> list[dict[str, CellValue]]:
        """Return rows of a comparison with the parts of each split quantity, relative to the measurement."""
        if self.split is None:
            return list(rows)
        parts: dict[tuple[CellValue, CellValue], dict[str, float | None]] = {
            (quantity.name, quantity.device): _shares(quantity) for quantity in self.split.quantities
        }
        nothing: dict[str, float | None] = dict.fromkeys(PARTS)
        return [{**row, **parts.get((row["quantity"], row["device"]), nothing)} for row in rows]


def explain_error(
    measured: Timeline,
    predicted: Timeline | None = None,
    network: NetworkModel | None = None,
    *,
    than: str = "predicted",
    predicted_s: float | None = None,
) -> Explanation:
    """Explain why a prediction is off.

    Args:
        measured: A run.
        predicted: The prediction of the same lists; None: the run is replayed alone.
        network: Network of the prediction; None: messages are taken from its Timeline.
        than: Participle for the baseline in the sentence: the ops were slower than ``predicted``.
        predicted_s: The predicted makespan, if its Timeline is unknown [s].
    """
    try:
        split = split_error(measured, predicted, network)
        if predicted_s is not None:
            makespan = replace(split.makespan, predicted_s=predicted_s)
            split = replace(split, quantities=(makespan, *split.quantities[1:]))
    except SimulationError as error:
        return Explanation(f"{measured.name}: the error cannot be split: {error}", None)
    return Explanation(split.sentence(than), split)


def split_table(explanations: Sequence[Explanation]) -> Table:
    """Return the parts of every error in seconds, several runs one under another, and the sentences."""
    splits = [explanation.split for explanation in explanations if explanation.split is not None]
    rows = tuple(
        _row(f"{split.name} " if len(splits) > 1 else "", quantity) for split in splits for quantity in split.quantities
    )
    title = "Parts of the errors" if rows else ""
    return Table(title, rows, "\n".join(explanation.sentence for explanation in explanations))


def _row(whose: str, quantity: SplitError) -> dict[str, str]:
    where = "" if quantity.device is None else f" of device {quantity.device}"
    return {
        "": f"{whose}{quantity.name.removesuffix('_s')}{where}",
        "error": _signed(quantity, quantity.error_s),
        "costs": "-" if quantity.predicted_s is None else _signed(quantity, quantity.costs_s),
        "hand-over": _signed(quantity, quantity.hand_over_s),
        "rest": _signed(quantity, quantity.rest_s),
        "measured": readable_s(quantity.measured_s),
    }


def _signed(quantity: SplitError, seconds: float) -> str:
    if abs(seconds) <= SAME * quantity.measured_s:
        return readable_s(0.0)
    return readable_change_s(seconds)


def _shares(quantity: SplitError) -> dict[str, float | None]:
    return {part: quantity.share(getattr(quantity, f"{part}_s")) for part in PARTS}
