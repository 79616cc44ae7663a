"""The result of a training run: scores of every step, and the forecast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipesched.workflows import Table, require_number
from pipesched.workflows.training.trained_run import TrainedRun, summarize_training, trained_table
from pipesched.workflows.training.training_forecast import TrainingForecast

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from pipesched.executor.training import Scores, Trained
    from pipesched.simulator.views import Curve


@dataclass(frozen=True, slots=True, repr=False)
class TrainingResult:
    """The result of a training run.

    Attributes:
        schedule: The name of its schedule.
        model: The model's name.
        num_steps: Requested optimizer steps.
        trained: The scores of every step, the step of divergence, and the scores of the final weights.
        forecast: The forecast, or None without costs.
        pipelines: Copies of the model that are averaged, each with a batch of its own in a step.
    """

    schedule: str
    model: str
    num_steps: int
    trained: Trained
    forecast: TrainingForecast | None = None
    pipelines: int = 1

    def __repr__(self) -> str:
        last = f", last loss {self.losses[-1]:.4g}" if self.losses else ""
        return f"TrainingResult({self.schedule!r}, {len(self.losses)} steps{last})"

    @property
    def losses(self) -> tuple[float, ...]:
        """The loss of every finished step, before its update."""
        return tuple(scores.loss for scores in self.trained.steps)

    @property
    def accuracies(self) -> tuple[float | None, ...]:
        """The accuracy of every step; None if targets are no classes."""
        return tuple(scores.accuracy for scores in self.trained.steps)

    @property
    def held_out_loss(self) -> float | None:
        """The loss of the final weights, on held-out samples; None without such samples, and under torchrun."""
        return None if self.trained.held_out is None else self.trained.held_out.loss

    @property
    def held_out_accuracy(self) -> float | None:
        """The accuracy of the final weights, on held-out samples; None without such a loss."""
        return None if self.trained.held_out is None else self.trained.held_out.accuracy

    @property
    def held_out_on_the_way(self) -> Mapping[int, Scores]:
        """Loss and accuracy on held-out samples, by the number of finished steps, every `held_out_every` steps."""
        return self.trained.looks

    @property
    def is_paused(self) -> bool:
        """Whether a signal ended the run early, after a checkpoint."""
        return self.trained.is_paused

    @property
    def failures(self) -> tuple[str, ...]:
        """The failures of ranks that led to a restart."""
        return self.trained.failures

    @property
    def diverged_at(self) -> int | None:
        """The step whose loss ended the run, or None if it did not diverge."""
        return None if self.trained.diverged is None else self.trained.diverged.step

    def summary(self, target_loss: float | None = None) -> TrainedRun:
        """Return the run in one row; with a target, including the steps until the smoothed loss reaches it.

        Raises:
            ArgumentError: The target is no finite number of at least 0.
        """
        if target_loss is not None:
            require_number("target_loss", target_loss)
        return summarize_training(self.schedule, self.forecast, self.trained, self.num_steps, target_loss)

    def to_frame(self) -> pd.DataFrame:
        """Return a row per step: loss, accuracy, and with costs its predicted time [s]."""
        import pandas as pd

        frame = pd.DataFrame({"loss": self.losses, "accuracy": self.accuracies}).rename_axis("step")
        if self.forecast is not None:
            frame["predicted_s"] = [self.forecast.time.at_s(step) for step in range(len(self.losses))]
        return frame.astype({"accuracy": "Float64"})

    @property
    def curve(self) -> Curve:
        """The losses against steps, and with costs against predicted time, for the plot of a run."""
        from pipesched.simulator.views import Curve

        time = None if self.forecast is None else self.forecast.time
        times_s = None if time is None else tuple(time.at_s(step) for step in range(len(self.losses)))
        return Curve(self.schedule, self.losses, times_s, self.diverged_at is not None, self.pipelines)

    def plot(self) -> Figure:
        """Draw the `curve`."""
        from pipesched.simulator.views import learning_curve_figure

        return learning_curve_figure([self.curve], self.model)

    def table(self) -> Table:
        """Return the run formatted for people."""
        return trained_table([self.summary()])

    def _repr_html_(self) -> str:
        return self.table().to_html()
