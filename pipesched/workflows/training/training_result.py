"""The result of a training run: scores of every step, the forecast, and both as a row of a table."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from pipesched.simulator.analysis import CellValue, readable_s, readable_share
from pipesched.workflows import Result, Table, launch_note, require_number, without_dull
from pipesched.workflows.training.training_forecast import TrainingForecast

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from pipesched.executor.training import Scores, Trained
    from pipesched.simulator.fast import RunTime
    from pipesched.simulator.views import Curve


@dataclass(frozen=True, slots=True, repr=False)
class TrainingResult(Result):
    """The result of a training run.

    Attributes:
        schedule: The name of its schedule.
        model: The model's name.
        num_steps: Requested optimizer steps.
        trained: The scores of every step, the step of divergence, and the scores of the final weights.
        forecast: The forecast, or None without costs.
        pipelines: Copies of the model that are averaged, each with a batch of its own in a step.
        seed: Seed of weights, samples and dropout.
    """

    schedule: str
    model: str
    num_steps: int
    trained: Trained
    forecast: TrainingForecast | None = None
    pipelines: int = 1
    seed: int = 0

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
        """The accuracy of the final weights on held-out samples; None without samples, or if targets are no classes."""
        return None if self.trained.held_out is None else self.trained.held_out.accuracy

    @property
    def held_out_on_the_way(self) -> Mapping[int, Scores]:
        """Loss and accuracy on held-out samples, by the number of finished steps, every `held_out_every` steps."""
        return self.trained.looks

    @property
    def steps_to_accuracy(self) -> int | None:
        """The steps until an evaluation reached `target_accuracy`, or None."""
        return None if self.trained.reached is None else self.trained.reached.num_steps

    @property
    def seconds_to_accuracy(self) -> float | None:
        """The measured time to `target_accuracy`, without evaluations, all ranks in turns [s]; None if not reached."""
        return None if self.trained.reached is None else self.trained.reached.seconds

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
        trained, forecast, diverged = self.trained, self.forecast, self.trained.diverged
        tail = [] if diverged is not None else trained.steps[-max(1, self.num_steps // TAIL) :]
        target_step = None if target_loss is None else _first_below(self.losses, target_loss, self.num_steps)
        run = TrainedRun(
            schedule=self.schedule,
            steps=len(trained.steps),
            training_loss=_mean_of(scores.loss for scores in tail),
            training_accuracy=_mean_of(scores.accuracy for scores in tail if scores.accuracy is not None),
            held_out_loss=self.held_out_loss,
            held_out_accuracy=self.held_out_accuracy,
            diverged_at=self.diverged_at,
            diverged_loss=diverged.loss if diverged is not None and math.isfinite(diverged.loss) else None,
            steps_to_target=None if target_step is None else target_step + 1,
            steps_to_accuracy=self.steps_to_accuracy,
            accuracy_measured_s=self.seconds_to_accuracy,
            seed=self.seed,
        )
        if forecast is None:
            return run
        time, reached = forecast.time, trained.reached
        return replace(
            run,
            staleness=forecast.staleness,
            weight_versions=forecast.weight_versions,
            predicted_copies=int(forecast.predicts),
            seconds_per_step=time.period_s,
            run_s=time.makespan_s,
            steps_per_s=time.steps_per_s,
            target_s=None if target_step is None else time.at_s(target_step),
            accuracy_s=None if reached is None else _at_s(time, reached.num_steps),
        )

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

    @property
    def notes(self) -> list[str]:
        """A note on the launching of the ops, of a run on streams of GPUs."""
        times = self.trained.launching
        if times is None or not times.num_passes:
            return []
        return [launch_note(times.launch_s, times.run_s, "`is_distributed=True`" * times.is_bound)]


TAIL = 10
"""Number of parts of a run; the final training loss is the mean over the last part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRun:
    """One run; unknown values are None, as for a run that diverged.

    Attributes:
        schedule: Name of the schedule.
        steps: Finished optimizer steps.
        training_loss: Mean over the last tenth of the steps.
        training_accuracy: Mean over the last tenth of the steps.
        held_out_loss: Loss of the final weights, on samples kept from training.
        held_out_accuracy: Accuracy of the final weights, on the samples kept from training.
        diverged_at: The step whose loss ended the run.
        diverged_loss: Loss of that step, or None if it is not finite.
        staleness: Most steps by which the weights of a forward are older than the weights that its gradient changes.
        weight_versions: Versions of a stage's weights that a rank holds at most.
        predicted_copies: Predicted copies of a stage's weights that a rank holds beside the versions.
        seconds_per_step: Predicted seconds of a step.
        run_s: Predicted seconds of the whole run, with warm-up and drain.
        steps_per_s: Predicted steps per second, over the whole run.
        steps_to_target: Steps until the mean loss of the last twentieth of the run is at the target.
        target_s: Predicted seconds until the target is reached, when that is known.
        steps_to_accuracy: Steps until the target accuracy, which ended the run.
        accuracy_s: Predicted seconds until the step after `steps_to_accuracy` has its loss, or until the run ends.
        accuracy_measured_s: Measured seconds until the target accuracy, without evaluations, all ranks in turns.
        seed: Seed of weights, samples and dropout.
    """

    schedule: str
    steps: int
    training_loss: float | None
    training_accuracy: float | None
    held_out_loss: float | None
    held_out_accuracy: float | None
    diverged_at: int | None
    diverged_loss: float | None
    staleness: int | None = None
    weight_versions: int | None = None
    predicted_copies: int | None = None
    seconds_per_step: float | None = None
    run_s: float | None = None
    steps_per_s: float | None = None
    steps_to_target: int | None = None
    target_s: float | None = None
    steps_to_accuracy: int | None = None
    accuracy_s: float | None = None
    accuracy_measured_s: float | None = None
    seed: int = 0

    def to_row(self) -> dict[str, CellValue]:
        """Return plain data."""
        return asdict(self)


