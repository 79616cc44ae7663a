"""The weights that the ops of a schedule read: versions, staleness and live copies, before a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from pipesched.questions import OnShare, ScheduleCounts, unheard
from pipesched.schedules import Schedule
from pipesched.schedules.check import require_runnable
from pipesched.schedules.weights import Staleness, staleness
from pipesched.simulator import views
from pipesched.simulator.analysis import readable_share
from pipesched.workflows import (
    ArgumentError,
    Result,
    Table,
    asks,
    require_at_least,
    require_names,
    require_number,
)
from pipesched.workflows.arguments import ScheduleArgument, read_schedule_argument

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, repr=False)
class VersionReport(Result):
    """The weight versions that the ops of a run read.

    Attributes:
        schedule: The lists of the schedule, held or generated.
        staleness: Versions, look-ahead, copies and micro-batches in flight, by stage.
        stale_share: Share of all weights that a forward ever reads stale.
    """

    schedule: Schedule
    staleness: Staleness
    stale_share: float

    def to_frame(self) -> pd.DataFrame:
        """Return a row per stage."""
        import pandas as pd

        return pd.json_normalize([asdict(stage) for stage in self.staleness.stages], sep="_").set_index("stage")

    def plot(self, num_microbatches: int = 32) -> Figure:
        """Draw the staleness of the first micro-batches on every stage.

        Raises:
            ArgumentError: `num_microbatches` is not a number of micro-batches.
        """
        return views.staleness_figure(self.schedule, require_at_least("num_microbatches", num_microbatches, 1))

    def table(self) -> Table:
        """Return a row per stage, formatted for people."""
        rows = [
            {
                "stage": str(stage.stage),
                "ranks": ", ".join(map(str, stage.ranks)),
                "F behind": str(stage.forward.staleness),
                "B behind": str(stage.backward.staleness),
                "live versions": f"{stage.live_versions}{' + 1' if stage.predicts else ''}",
                "in flight": str(stage.in_flight),
                "same": str(stage.same),
                "predicted": str(stage.predicted),
                "different": str(stage.different),
                **_cells("F", stage.forward),
                **_cells("B", stage.backward),
            }
            for stage in self.staleness.stages
        ]
        return Table(
            f"{self.schedule.name}, {self.schedule.num_microbatches} micro-batches: maximum of each stage",
            tuple(rows),
            "behind: steps between the version read and the one that the gradient changes; left: steps behind after "
            "prediction\nsame, predicted, different: micro-batches whose F and B read the same weights, predictions of "
            f"one version, or different versions\nstale weights {readable_share(self.stale_share)}; micro-batches in "
            f"flight on each rank {', '.join(map(str, self.staleness.in_flight))}",
        )

    def __repr__(self) -> str:
        most = max(stage.forward.staleness for stage in self.staleness.stages)
        return f"VersionReport({self.schedule.name!r}, staleness={most}, stale_share={self.stale_share:.4g})"


def _cells(name: str, reading: Any) -> dict[str, str]:
    left = "-" if reading.lag is None else str(reading.lag)
    return {f"{name} ahead": str(reading.lookahead), f"{name} left": left}


@dataclass(frozen=True)
class VersionsQuestion(ScheduleCounts):
    """The question of `versions`; its fields are the arguments of that function."""

    schedule: ScheduleArgument
    weights: Sequence[float] | None = field(default=None, kw_only=True)
    progress: OnShare = field(default=unheard, kw_only=True)


@asks(VersionsQuestion)
def versions(question: VersionsQuestion) -> VersionReport:
    """Return versions, look-ahead, staleness, live copies and micro-batches in flight, of a run of any length.

    Args:
        schedule: A schedule, a file, a plan, or the name of a schedule, which needs ranks and micro-batches. The list
            of a run without a flush is not held.
        weights: Sizes of the weights of the stages, for the stale share; None: all equal.

    Raises:
        ArgumentError: A name without its counts.
        NotRunnableError: The lists cannot run to their end.
        ScheduleError: No such schedule, bad counts, a bad file, or not one weight for each stage.
    """
    weights = None if question.weights is None else require_names("weights", question.weights)
    for weight in weights or ():
        require_number("weights", weight)
    lists = read_schedule_argument(question.schedule, question, is_held=False).schedule
    if lists.is_held:
        require_runnable(lists)
    sizes = (1.0,) * lists.num_stages if weights is None else weights
    if len(sizes) != lists.num_stages or sum(sizes) == 0:
        given, example = ",".join(f"{size:g}" for size in sizes), ",".join("1" * lists.num_stages)
        raise ArgumentError(
            f"weights: got {given}, expected {lists.num_stages} sizes, one per stage, not all 0; try {example}"
        )
    measured = staleness(lists, question.progress)
    return VersionReport(lists, measured, measured.stale_share(sizes))
