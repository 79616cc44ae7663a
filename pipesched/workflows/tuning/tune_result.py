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
        problem: What every setting has in common.
        evaluator: Who ranked them.
        outcomes: The one that the evaluator ranks first at the front, the rejected last.
        plain: 1F1B at its best M; None if it does not fit.
        averages: Whether the answer may be a setting that is averaged elastically.
        advanced: The answer with the smallest advance that takes AFAB's time, by our model; None if none does.
        race: Race of the best candidates on this machine; None if they were not run.
        paces: Steady pace of those that come first, by our model, or why it is not known.
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
        """The outcomes that fit, without those of another training unless it is asked for, or nothing else fits."""
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
        """The answer: who leads the race, or else the evaluator's; None if nothing fits."""
        return next(iter(self.candidates), None) if self.race is None else self.race.leader.outcome

    @property
    def notes(self) -> list[str]:
        """Why the steady pace of some that come first is not known, a line each."""
        reasons = dict.fromkeys(pace.reason for pace in self.paces.values() if isinstance(pace, Inexact))
        return [f"steady time: {reason}" for reason in reasons]

    def pace_of(self, outcome: SettingOutcome) -> SteadyPace | None:
        """Return the steady pace of a setting; None where nobody asked, or it is not known."""
        pace = self.paces.get(outcome.setting)
        return None if isinstance(pace, Inexact) else pace

    @property
    def averaged(self) -> SettingOutcome | None:
        """What is ranked before the answer, with another training that nobody has asked for; None if nothing is."""
        first = next(iter(self.fitting), None)
        return None if first is next(iter(self.candidates), None) else first

    def gain(self, outcome: SettingOutcome) -> float | None:
        """Return how many times as fast as plain 1F1B a setting is; None where either has no time.

        Raises:
            ArgumentError: It is no outcome.
        """
        require_kind("outcome", outcome, SettingOutcome, "one of the outcomes; try result.chosen")
        if self.plain is None or self.plain.seconds is None or not outcome.seconds:
            return None
        return self.plain.seconds / outcome.seconds

    def to_rows(self) -> list[dict[str, Any]]:
        """Return plain data, a row per setting; the steady pace is None where nobody asked, or it is not known."""
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
            ScheduleError: It cannot be written.
        """
        if suffix_of(path) != ".html":
            raise ArgumentError(f"path: got {path}, expected a page, .html; try `to_frame` for a table")
        write_text(Path(path), self.page())

    def page(self, rows: Sequence[Mapping[str, str]] = (), notes: str = "") -> str:
        """Return a page for a browser: the settings in a table and in maps of time and memory, and how the best runs.

        Args:
            rows: A row of cells per setting, as people read them, the candidates first; empty: those of `table`.
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
        """Return a row for each of the first `top` settings that the answer is among.

        Raises:
            ArgumentError: It is no number of settings.
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