def _at_s(time: RunTime, num_steps: int) -> float:
    return time.at_s(num_steps) if num_steps < time.num_steps else time.makespan_s


def _first_below(losses: Sequence[float], target_loss: float, num_steps: int) -> int | None:
    """Return the first step at which the smoothed loss is at most the target, or None if it never is."""
    from pipesched.simulator.views import smoothed, window_of

    window = window_of(num_steps)
    for step, loss in enumerate(smoothed(losses, window)):
        if step + 1 >= window and loss <= target_loss:
            return step
    return None


def _mean_of(values: Iterable[float]) -> float | None:
    numbers = array("d", values)  # of a million steps, in little
    return sum(numbers) / len(numbers) if numbers else None


_LEGEND = {
    "loss": "mean of the last tenth of the steps",
    "accuracy": "mean of the last tenth of the steps",
    "held-out loss": "on samples kept from training",
    "held-out accuracy": "on samples kept from training",
}


def trained_table(
    outcomes: Sequence[TrainedRun], target_loss: float | None = None, target_accuracy: float | None = None
) -> Table:
    """Return the measurements, a row per run."""
    targets = [] if target_loss is None else [f"target: when the smoothed loss is {target_loss:g} or less"]
    if target_accuracy is not None:
        targets.append(
            "target accuracy: steps, and measured time of all ranks in turns without evaluations, until "
            f"{readable_share(target_accuracy)} on samples kept from training"
        )
    rows = [
        _seeded(outcome, outcomes) | _measured(outcome, target_loss is not None, target_accuracy is not None)
        for outcome in outcomes
    ]
    return Table("Trained", without_dull(rows), "; ".join(targets), _LEGEND)


def forecast_table(
    outcomes: Sequence[TrainedRun],
    costs: str,
    target_loss: float | None = None,
    target_accuracy: float | None = None,
) -> Table:
    """Return the forecasts: a row per run with a target, else a row per schedule.

    Args:
        outcomes: Runs, each with a forecast.
        costs: Origin of the costs.
        target_loss: Target of the loss, or None.
        target_accuracy: Target of the held-out accuracy, or None.
    """
    if target_loss is None and target_accuracy is None:
        outcomes = [*{outcome.schedule: outcome for outcome in outcomes}.values()]
    rows = without_dull(
        [
            _seeded(outcome, outcomes) | _predicted(outcome, target_loss is not None, target_accuracy is not None)
            for outcome in outcomes
        ]
    )
    copies = "; + 1: a predicted copy" if any("+" in row.get("weight copies", "") for row in rows) else ""
    return Table("Predicted", rows, f"every rank on its device, from {costs}{copies}")


def _seeded(outcome: TrainedRun, outcomes: Sequence[TrainedRun]) -> dict[str, str]:
    """Return the schedule, and the seed if runs have several."""
    has_several = len({other.seed for other in outcomes}) > 1
    return {"schedule": outcome.schedule, "seed": str(outcome.seed) if has_several else "-"}


def _measured(outcome: TrainedRun, has_target_loss: bool, has_target_accuracy: bool) -> dict[str, str]:
    diverged = reached = "-"
    if outcome.diverged_at is not None:
        loss = "not finite" if outcome.diverged_loss is None else f"{outcome.diverged_loss:.4g}"
        diverged = f"step {outcome.diverged_at}: {loss}"
    if has_target_accuracy:
        seconds = outcome.accuracy_measured_s
        reached = "not reached" if seconds is None else f"{outcome.steps_to_accuracy}, {readable_s(seconds)}"
    return {
        "steps": str(outcome.steps),
        "diverged at": diverged,
        "target accuracy": reached,
        "loss": _number(outcome.training_loss),
        "accuracy": readable_share(outcome.training_accuracy),
        "held-out loss": _number(outcome.held_out_loss),
        "held-out accuracy": readable_share(outcome.held_out_accuracy),
        "steps to target": str(outcome.steps_to_target or ("not reached" if has_target_loss else "-")),
    }


def _predicted(outcome: TrainedRun, has_target_loss: bool, has_target_accuracy: bool) -> dict[str, str]:
    return {
        "staleness": str(outcome.staleness),
        "weight copies": f"{outcome.weight_versions}{' + 1' * (outcome.predicted_copies or 0)}",
        "step": _seconds(outcome.seconds_per_step),
        "run": _seconds(outcome.run_s),
        "time to target": _seconds(outcome.target_s, "not reached" if has_target_loss else "-"),
        "target accuracy": _seconds(outcome.accuracy_s, "not reached" if has_target_accuracy else "-"),
    }


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _seconds(value: float | None, unknown: str = "-") -> str:
    return unknown if value is None else readable_s(value)
