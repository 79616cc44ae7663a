"""The goodput of a training under failures, and its best checkpoint interval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pipesched.questions import GoodputQuestion
from pipesched.simulator import views
from pipesched.simulator.analysis import readable_duration, readable_share
from pipesched.simulator.failures import (
    CheckpointedTraining,
    IntervalGoodput,
    interval_goodputs,
    search_interval,
)
from pipesched.workflows import Result, Table, asks, require_optional, require_rate

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_AS_GOOD = 1e-3
"""Loss of goodput up to which an interval counts as good as the best one."""


@dataclass(frozen=True, slots=True, repr=False)
class Goodput(Result):
    """The goodput of a training under failures, by its checkpoint interval.

    Attributes:
        training: The training.
        draws: Simulated runs for each interval.
        intervals: The best interval, the intervals of Young's and Daly's formulas in whole steps, and the given one.
        curve: All searched intervals, from short to long.
    """

    training: CheckpointedTraining
    draws: int
    intervals: Mapping[str, IntervalGoodput]
    curve: tuple[IntervalGoodput, ...]

    def __repr__(self) -> str:
        best = self.best
        return f"Goodput({best.goodput:.4g} with a checkpoint every {best.interval_steps} steps)"

    @property
    def best(self) -> IntervalGoodput:
        """The interval with the highest goodput, by the closed form."""
        return self.intervals["best"]

    @property
    def as_good(self) -> tuple[int, int]:
        """The shortest and the longest interval [steps] with a goodput within 0.1 points of the best."""
        steps = [point.interval_steps for point in self.curve if point.goodput >= self.best.goodput - _AS_GOOD]
        return min(steps), max(steps)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as ``pipesched simulate --json`` prints it."""
        training = self.training
        formulas = {"young_interval_s": training.young_s, "daly_interval_s": training.daly_s}
        named = {name: self._to_row(point) for name, point in self.intervals.items()}
        curve = [self._to_row(point) for point in self.curve]
        return {**asdict(training), "draws": self.draws, **formulas, "intervals": named, "curve": curve}

    def to_frame(self) -> pd.DataFrame:
        """Return a row per searched interval."""
        import pandas as pd

        return pd.DataFrame(map(self._to_row, self.curve))

    def plot(self) -> Figure:
        """Draw the goodput over the checkpoint interval."""
        return views.goodput_figure(self.training, self.curve, self.intervals)

    def table(self) -> Table:
        """Return a row per named interval, formatted for people."""
        rows = tuple(
            {
                "interval": name,
                "every": readable_duration(point.interval_steps * self.training.step_s),
                "steps": str(point.interval_steps),
                "goodput": readable_share(point.goodput),
                "80 % of runs": f"{point.low:.1%} - {point.high:.1%}",
                "run takes": readable_duration(point.run_s),
                "failures": f"{point.num_failures:.4g}",
            }
            for name, point in self.intervals.items()
        )
        return Table("goodput by checkpoint interval", rows, "\n".join(self._lines()))

    def _to_row(self, point: IntervalGoodput) -> dict[str, Any]:
        return {"interval_s": point.interval_steps * self.training.step_s, **asdict(point)}

    def _lines(self) -> list[str]:
        training, (first, last) = self.training, self.as_good
        restart, checkpoint = readable_duration(training.restart_s), readable_duration(training.checkpoint_s)
        return [
            f"{training.num_steps} steps of {readable_duration(training.step_s)} are "
            f"{readable_duration(training.work_s)} of work; a failure every "
            f"{readable_duration(training.fail_every_s)}, "
            f"{restart} for a restart, {checkpoint} for a checkpoint; {self.draws} draws",
            f"goodput: expected, by Daly's model; Young {readable_duration(training.young_s)}, Daly "
            f"{readable_duration(training.daly_s)}; within 0.1 points of the best: every {first} to {last} steps",
        ]


@asks(GoodputQuestion)
def goodput(question: GoodputQuestion) -> Goodput:
    """Predict the share of the time of a training that goes into kept steps, and the best checkpoint interval.

    Failures come at exponential distances, also while a checkpoint is written and while the job restarts. Steps since
    the last checkpoint are repeated.

    Raises:
        ArgumentError: An argument makes no sense.
        SimulationError: A run fails too often to be simulated, or never ends.
    """
    for name in ("step_s", "fail_every_s"):
        require_rate(name, getattr(question, name))
    given = require_optional("checkpoint_every", question.checkpoint_every, 1, question.num_steps)
    training = CheckpointedTraining(
        float(question.step_s),
        question.num_steps,
        question.fail_every_s / question.num_devices,
        float(question.restart_s),
        float(question.checkpoint_s),
    )
    draws, seed = question.draws, question.seed
    best, curve = search_interval(training, draws, seed)
    others = {"Young": training.steps_in(training.young_s), "Daly": training.steps_in(training.daly_s)}
    others |= {} if given is None else {"given": given}
    points = interval_goodputs(training, [best, *others.values()], draws, seed)
    return Goodput(training, draws, dict(zip(("best", *others), points, strict=True)), curve)
