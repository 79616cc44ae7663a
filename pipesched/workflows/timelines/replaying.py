"""Replay a run: simulate its lists with the measured times of its ops, and split its time into parts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pipesched.schedules import Timeline, schedule_of
from pipesched.schedules.check import require_runnable
from pipesched.schedules.lowering import lower
from pipesched.simulator import SimulationError
from pipesched.simulator.analysis import metrics
from pipesched.simulator.fidelity import ErrorSplit, NetworkModel, split_error
from pipesched.workflows import Table, timeline_notes
from pipesched.workflows.arguments import ScheduleSource
from pipesched.workflows.simulating import SetupArgument, predict_source, read_setup_argument
from pipesched.workflows.timelines.explanation import Explanation, split_table
from pipesched.workflows.timelines.timeline_views import TimelineArgument, read_timeline_argument

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, repr=False)
class Replay:
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
        from pipesched.simulator.views import gantt_figure

        return gantt_figure([self.first, self.measured], caption=self.explanation.sentence)

    @property
    def first(self) -> Timeline:
        """The baseline of the run: the prediction, or without costs the replay of works alone."""
        return self.predicted or replace(self.split.replays[0], source="works alone")

    def table(self) -> Table:
        """Return the parts of every quantity's error, formatted for people."""
        return split_table([self.explanation])

    def _repr_html_(self) -> str:
        return self.table().noted(self.notes).to_html()


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
            f"{measured.name}: got a Timeline that was {measured.source}, expected a measured one; "
            "try one that pipesched.run has measured"
        )
    metrics(measured)  # which refuses a run that takes no time
    schedule = schedule_of(measured)
    require_runnable(schedule)
    if list(map(len, lower(schedule).ops)) != list(map(len, schedule.ops)):
        raise SimulationError(
            f"{measured.name}: got a timeline without the Sends and Recvs of its messages, expected them: hand-over is "
            "told from when they were posted; try the Timeline of a run"
        )
    if conditions is None:
        return Replay(measured, None, split_error(measured))
    prediction = predict_source(ScheduleSource(schedule), conditions)
    network = NetworkModel(prediction.costs, prediction.cluster, conditions.network)
    return Replay(measured, prediction.timeline, split_error(measured, prediction.timeline, network))
