"""The result of tuning: every setting, ranked, and the answer among them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipesched.schedules.formats import suffix_of, write_text
from pipesched.simulator.analysis import (
    readable_bytes,
    readable_pace,
    readable_reason,
    readable_s,
    readable_share,
)
from pipesched.simulator.search import Outcome
from pipesched.simulator.tuner import Problem, tuned_row
from pipesched.workflows import ArgumentError, Table, require_at_least, require_kind, without_dull
from pipesched.workflows.tuning.setting_race import LinesOf, SettingRace

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_USUAL = {"N": "1", "recompute": "no"}
"""Cells of columns that are left out if all their cells are these."""


@dataclass(frozen=True, slots=True, repr=False)
class TuneResult:
    """All settings, ranked by the evaluator.

    Attributes:
        problem: The common parts of all settings.
        evaluator: The evaluator that ranked them.
        outcomes: The settings in the evaluator's order, the rejected last; the first ones have a steady state.
        plain: 1F1B at its best M, or None if it does not fit.
        averages: Whether the answer may be a setting that is averaged elastically.
        advanced: The answer with the smallest advance that takes AFAB's time, by our model, or None without one.
        race: Race of the best candidates on this machine, or None without one.
        notes: Cautions about profile, machines and prediction, a line each.
    """

    problem: Problem
    evaluator: str
    outcomes: tuple[Outcome, ...]
    plain: Outcome | None
    averages: bool
    advanced: Outcome | None = None
    race: SettingRace | None = None
    notes: tuple[str, ...] = ()

    @property
    def fitting(self) -> tuple[Outcome, ...]:
        """The outcomes that fit, the best first."""
        return tuple(outcome for outcome in self.outcomes if outcome.fits)

    @property
    def candidates(self) -> tuple[Outcome, ...]:
        """The outcomes that fit; elastic averaging is included only if it was requested, or if nothing else fits."""
        plainly = tuple(outcome for outcome in self.fitting if outcome.setting.training == "plain")
        return self.fitting if self.averages or not plainly else plainly

    @property
    def others(self) -> tuple[Outcome, ...]:
        """The outcomes that fit and are no candidates."""
        if len(self.candidates) == len(self.fitting):
            return ()
        return tuple(outcome for outcome in self.fitting if outcome.setting.training != "plain")

    @property
    def chosen(self) -> Outcome | None:
        """The answer: the leader of the race, or the evaluator's first candidate; None if nothing fits."""
        return next(iter(self.candidates), None) if self.race is None else self.race.leader.outcome

    @property
    def averaged(self) -> Outcome | None:
        """A setting that ranks before the answer but uses elastic averaging, which was not requested, or None."""
        first = next(iter(self.fitting), None)
        return None if first is next(iter(self.candidates), None) else first

    def gain(self, outcome: Outcome) -> float | None:
        """Return the speedup of a setting over plain 1F1B, as a factor, or None if either has no time.

        Raises:
            ArgumentError: `outcome` is no outcome.
        """
        require_kind("outcome", outcome, Outcome, "one of the outcomes; try result.chosen")
        if self.plain is None or self.plain.seconds is None or not outcome.seconds:
            return None
        return self.plain.seconds / outcome.seconds

    def to_rows(self) -> list[dict[str, Any]]:
        """Return plain data, a row per setting; the steady-state time is None if not asked for or unknown."""
        return [_row_with_pace(outcome) for outcome in self.outcomes]

    def to_frame(self) -> pd.DataFrame:
        """Return a row per setting, in the evaluator's order, the rejected last with their reasons."""
        import pandas as pd

        return pd.DataFrame(self.to_rows())

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as ``pipesched tune --json`` prints it, but for the lines that run the answer."""
        best, averaged = self.chosen, self.averaged
        return {
            "evaluator": self.evaluator,
            "chosen": None if best is None else _row_with_pace(best),
            "training": None if best is None else best.setting.training.value,
            "plain_1f1b": None if self.plain is None else _row_with_pace(self.plain),
            "gain_over_plain_1f1b": None if best is None else self.gain(best),
            "smallest_advance_as_fast_as_afab": None if self.advanced is None else self.advanced.setting.advance,
            "with_elastic_averaging": None
            if averaged is None
            else {"chosen": _row_with_pace(averaged), "gain_over_plain_1f1b": self.gain(averaged)},
            "settings": self.to_rows(),
            **({} if self.race is None else {"race": self.race.to_dict()}),
        }

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

    def page(
        self,
        notes: Sequence[str] = (),
        lines_of: LinesOf = lambda setting: (),  # noqa: ARG005
        say: Callable[[str], str] = str,
    ) -> str:
        """Return a page for a browser: the settings as a table and maps of time and memory, and the timing of the best.

        Args:
            notes: Lines below the table, before the notes of the result.
            lines_of: Returns the lines that run a setting.
            say: Returns the text of a reason.
        """
        from pipesched.simulator.views import tune_page

        fitting = [*self.candidates, *self.others]
        outcomes, best = [*fitting, *self.outcomes[len(fitting) :]], self.chosen
        rows = [*self._rows(outcomes)]
        if len(fitting) < len(outcomes):
            rows = [
                {**row, "rejected": say(readable_reason(outcome.reason))}
                for row, outcome in zip(rows, outcomes, strict=True)
            ]
        lines = [*notes, *self.notes, "nothing fits"]
        if fitting:
            raced = [] if self.race is None else self.race.table(lines_of).lines(())
            lines = [*self._answer(lines_of), *raced, *self._averaged_lines(lines_of), *notes, *self.notes]
        number = None if best is None else [outcome.setting for outcome in self.candidates].index(best.setting)
        return tune_page(self.outcomes, best, self.problem, self.title, rows, "\n".join(lines), number)

    @property
    def title(self) -> str:
        """Model, batch and devices."""
        problem = self.problem
        return f"{problem.profile.model}, batch {problem.batch_size}, {len(problem.cluster.devices)} devices"

    def table(self, top: int = 10) -> Table:
        """Return the first of `tables`, with the candidates for the answer.

        Raises:
            ArgumentError: `top` is no number of settings.
        """
        return self.tables(top)[0]

    def tables(
        self,
        top: int = 10,
        notes: Sequence[str] = (),
        lines_of: LinesOf = lambda setting: (),  # noqa: ARG005
        say: Callable[[str], str] = str,
    ) -> list[Table]:
        """Return tables for people: the candidates with the answer, other settings that fit, rejected ones, the race.

        Args:
            top: Most rows of a table.
            notes: Lines below the first table, before the notes of the result.
            lines_of: Returns the lines that run a setting.
            say: Returns the text of a reason.

        Raises:
            ArgumentError: `top` is no number of settings.
        """
        top = require_at_least("top", top, 1)
        notes = (*notes, *self.notes)
        fitting, candidates, others = self.fitting, self.candidates, self.others
        rejected, tables = self.outcomes[len(fitting) :], []
        if candidates:
            title = f"{len(candidates)} of {len(fitting)} settings that fit train like plain training"
            caption = [*self._answer(lines_of), *_left_out(candidates, top), *notes]
            title = title if others else f"{len(fitting)} settings fit"
            tables.append(Table(title, self._rows(candidates[:top]), "\n".join(caption)))
        if others:
            title = f"{len(others)} settings that fit have elastic averaging, which changes the training"
            caption = [*self._averaged_lines(lines_of), *_left_out(others, top), *([] if candidates else notes)]
            tables.append(Table(title, self._rows(others[:top]), "\n".join(caption)))
        if rejected:
            more = "" if len(rejected) <= top else f"; {len(rejected) - top} more are left out (--top, --out)"
            tables.append(Table(f"{len(rejected)} settings are rejected{more}", _rejected(rejected[:top], say)))
        return tables if self.race is None else [*tables, self.race.table(lines_of)]

    def _answer(self, lines_of: LinesOf) -> list[str]:
        """Return the lines on the first candidate; after a race, its lines stand below the race."""
        if not self.candidates:
            return []
        best = self.candidates[0]
        line = f"{self._verb} by {self.evaluator}: {self._told(best)}; training: {best.setting.training}"
        line += "; the race below chooses" if self.race else ""
        if self.advanced is not None:
            line += f"; advance={self.advanced.setting.advance} is the smallest advance as fast as AFAB"
        return [line, *([] if self.race else lines_of(best.setting))]

    def _averaged_lines(self, lines_of: LinesOf) -> list[str]:
        """Return the lines on the best setting with elastic averaging, if there are such settings."""
        if not self.others:
            return []
        if self.averaged is None:
            return [f"no setting with elastic averaging ranks before the one {self._verb}"]
        best = self.others[0]
        told = f"with elastic averaging {self.evaluator} chooses {self._told(best)}; give -n to choose it"
        return [told, *lines_of(best.setting)]

    @property
    def _verb(self) -> str:
        """The verb for the first setting, which need not be the answer if there was a race."""
        return "ranked first" if self.race else "chosen"

    def _told(self, outcome: Outcome) -> str:
        told, gain = f"{outcome.setting}, {readable_s(outcome.seconds or 0.0)} per batch", self.gain(outcome)
        if self.plain is None or gain is None:
            return told
        if self.plain.setting == outcome.setting:
            return f"{told}, plain 1F1B at its best"
        return f"{told}, {gain:.3g} x as fast as plain 1F1B at its best ({self.plain.setting})"

    def _rows(self, outcomes: Sequence[Outcome]) -> tuple[Mapping[str, str], ...]:
        rows = []
        for number, outcome in enumerate(outcomes, 1):
            time_s, gain, pace = outcome.seconds or 0.0, self.gain(outcome), outcome.pace
            rows.append(
                {
                    "": str(number),
                    **_named(outcome),
                    "over plain 1F1B": "-" if gain is None else f"{gain:.3f} x",
                    "samples/s": f"{self.problem.batch_size / time_s:.4g}" if time_s else "-",
                    "steady / micro-batch": readable_pace(pace),
                    "steady bubble": readable_share(outcome.steady_bubble_fraction),
                    "training": outcome.setting.training.value,
                }
            )
        return without_dull(rows, _USUAL)

    def __repr__(self) -> str:
        best = self.chosen
        chosen = "nothing fits" if best is None else f"{best.setting}, {readable_s(best.seconds or 0.0)} per batch"
        return f"TuneResult({self.title!r}: {chosen})"

    def _repr_html_(self) -> str:
        return "".join(table.to_html() for table in self.tables())


def _row_with_pace(outcome: Outcome) -> dict[str, Any]:
    """Return plain data of a setting, with its steady state."""
    row = tuned_row(outcome)
    reason = row.pop("reason")
    row["steady_s_per_microbatch"] = outcome.steady_s_per_microbatch
    row["steady_error"] = None if outcome.pace is None else outcome.error
    row["steady_bubble_fraction"] = outcome.steady_bubble_fraction
    return {**row, "reason": reason}


def _left_out(outcomes: Sequence[Outcome], top: int) -> list[str]:
    return [f"{len(outcomes) - top} that rank after these are left out (--top, --out)"] if len(outcomes) > top else []


def _rejected(outcomes: Sequence[Outcome], say: Callable[[str], str]) -> tuple[Mapping[str, str], ...]:
    """Return the rows of rejected settings; settings that cannot be predicted for one reason share a row."""
    groups: dict[str, list[dict[str, str]]] = {}
    for number, outcome in enumerate(outcomes):
        why = say(re.sub(r" from \S+ \S+ on, at .*", " at first", readable_reason(outcome.reason)))  # the op: --out
        row = {**_named(outcome), "why": why, "training": outcome.setting.training.value}
        groups.setdefault(why if outcome.seconds is None else str(number), []).append(row)
    alike = (
        {name: ", ".join(dict.fromkeys(row[name] for row in rows)) for name in rows[0]} for rows in groups.values()
    )
    return without_dull(alike, _USUAL)


def _named(outcome: Outcome) -> dict[str, str]:
    setting = outcome.setting
    simplest = setting.simplest
    return {
        "schedule": simplest.schedule,
        "M per pipeline": str(setting.num_each),
        "N": str(setting.num_pipelines),
        "advance": str(dict(simplest.parameters).get("advance", "-")),
        "chunks": "-" if setting.num_chunks is None else str(setting.num_chunks),
        "recompute": setting.recompute_cell,
        "time per batch": "-" if outcome.seconds is None else readable_s(outcome.seconds),
        "memory": readable_bytes(outcome.held_bytes or None),
    }
