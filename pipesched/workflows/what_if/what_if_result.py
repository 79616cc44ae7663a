"""The result of a what-if: the change of time, bubble and memory against a measured run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from pipesched.schedules import Timeline, Yardstick
from pipesched.simulator import views
from pipesched.simulator.analysis import Metrics, Slowness, readable_change
from pipesched.workflows import (
    NOT_ONE_SPEED,
    Result,
    Table,
    cell_text,
    other_speed,
    quantity_title,
    timeline_notes,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class ChangedQuantity:
    """One quantity of a run, and its change.

    Attributes:
        name: Name of the quantity, as in tables; it ends in its unit.
        measured: Value in the run, or None without a measurement.
        before: Value predicted for the run, with its costs.
        after: Value predicted for the changed run, with the same costs.
    """

    name: str
    measured: float | None
    before: float | None
    after: float | None

    @property
    def change(self) -> float | None:
        """The relative change from before to after, or the difference of a share; None if unknown."""
        if self.before is None or self.after is None:
            return None
        if self.is_share:
            return self.after - self.before
        return self.after / self.before - 1 if self.before else None

    @property
    def is_share(self) -> bool:
        """Whether the quantity is a share."""
        return self.name.endswith("_fraction")


@dataclass(frozen=True, slots=True)
class OtherReading:
    """The change if the devices of a run are slow instead of its layers.

    Attributes:
        words: The stages that took longer than their peers.
        change: Relative change of the seconds of a micro-batch.
        drawn_changes: The change for each draw of the measured seconds, rising.
    """

    words: str
    change: float
    drawn_changes: tuple[float, ...]


@dataclass(frozen=True, slots=True, repr=False)
class WhatIf(Result):
    """A change, against a run.

    Attributes:
        run: The run, as it was measured.
        before: The run, predicted with its costs.
        after: The changed run, predicted with the same costs.
        quantities: Time, bubble and memory of all three.
        drawn_changes: Relative changes of the seconds of a micro-batch: one for each draw of the measured seconds,
            rising.
        asked: The changes, in a few words each.
        suppositions: Assumptions where neither the run nor a profile gives a value.
        profiled: Speed of the machine during the profile, or None if unknown.
        slowness: The cause, ``"layers"`` or ``"device"``, if a stage took longer than its peers; None if no stage did,
            or if it makes no difference.
        other: The change if the device is slow, or None if the run decides between the two.
    """

    run: Timeline
    before: Timeline
    after: Timeline
    quantities: tuple[ChangedQuantity, ...]
    drawn_changes: tuple[float, ...]
    asked: tuple[str, ...]
    suppositions: tuple[str, ...]
    profiled: Yardstick | None = None
    slowness: Slowness | None = None
    other: OtherReading | None = None

    def __repr__(self) -> str:
        low, high = self.interval
        changes = f"change={self.change:+.4f}, interval=({low:+.4f}, {high:+.4f})"
        return f"WhatIf({self.before.name!r}: {', '.join(self.asked)}, {changes})"

    @property
    def notes(self) -> list[str]:
        """Cautions about the seconds, a line each."""
        return [*other_speed(self.profiled, self.run.yardstick, NOT_ONE_SPEED), *timeline_notes(self.run)]

    @property
    def change(self) -> float:
        """Relative change of the seconds of a micro-batch: -0.12 is 12 % less."""
        change = self.quantities[1].change
        assert change is not None, "a micro-batch takes time"
        return change

    @property
    def interval(self) -> tuple[float, float]:
        """The range of 80 % of the draws, moved from their median to the change; covers both readings, if any.

        Drawn seconds contain the noise of the measurement a second time. The slowest of several equal stages
        determines the makespan, and noise makes it slower, so all draws are biased to longer times.
        """
        low, high = _interval(self.change, self.drawn_changes)
        if self.other is None:
            return low, high
        other = _interval(self.other.change, self.other.drawn_changes)
        return min(low, other[0]), max(high, other[1])

    @property
    def model_error(self) -> float:
        """The relative error of the makespan that is predicted for the run."""
        return self.before.makespan_s / self.run.makespan_s - 1

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as ``pipesched what-if --json`` prints it."""
        return {
            "run": self.run.name,
            "schedule": self.after.name,
            "asked": list(self.asked),
            "change": self.change,
            "interval": list(self.interval),
            "draws": len(self.drawn_changes),
            "slowness": self.slowness,
            "change_if_slow_device": None if self.other is None else self.other.change,
            "model_error": self.model_error,
            "quantities": self.to_rows(),
            "suppositions": list(self.suppositions),
        }

    def to_rows(self) -> list[dict[str, str | float | None]]:
        """Return a row per quantity."""
        return [
            {
                "quantity": quantity.name,
                "measured": quantity.measured,
                "before": quantity.before,
                "after": quantity.after,
                "change": quantity.change,
            }
            for quantity in self.quantities
        ]

    def to_frame(self) -> pd.DataFrame:
        """Return a row per quantity: measured, before, after, and the change."""
        import pandas as pd

        return pd.DataFrame(self.to_rows())

    def plot(self) -> Figure:
        """Draw both predictions on one time axis."""
        return views.gantt_figure([self.before, self.after])

    def table(self) -> Table:
        """Return a row per quantity, formatted for people."""
        rows = tuple(
            {
                "": quantity_title(quantity.name),
                "measured": cell_text(quantity.name, quantity.measured),
                "run, predicted": cell_text(quantity.name, quantity.before),
                "what if": cell_text(quantity.name, quantity.after),
                "change": _shown_change(quantity),
            }
            for quantity in self.quantities
        )
        return Table(f"what if: {', '.join(self.asked)}", rows, "\n".join(self._lines()))

    def _lines(self) -> list[str]:
        low, high = self.interval
        takes = f"a micro-batch takes {abs(self.change):.1%} {'less' if self.change < 0 else 'more'} time"
        if self.other is not None:
            takes = (
                f"the time of a micro-batch changes by {readable_change(self.change)} if layers are slow, "
                f"{readable_change(self.other.change)} if devices are"
            )
        lines = [
            f"{takes}: {readable_change(low)} to {readable_change(high)} in 80 % of {len(self.drawn_changes)} draws",
            *([] if self.other is None else [self.other.words]),
            f"the run itself is predicted {readable_change(self.model_error)} off, with the same costs",
        ]
        return lines + [f"supposed: {line}" for line in self.suppositions]


