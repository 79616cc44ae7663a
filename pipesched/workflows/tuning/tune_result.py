"""The result of tuning: every setting, ranked, and the answer among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipesched.schedules.formats import suffix_of, write_text
from pipesched.simulator import Inexact, SteadyPace
from pipesched.simulator.analysis import readable_bytes, readable_pace, readable_s, readable_share
from pipesched.simulator.tuner import Problem, Setting, SettingOutcome
from pipesched.workflows import ArgumentError, Table, require_at_least, require_kind
from pipesched.workflows.tuning.race_result import SettingRace

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, repr=False)
class TuneResult:
    """All settings, ranked by the evaluator.

    Attributes:
        problem: The common parts of all settings.
        evaluator: The evaluator that ranked them.
        outcomes: The settings in the evaluator's order, the rejected last.
        plain: 1F1B at its best M, or None if it does not fit.
        averages: Whether the answer may be a setting that is averaged elastically.
        advanced: The answer with the smallest advance that takes AFAB's time, by our model, or None without one.
        race: Race of the best candidates on this machine, or None without one.
        paces: Steady-state times of the first settings, by our model, or why they are unknown.
    """

    problem: Problem
    evaluator: str
    outcomes: tuple[SettingOutcome, ...]
    plain: SettingOutcome | None
    averages: bool
    advanced: SettingOutcome | None = None
    race: SettingRace | None = None
    paces: Mapping[Setting, SteadyPace | Inexact] = field(default_factory=dict)

    @property
    def fitting(self) -> tuple[SettingOutcome, ...]:
        """The outcomes that fit, the best first."""
        return tuple(outcome for outcome in self.outcomes if outcome.fits)

    @property
    def candidates(self) -> tuple[SettingOutcome, ...]:
        """The outcomes that fit, without another training unless it is asked for or nothing else fits."""
        plainly = tuple(outcome for outcome in self.fitting if outcome.setting.training == "plain")
        return self.fitting if self.averages or not plainly else plainly

    @property
    def others(self) -> tuple[SettingOutcome, ...]:
        """The outcomes that fit and are no candidates."""
        if len(self.candidates) == len(self.fitting):
            return ()
        return tuple(outcome for outcome in self.fitting if outcome.setting.training != "plain")

    @property
    def chosen(self) -> SettingOutcome | None:
        """The answer: the leader of the race, or the evaluator's first candidate; None if nothing fits."""
        return next(iter(self.candidates), None) if self.race is None else self.race.leader.outcome

    @property
    def notes(self) -> list[str]:
        """Why the steady-state times of some of the first settings are unknown, a line each."""
        reasons = dict.fromkeys(pace.reason for pace in self.paces.values() if isinstance(pace, Inexact))
        return [f"steady time: {reason}" for reason in reasons]

    def pace_of(self, outcome: SettingOutcome) -> SteadyPace | None:
        """Return the steady-state time of a setting, or None if it was not asked for or is unknown."""
        pace = self.paces.get(outcome.setting)
        return None if isinstance(pace, Inexact) else pace

    @property
    def averaged(self) -> SettingOutcome | None:
        """A setting that ranks before the answer but uses elastic averaging, which was not requested, or None."""
        first = next(iter(self.fitting), None)
        return None if first is next(iter(self.candidates), None) else first

    def gain(self, outcome: SettingOutcome) -> float | None:
        """Return the speedup of a setting over plain 1F1B, as a factor, or None if either has no time.

        Raises:
            ArgumentError: `outcome` is no outcome.
        """
        require_kind("outcome", outcome, SettingOutcome, "one of the outcomes; try result.chosen")
        if self.plain is None or self.plain.seconds is None or not outcome.seconds:
            return None
        return self.plain.seconds / outcome.seconds

    def to_rows(self) -> list[dict[str, Any]]:
        """Return plain data, a row per setting; the steady-state time is None if not asked for or unknown."""
        return [self.row_of(outcome) for outcome in self.outcomes]

    def row_of(self, outcome: SettingOutcome) -> dict[str, Any]:
        """Return plain data of a setting."""
        pace = self.pace_of(outcome)
        row = outcome.to_row()
        reason = row.pop("reason")
        row["steady_s_per_microbatch"] = None if pace is None else pace.s_per_microbatch
        row["steady_error"] = None if pace is None else pace.error
        row["steady_bubble_fraction"] = None if pace is None else pace.bubble_fraction
        return {**row, "reason": reason}

    def to_frame(self) -> pd.DataFrame:
        """Return a row per setting, in the evaluator's order, the rejected last with their reasons."""
        import pandas as pd

        return pd.DataFrame(self.to_rows())

    def plot(self) -> Figure:
        """Draw time and memory over M and N, and against each other."""
        from pipesched.simulator.views import heat_map_figure

        return heat_map_figure(self.outcomes, self.title)

    def save(self, path: str | Path) -> None:
        """Write a page (.html) of all settings, completely or not at all.

        Raises:
            ArgumentError: The suffix is another one.
            ScheduleError: The file cannot be written.
        """
        if suffix_of(path) != ".html":
            raise ArgumentError(f"path: got {path}, expected a page, .html; try `to_frame` for a table")
        write_text(Path(path), self.page())

    def page(self, rows: Sequence[Mapping[str, str]] = (), notes: str = "") -> str:
        """Return a page for a browser: the settings as a table and maps of time and memory, and the timing of the best.

        Args:
            rows: A row of cells per setting, formatted for people, the candidates first; empty: the rows of `table`.
            notes: Below the table; empty: the caption of `table`.
        """
        from pipesched.simulator.views import tune_page

        table = self.table(len(self.outcomes))
        given = rows or table.rows or [{"settings": "none fits"}]
        best = self.chosen
        row = None if best is None else [outcome.setting for outcome in self.candidates].index(best.setting)
        return tune_page(self.outcomes, best, self.problem, self.title, given, notes or table.caption, row)

    @property
    def title(self) -> str:
        """Model, batch and devices."""
        problem = self.problem
        return f"{problem.profile.model}, batch {problem.batch_size}, {len(problem.cluster.devices)} devices"

    def table(self, top: int = 10) -> Table:
        """Return a row for each of the first `top` settings among the candidates for the answer.

        Raises:
            ArgumentError: `top` is no number of settings.
        """
        top = require_at_least("top", top, 1)
        rows = []
        for number, outcome in enumerate(self.candidates[:top], 1):
            gain, pace = self.gain(outcome), self.pace_of(outcome)
            rows.append(
                {
                    "": str(number),
                    "setting": str(outcome.setting),
                    "training": outcome.setting.training.value,
                    "time per batch": readable_s(outcome.seconds or 0.0),
                    "memory": readable_bytes(outcome.held_bytes or None),
                    "over plain 1F1B": "-" if gain is None else f"{gain:.3f} x",
                    "steady / micro-batch": readable_pace(pace),
                    "steady bubble": readable_share(None if pace is None else pace.bubble_fraction),
                }
            )
        caption = f"{len(self.fitting)} of {len(self.outcomes)} settings fit; ranked by {self.evaluator}"
        return Table(self.title, tuple(rows), "\n".join([caption, *self.notes]))

    def __repr__(self) -> str:
        best = self.chosen
        chosen = "nothing fits" if best is None else f"{best.setting}, {readable_s(best.seconds or 0.0)} per batch"
        return f"TuneResult({self.title!r}: {chosen})"

    def _repr_html_(self) -> str:
        return self.table().to_html()
