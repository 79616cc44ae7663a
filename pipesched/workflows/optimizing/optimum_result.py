"""The best order of a schedule's ops, its proven bound, and the distance of known schedules from the bound."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipesched.schedules import Schedule, Timeline
from pipesched.schedules.formats import suffix_of, to_json, write_csv, write_text
from pipesched.simulator.analysis import readable_s, readable_share
from pipesched.simulator.optimum import recomputing_stages
from pipesched.workflows import ArgumentError, Table, require_path
from pipesched.workflows.simulating import LeastTime, Simulation

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


OPTIMUM = "optimum"
"""Name of the resulting lists if they are proven to be the fastest."""
BEST_KNOWN = "best known"
"""Name of the resulting lists without this proof."""
WITHOUT_TIED_SUM = (
    "orders and bound leave out the gradient sum of tied weights (first and last stage); a simulation of the order "
    "includes the sum"
)
"""Note on costs with tied embeddings, or multi-token prediction."""


@dataclass(frozen=True, slots=True)
class OrderedSchedule:
    """A known order of the ops.

    Attributes:
        schedule: Its lists.
        makespan_s: Its makespan [s].
        period_s: The time from one batch to the next, if the batch is repeated, or without a flush from one micro-batch
            to the next [s]; None without repetition.
        in_flight: The most micro-batches that a rank has in flight.
    """

    schedule: Schedule
    makespan_s: float
    period_s: float | None
    in_flight: float

    @property
    def time_s(self) -> float:
        """The objective: the period, if the batch is repeated, otherwise the makespan [s]."""
        return self.makespan_s if self.period_s is None else self.period_s


@dataclass(frozen=True, slots=True, repr=False)
class Optimum:
    """The fastest known order of a schedule's ops, under a memory limit.

    Attributes:
        simulation: The prediction of the order.
        least: A lower bound for every order, and the distance of this order from it.
        known: Known orders within the limit, the fastest first.
        of: Name of the schedule with these ops.
        over_limit: The schedule itself, if it exceeds the limit and is not among the known orders; otherwise None.
        notes: Cautions about the numbers, a line each, besides those of `simulation`.
    """

    simulation: Simulation
    least: LeastTime
    known: tuple[OrderedSchedule, ...]
    of: str
    over_limit: OrderedSchedule | None = None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Optimum(of={self.of!r}, makespan_s={self.makespan_s:.6g}, gap={self.gap:.4g})"

    @property
    def schedule(self) -> Schedule:
        """The lists of the order."""
        return self.simulation.schedule

    @property
    def timeline(self) -> Timeline:
        """The predicted Timeline, with memory where the costs have bytes."""
        return self.simulation.timeline

    @property
    def makespan_s(self) -> float:
        """The makespan of the order, as the engine predicts it [s]."""
        return self.simulation.makespan_s

    @property
    def period_s(self) -> float | None:
        """The time from batch to batch, or without a flush per micro-batch [s]; None without repetition."""
        return self.least.time_s if self.least.is_repeated else None

    @property
    def recomputed(self) -> tuple[int, ...]:
        """The stages that recompute."""
        return tuple(sorted(recomputing_stages(self.schedule)))

    @property
    def gap(self) -> float:
        """The excess of the time over the bound, as a share of the bound; 0 if the order is proven the fastest."""
        return self.least.gap

    def to_rows(self) -> list[dict[str, Any]]:
        """Return plain data: a row for the optimum, and for each known order, with its distance from the bound."""
        peaks = self.simulation.peak_microbatches.values()
        best = OrderedSchedule(self.schedule, self.makespan_s, self.period_s, max(peaks, default=0.0))
        return [
            {
                "name": order.schedule.name,
                "makespan_s": order.makespan_s,
                "period_s": order.period_s,
                "gap": self.least.gap_of(order.time_s),
                "in_flight": order.in_flight,
            }
            for order in (best, *self.known)
        ]

    def to_frame(self) -> pd.DataFrame:
        """Return a row for the optimum, and for each known order."""
        import pandas as pd

        return pd.DataFrame(self.to_rows()).set_index("name").dropna(axis="columns", how="all")

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as ``pipesched optimize --json`` prints it."""
        return {
            "of": self.of,
            "makespan_s": self.makespan_s,
            "period_s": self.period_s,
            **self.least.to_dict(),
            "orders": self.to_rows(),
            "recomputed": list(self.recomputed),
            "fits": self.simulation.fits,
        }

    def plot(self) -> Figure:
        """Draw the Timeline."""
        return self.simulation.plot()

    def save(self, path: str | Path) -> None:
        """Write the lists, .json, or as PyTorch's compute-only .csv.

        Raises:
            ArgumentError: `path` is no name of a file, or has another suffix.
            ScheduleError: The file cannot be written.
        """
        file = require_path(path)
        writers = {".json": to_json, ".csv": write_csv}
        if suffix_of(file) not in writers:
            raise ArgumentError(f"path: got {file}, expected .json or .csv; try {file.stem}.json")
        write_text(file, writers[suffix_of(file)](self.schedule))

    def table(self) -> Table:
        """Return a row for the optimum, and for each known order, formatted for people."""
        rows = tuple(
            {
                "schedule": row["name"],
                "makespan": readable_s(row["makespan_s"]),
                **self._period_cells(row["period_s"]),
                "above bound": readable_share(row["gap"]),
                "in flight": f"{row['in_flight']:.4g}",
            }
            for row in self.to_rows()
        )
        told = [self.least.sentence]
        if self.schedule.traits.is_asynchronous:
            in_flight = ", ".join(f"{number:.4g}" for _, number in sorted(self.simulation.peak_microbatches.items()))
            told.append(
                f"micro-batches in flight by rank: {in_flight}; no order that alternates F and B on every rank takes "
                "less time"
            )
        if self.recomputed:
            told.append(f"recomputing: stage {', '.join(map(str, self.recomputed))}")
        if self.over_limit is not None:
            held, time = f"{self.over_limit.in_flight:.4g}", readable_s(self.over_limit.time_s)
            told.append(f"{self.of}, with {held} micro-batches in flight, holds more than the limit; it takes {time}")
        return Table(f"orders of the ops of {self.of}", rows, "\n".join(told))

    def _period_cells(self, period_s: float | None) -> dict[str, str]:
        if period_s is None:
            return {}
        if self.schedule.traits.is_asynchronous:
            return {"period": readable_s(period_s)}
        return {
            "period": readable_s(period_s),
            "per micro-batch": readable_s(period_s / self.schedule.num_microbatches),
        }

    def _repr_html_(self) -> str:
        return self.table().to_html()
