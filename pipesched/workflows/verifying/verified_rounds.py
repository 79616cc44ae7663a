"""Schedules verified in rounds: the median error with an interval, and the drift of the machine."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pipesched.simulator import views
from pipesched.simulator.analysis import readable_change, readable_s
from pipesched.simulator.fidelity import MedianInterval, median_interval
from pipesched.workflows import Result, Table
from pipesched.workflows.timelines import PARTS, comparison_table
from pipesched.workflows.verifying.verified_schedule import VerifiedSchedule, notes_on_runs

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

PRECISION = 0.05
"""Largest drift of a machine, or deviation of rounds, as a share of the makespan, for a verdict on the profile."""


@dataclass(frozen=True, slots=True, repr=False)
class ScheduleRounds:
    """One schedule, predicted and run in several rounds.

    Attributes:
        rounds: Each with a prediction from the profiles before and after the run.
    """

    rounds: tuple[VerifiedSchedule, ...]

    def __repr__(self) -> str:
        return f"ScheduleRounds({self.name!r}, error={_percents(self.error)})"

    @property
    def name(self) -> str:
        """The name of the schedule."""
        return self.rounds[0].name

    @property
    def error(self) -> MedianInterval:
        """(predicted - measured) / measured, of the makespan."""
        return median_interval([verified.makespan_error for verified in self.rounds])

    def part(self, *names: str) -> MedianInterval | None:
        """Return the sum of the parts of the error with these names (as in `PARTS`), or None without a split."""
        rounds = [[verified.explanation.shares()[name] for name in names] for verified in self.rounds]
        known = [[share for share in shares if share is not None] for shares in rounds]
        if known != rounds:
            return None
        return median_interval([sum(shares) for shares in known])

    def parts(self) -> dict[str, MedianInterval | None]:
        """Return the error and each part of it, by name; None for a part without a split."""
        return {"error": self.error, **{name: self.part(name) for name in PARTS}}

    @property
    def model(self) -> MedianInterval | None:
        """The error given the seconds of the run's ops: hand-over and rest, which no drift of the machine changes."""
        return self.part("hand_over", "rest")

    @property
    def middle(self) -> VerifiedSchedule:
        """The round of median error; the lower one of two."""
        ordered = sorted(self.rounds, key=lambda verified: verified.makespan_error)
        return ordered[(len(ordered) - 1) // 2]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        parts = {**self.parts(), "model": self.model}
        return {
            "name": self.name,
            **{name: None if part is None else part.to_dict() for name, part in parts.items()},
            "rounds": [verified.to_dict() for verified in self.rounds],
        }


@dataclass(frozen=True, slots=True)
class MachineDrift:
    """The speed of the machine at each step.

    Attributes:
        yardstick_s: Seconds of the kernel before the first profile, and then after each profile and each run, in turn.
    """

    yardstick_s: tuple[float, ...]

    @property
    def of_rounds(self) -> tuple[float, ...]:
        """The slowdown of the machine in the run of each round against the profiles around it, relative."""
        profiles = [fmean(pair) for pair in zip(self.yardstick_s[::2], self.yardstick_s[1::2], strict=True)]
        runs = [fmean(pair) for pair in zip(self.yardstick_s[1:-1:2], self.yardstick_s[2::2], strict=True)]
        return tuple(run_s / fmean(around) - 1 for run_s, *around in zip(runs, profiles, profiles[1:], strict=False))

    @property
    def interval(self) -> MedianInterval:
        """The median of the rounds with its interval."""
        return median_interval(self.of_rounds)

    def sentence(self) -> str:
        """Return the steadiness of the machine, for people."""
        least, most = min(self.yardstick_s), max(self.yardstick_s)
        return (
            f"machine: a fixed kernel took {readable_s(least)} to {readable_s(most)}; in the runs "
            f"{_percents(self.interval)} relative to the profiles before and after"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"yardstick_s": list(self.yardstick_s), "of_rounds": list(self.of_rounds), **self.interval.to_dict()}


@dataclass(frozen=True, slots=True, repr=False)
class RoundsVerification(Result):
    """Several schedules of one model, each predicted and run in rounds.

    Attributes:
        schedules: The schedules, in the given order.
        machine: The drift of the machine.
        precision: Largest drift of the machine, or half-width of an interval, for a verdict on the profile.
    """

    schedules: tuple[ScheduleRounds, ...]
    machine: MachineDrift
    precision: float = PRECISION

    def __repr__(self) -> str:
        return f"RoundsVerification({list(self.schedules)})"

    @property
    def representative(self) -> tuple[VerifiedSchedule, ...]:
        """For each schedule, the round with the median error."""
        return tuple(several.middle for several in self.schedules)

    @property
    def verdicts(self) -> list[str]:
        """The drift of the machine, and the verdict on each prediction."""
        return self.table().lines(())

    @property
    def agrees(self) -> bool:
        """Whether the losses of all runs equal the losses of the model without a pipeline."""
        return all(verified.agrees for several in self.schedules for verified in several.rounds)

    @property
    def notes(self) -> list[str]:
        """Cautions about the seconds of the rounds of median error, a line each."""
        return notes_on_runs(self.representative)

    def verdict(self, several: ScheduleRounds) -> str:
        """Return the verdict on the prediction of a schedule, as far as the drift of the machine allows one."""
        error, drift, model = several.error, self.machine.interval, several.model
        own = f"error {_percents(model)} with the op seconds of the runs; " if model else ""
        limit = f"more than {self.precision:.0%}"
        if drift.furthest > self.precision:
            reason = f"the machine drifted by up to {drift.furthest:.1%} between profile and run, {limit}"
        elif max(error.high - error.median, error.median - error.low) > self.precision:
            apart = f"{readable_change(error.low)} to {readable_change(error.high)}"
            reason = f"the interval of the rounds, {apart}, reaches {limit} from the median"
        else:
            return f"{several.name}: {own}error {_percents(error)} with the seconds of the profile"
        return f"{several.name}: {own}no verdict on the profile, as {reason}; try an idle machine, or more rounds"

    def table(self) -> Table:
        """Return a row for the error of each schedule and each part of it; below, the machine and the verdicts."""
        rows = tuple(
            {
                "": f"{several.name} {part.replace('_', '-')}",
                "median": "-" if interval is None else readable_change(interval.median),
                "95 % interval": "-"
                if interval is None
                else f"{readable_change(interval.low)} to {readable_change(interval.high)}",
            }
            for several in self.schedules
            for part, interval in several.parts().items()
        )
        count = len(self.schedules[0].rounds)
        meaning = f"of the makespan, median of {count} rounds and its 95 % interval, by bootstrap over the rounds"
        lines = [meaning, self.machine.sentence(), *map(self.verdict, self.schedules)]
        return Table("Parts of the errors", rows, "\n".join(lines))

    def tables(self) -> list[Table]:
        """Return the table of errors, a table for the representative round of each schedule, and the losses."""
        comparisons = [comparison_table([verified.comparison]) for verified in self.representative]
        lines = []
        for several in self.schedules:
            difference = max(verified.loss_difference for verified in several.rounds)
            lines.append(
                f"{several.name}: losses equal the losses of the un-pipelined model within a relative {difference:.2g}"
            )
        heading = Table("", (), "The round of median error of each schedule:")
        return [self.table(), heading, *comparisons, Table("", (), "\n".join(lines))]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as ``pipesched verify --rounds K --json`` prints it."""
        return {
            "schedules": [{**several.to_dict(), "verdict": self.verdict(several)} for several in self.schedules],
            "machine": self.machine.to_dict(),
            "precision": self.precision,
        }

    def to_frame(self) -> pd.DataFrame:
        """Return a row per schedule and round: both makespans [s], the error and its parts, and the machine's drift."""
        import pandas as pd

        rows = [
            {
                "name": several.name,
                "round": index,
                "predicted_s": verified.predicted.makespan_s,
                "measured_s": verified.measured.makespan_s,
                "makespan_error": verified.makespan_error,
                **verified.explanation.shares(),
                "drift": drift,
            }
            for several in self.schedules
            for index, (verified, drift) in enumerate(zip(several.rounds, self.machine.of_rounds, strict=True))
        ]
        return pd.DataFrame(rows)

    def plot(self) -> Figure:
        """Draw the prediction and the measurement of each schedule's round of median error, one under another."""
        return views.gantt_figure(
            [line for verified in self.representative for line in (verified.predicted, verified.measured)]
        )


def _percents(interval: MedianInterval) -> str:
    return f"{readable_change(interval.median)} ({readable_change(interval.low)} to {readable_change(interval.high)})"
