"""Verified schedules: each predicted and run, why the prediction is off, and whether the losses agree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipesched.profiles.costs import Profile
from pipesched.schedules import Timeline, Yardstick
from pipesched.simulator.analysis import Comparison, readable_change
from pipesched.workflows import Table, merged_notes, other_speed, timeline_notes
from pipesched.workflows.timelines import Explanation, comparison_table, split_table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

LOSS_TOLERANCE = 1e-5
"""Relative; the sums run in the same order, so float32 agrees to its last digits."""


@dataclass(frozen=True, slots=True, repr=False)
class VerifiedSchedule:
    """One schedule, predicted and run.

    Attributes:
        predicted: The Timeline that the profile predicts.
        measured: The iteration of median makespan.
        comparison: Every quantity in both, and their differences.
        explanation: Why the prediction is off.
        loss: Mean over the micro-batches whose forwards all read the initial weights.
        whole_loss: Loss of the model without a pipeline, on the same micro-batches.
        loss_difference: Largest relative difference of the loss of a micro-batch; infinite if a loss is not a number.
    """

    predicted: Timeline
    measured: Timeline
    comparison: Comparison
    explanation: Explanation
    loss: float
    whole_loss: float
    loss_difference: float

    def __repr__(self) -> str:
        return (
            f"VerifiedSchedule({self.name!r}, makespan_error={self.makespan_error:+.4g}, "
            f"loss_difference={self.loss_difference:.2g})"
        )

    @property
    def name(self) -> str:
        """The name of the schedule."""
        return self.comparison.name

    @property
    def makespan_error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted.makespan_s / self.measured.makespan_s - 1

    @property
    def agrees(self) -> bool:
        """Whether the losses of the run equal the losses of the model without a pipeline."""
        return self.loss_difference <= LOSS_TOLERANCE

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as ``pipesched verify --json`` prints it."""
        difference = self.loss_difference if math.isfinite(self.loss_difference) else None
        return {**self.comparison.to_dict(), **self.explanation.to_dict(), "largest_loss_difference": difference}

    def plot(self) -> Figure:
        """Draw both on one time axis, the rows of a rank together, with why the prediction is off."""
        from pipesched.simulator.views import gantt_figure

        title = f"{self.name}: predicted makespan {readable_change(self.makespan_error)} off the measured one"
        return gantt_figure([self.predicted, self.measured], title, self.explanation.sentence)


def notes_on_runs(schedules: Sequence[VerifiedSchedule]) -> list[str]:
    """Return the notes on the runs of schedules, with names if there are several."""
    whose = [f"{verified.name}: " if len(schedules) > 1 else "" for verified in schedules]
    return merged_notes(
        (verified.name, f"{name}{note}")
        for verified, name in zip(schedules, whose, strict=True)
        for note in timeline_notes(verified.measured)
    )


@dataclass(frozen=True, slots=True, repr=False)
class Verification:
    """Several schedules of one model, each predicted and run.

    Attributes:
        schedules: The schedules, in the given order.
        profile: Profile of the predictions.
    """

    schedules: tuple[VerifiedSchedule, ...]
    profile: Profile

    def __repr__(self) -> str:
        return f"Verification({self.profile.model!r}, {list(self.schedules)})"

    @property
    def agrees(self) -> bool:
        """Whether the losses of all runs equal the losses of the model without a pipeline."""
        return all(verified.agrees for verified in self.schedules)

    @property
    def notes(self) -> list[str]:
        """Cautions about the seconds, a line each."""
        runs = [verified.measured for verified in self.schedules]
        speed = other_speed(self.profile.provenance.yardstick, Yardstick.mean(run.yardstick for run in runs))
        return [*speed, *notes_on_runs(self.schedules)]

    def __getitem__(self, name: str) -> VerifiedSchedule:
        """Return the schedule `name`.

        Raises:
            KeyError: The schedule does not exist.
        """
        schedule = next((verified for verified in self.schedules if verified.name == name), None)
        if schedule is None:
            names = ", ".join(verified.name for verified in self.schedules)
            raise KeyError(f"{name}: expected one of {names}")
        return schedule

    def to_frame(self) -> pd.DataFrame:
        """Return a row per schedule: both makespans [s], the error and its parts, and the largest loss difference."""
        import pandas as pd

        rows = [
            {
                "name": verified.name,
                "predicted_s": verified.predicted.makespan_s,
                "measured_s": verified.measured.makespan_s,
                "makespan_error": verified.makespan_error,
                **verified.explanation.shares(),
                "loss": verified.loss,
                "whole_loss": verified.whole_loss,
                "loss_difference": verified.loss_difference,
            }
            for verified in self.schedules
        ]
        return pd.DataFrame(rows).set_index("name")

    def plot(self) -> Figure:
        """Draw the prediction and the measurement of every schedule one under another."""
        from pipesched.simulator.views import gantt_figure

        return gantt_figure([line for schedule in self.schedules for line in (schedule.predicted, schedule.measured)])

    def table(self) -> Table:
        """Return every quantity of every schedule, predicted and measured, formatted for people."""
        return comparison_table([verified.comparison for verified in self.schedules])

    def split_table(self) -> Table:
        """Return the parts of the errors, and a sentence on each makespan."""
        return split_table([verified.explanation for verified in self.schedules])

    def _repr_html_(self) -> str:
        return self.table().noted(self.notes).to_html() + self.split_table().to_html()
