"""The result of a sweep: every setting, the best first, as a table, as data and as a picture."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipesched.profiles.clusters import Cluster
from pipesched.simulator.search import COLUMN_HEADINGS, Outcome, pareto_front
from pipesched.workflows import Table, cell_text, estimate_data, with_nan
from pipesched.workflows.simulating import Setup
from pipesched.workflows.sweeping.sweep_judge import SweepJudge

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


RATES = ("tokens_per_s", "flops_per_s", "utilization")
"""Columns of a sweep with an estimated profile: fields of `TrainingRates`."""


@dataclass(frozen=True, slots=True, repr=False)
class SweepResult:
    """All settings of a sweep.

    Attributes:
        outcomes: The fitting outcomes by rising `by`, then the unfitting, then the invalid ones.
        by: Name of the measure that orders them.
        columns: The columns of the table: settings, then measures.
        setup: The common inputs of all settings.
        notes: Cautions about costs and machines, a line each.
    """

    outcomes: tuple[Outcome, ...]
    by: str
    columns: tuple[str, ...]
    setup: Setup
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"SweepResult({self._counted()})"

    @property
    def fitting(self) -> tuple[Outcome, ...]:
        """The outcomes that fit, or may fit, the best first."""
        return tuple(outcome for outcome in self.outcomes if outcome.fits)

    @property
    def best(self) -> Outcome | None:
        """The best outcome that fits, or None if nothing fits."""
        return next(iter(self.fitting), None)

    @property
    def refused(self) -> tuple[Outcome, ...]:
        """The outcomes of invalid settings, with their reasons."""
        return tuple(outcome for outcome in self.outcomes if outcome.seconds is None)

    @property
    def front(self) -> tuple[Outcome, ...]:
        """The fitting outcomes that no other outcome beats in both `by` and memory, sorted by `by`, ascending."""
        return pareto_front(self.outcomes, self.by)

    def to_rows(self, outcomes: Iterable[Outcome] | None = None) -> list[dict[str, Any]]:
        """Return plain data: one row per setting, with the same columns in each row and None for missing values.

        Args:
            outcomes: The rows; None: all.
        """
        columns = self.columns
        given = self.outcomes if outcomes is None else outcomes
        return [{name: _plain(row.get(name)) for name in columns} for row in map(self._row, given)]

    def _row(self, outcome: Outcome) -> dict[str, Any]:
        """Return the setting, the measures and the rates of an outcome by column."""
        return {**outcome.setting.to_row(), **outcome.measures(), **self._rates(outcome)}

    def _rates(self, outcome: Outcome) -> dict[str, float]:
        """Return the rates of a setting by column, or nothing for costs that are not estimated."""
        setting, costs = outcome.setting, self.setup.loaded_costs
        if outcome.seconds is None:
            return {}
        num_samples = setting.num_microbatches * (setting.microbatch_size or 1)
        rates = costs.training_rates(num_samples, outcome.seconds, setting.num_devices)
        return {} if rates is None else {name: getattr(rates, name) for name in RATES}

    def to_frame(self) -> pd.DataFrame:
        """Return a row per setting, the best first; a missing number is NaN."""
        import pandas as pd

        frame = pd.DataFrame(self.to_rows(), columns=list(self.columns))
        return with_nan(frame, ("fits", "reason")).astype({"fits": "boolean"})

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as ``pipesched sweep --json`` prints it."""
        best = [] if self.best is None else [self.best]
        return {
            "by": self.by,
            "estimate_errors": estimate_data(self.setup.loaded_costs.gpu_family),
            "best": next(iter(self.to_rows(best)), None),
            "front": self.to_rows(self.front),
            "settings": self.to_rows(),
        }

    def plot(self) -> Figure:
        """Draw a heat map of `by` for each schedule, and every setting over its memory with the Pareto front."""
        from pipesched.simulator.views import sweep_figure

        return sweep_figure(self.outcomes, self.by)

    def page(self, notes: Sequence[str] = ()) -> str:
        """Return a page for a browser: a table of the settings to sort, at most 20,000, and the picture.

        Args:
            notes: Lines below the table, before the notes of the result and the reasons of invalid settings.
        """
        from pipesched.simulator.views import sweep_page

        rows = self.to_rows(self.outcomes[:_MOST_ROWS])
        known = [name for name in self.columns if any(row[name] is not None for row in rows)]
        cells = [{COLUMN_HEADINGS.get(name, name): cell_text(name, row[name]) for name in known} for row in rows]
        lines = self._lines(_MOST_TOLD, notes)
        if len(self.outcomes) > _MOST_ROWS:
            lines.insert(0, f"the table has the first {_MOST_ROWS:,} settings of {len(self.outcomes):,}")
        return sweep_page(self.outcomes, self.by, self.title, cells, "\n".join(lines))

    @property
    def title(self) -> str:
        """The number of settings, and the measure that orders them."""
        return f"{self._counted()}, best by {self.by}"

    def table(self, top: int = 10, notes: Sequence[str] = ()) -> Table:
        """Return a row for each of the first `top` settings that fit, or of the predicted settings if none fits.

        Args:
            top: Most rows.
            notes: Lines of the caption, before the notes of the result and the reasons of invalid settings.
        """
        shown = (self.fitting or tuple(o for o in self.outcomes if o.seconds is not None))[:top]
        rows = [self._row(outcome) for outcome in shown]
        settings = [outcome.setting.to_row() for outcome in self.outcomes]
        values = {name: {row.get(name) for row in settings} for name in {*self.columns, *_SHOWN}}
        is_shown = {name: len(values[name]) > 1 or name in _ALWAYS for name in settings[0] | _SHOWN}
        names = [name for name in dict.fromkeys(n for row in settings for n in row) if is_shown.get(name, True)]
        known = [name for name in _SHOWN if any(row.get(name) is not None for row in rows)]
        if self.by not in known and self.by in rows[0]:
            known.insert(0, self.by)
        fixed = [f"{COLUMN_HEADINGS.get(n, n)} {cell_text(n, settings[0][n])}" for n in settings[0]
                 if not is_shown[n] and settings[0][n] not in (None, False)]  # fmt: skip
        cells = tuple(
            {COLUMN_HEADINGS.get(name, name): cell_text(name, row.get(name)) for name in (*names, *known)}
            for row in rows
        )
        more = len(self.fitting) - len(shown)
        lines = [
            *([f"all with {', '.join(fixed)}"] if fixed else []),
            *([f"{more} more that fit are left out (--top, --out)"] if more > 0 else []),
            *self._lines(top, notes),
        ]
        return Table(self.title, cells, "\n".join(lines))

    def _lines(self, top: int, notes: Sequence[str]) -> list[str]:
        """Return the lines on idle devices, on uneven stages of the first `top` settings, on notes, and on refusals."""
        uneven = SweepJudge(self.setup).uneven_cuts(self.fitting[:top])
        return [*self._idle_devices(), *uneven, *notes, *self.notes, *self._refusals()]

    def _repr_html_(self) -> str:
        return self.table().to_html()

    def _counted(self) -> str:
        total, refused = len(self.outcomes), len(self.refused)
        over = total - refused - len(self.fitting)
        others = [f"{over} over memory"] if over else []
        others += [f"{refused} invalid"] if refused else []
        return ", ".join([f"{total} setting{'s' if total > 1 else ''}", *others])

    def _idle_devices(self) -> list[str]:
        """Return a line if the best setting leaves devices idle, with the best setting on all devices."""
        best = self.best
        cluster = self.setup.cluster
        largest = max(outcome.setting.num_ranks for outcome in self.outcomes)
        most = len(cluster.devices) if isinstance(cluster, Cluster) else largest
        if best is None or best.setting.num_ranks >= most:
            return []
        idle = f"{best.setting.label} leaves {most - best.setting.num_ranks} of {most} devices idle"
        whole = next((outcome for outcome in self.fitting if outcome.setting.num_ranks == most), None)
        if whole is None:
            return [f"{idle}; no setting that fits uses all"]
        value = f"{COLUMN_HEADINGS.get(self.by, self.by)} {cell_text(self.by, whole.measures()[self.by])}"
        return [f"{idle}; the best on all {most} is {whole.setting.label}, {value}"]

    def _refusals(self) -> list[str]:
        """Return a line for each kind of reason; reasons of one kind differ only in numbers."""
        kinds = Counter(map(_kind, self.refused))
        first = {_kind(outcome): outcome.reason or "" for outcome in reversed(self.refused)}
        return [f"{name}: {count} invalid: {first[name, kind].removeprefix(f'{name}: ')}"
                for (name, kind), count in kinds.items()]  # fmt: skip


def _kind(outcome: Outcome) -> tuple[str, str]:
    return outcome.setting.schedule, re.sub(r"[0-9]+", "0", outcome.reason or "")


def _plain(value: object) -> object:
    return ":".join(map(str, value)) if isinstance(value, tuple) else value


_MOST_ROWS = 20_000
"""Most settings in the table of a page, which takes some MB."""
_MOST_TOLD = 10
"""First settings of a page whose stages of unequal layers are named."""
_ALWAYS = ("schedule", "num_ranks", "num_microbatches")
_SHOWN = dict.fromkeys(
    (
        "s_per_sample",
        "s_per_microbatch",
        "utilization",
        "peak_memory_bytes",
        "bubble_fraction",
        "steady_s_per_microbatch",
        "steady_bubble_fraction",
        "makespan_s",
    )
)
"""The measures of a table for people, the most important first."""