def _interval(change: float, drawn: Sequence[float]) -> tuple[float, float]:
    if len(drawn) == 1:
        return change, change
    cuts, middle = quantiles(drawn, n=10, method="inclusive"), median(drawn)
    return change + cuts[0] - middle, change + cuts[-1] - middle


def changed_quantities(measured: Metrics, before: Metrics, after: Metrics) -> tuple[ChangedQuantity, ...]:
    """Return the quantities known in all three metrics; the makespan first, then the time of a micro-batch."""
    asked: dict[str, Callable[[Metrics], float | None]] = {
        "makespan_s": lambda totals: totals.makespan_s,
        "micro-batch_s": lambda totals: 1 / totals.throughput,
        "bubble_fraction": lambda totals: totals.bubble_fraction,
        "busiest_device_s": lambda totals: max(device.busy_s for device in totals.devices),
        "peak_memory_bytes": lambda totals: max(
            (device.peak_memory_bytes for device in totals.devices if device.peak_memory_bytes is not None),
            default=None,
        ),
    }
    return tuple(
        ChangedQuantity(name, ask(measured), ask(before), ask(after))
        for name, ask in asked.items()
        if ask(after) is not None
    )


def _shown_change(quantity: ChangedQuantity) -> str:
    if quantity.change is None:
        return "-"
    change = quantity.change if abs(quantity.change) >= 5e-4 else 0.0  # rounding errors have no sign
    return f"{round(100 * change, 1) + 0.0:+.1f} points" if quantity.is_share else readable_change(change)
