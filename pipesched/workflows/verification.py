"""Profile a model, predict schedules of it, run them, and set prediction and measurement side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING, Any, Unpack

from pipesched.profiles.costs import Profile, layer_seconds
from pipesched.profiles.models import Model
from pipesched.profiles.partitioning import parse_partition
from pipesched.profiles.processes import num_cores
from pipesched.schedules import Phase, Schedule, Timeline, computes
from pipesched.schedules.builders import ParameterValue, lookup
from pipesched.schedules.check import require_runnable
from pipesched.simulator.analysis import Comparison, compare_timelines
from pipesched.workflows.arguments import (
    ClusterArgument,
    ProfileArgument,
    ScheduleArgument,
    ScheduleSource,
    read_cluster_argument,
    read_schedule_argument,
)
from pipesched.workflows.errors import ArgumentError, require_at_least, require_names
from pipesched.workflows.model_arguments import (
    ModelArgument,
    RunKeywords,
    name_for_processes,
    read_model_argument,
    read_profile_of,
    require_epsilon,
    require_followed,
    require_keywords,
    require_possible,
)
from pipesched.workflows.prediction import Conditions, predict_source
from pipesched.workflows.profiling import profile as profile_layers
from pipesched.workflows.run_comparison import comparison_table
from pipesched.workflows.running import measured, modelled_spec
from pipesched.workflows.session import is_rank
from pipesched.workflows.table import Table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

LOSS_TOLERANCE = 1e-5
"""Relative; the sums run in the same order, so float32 agrees to its last digits."""


@dataclass(frozen=True, slots=True, repr=False)
class VerifiedSchedule:
    """One schedule, predicted and run.

    Attributes:
        predicted: As the profile says.
        measured: The iteration of median makespan.
        comparison: Every quantity in both, and how far they are apart.
        loss: Mean over the micro-batches whose forwards all read the initial weights.
        whole_loss: That of the model without a pipeline, on the same micro-batches.
        loss_difference: The largest of a micro-batch, relative; infinite where a loss is no number.
    """

    predicted: Timeline
    measured: Timeline
    comparison: Comparison
    loss: float
    whole_loss: float
    loss_difference: float

    def __repr__(self) -> str:
        return (
            f"VerifiedSchedule({self.name!r}, makespan_error={self.makespan_error:+.4g}, "
            f"loss_difference={self.loss_difference:.2g})"
        )

    @property
    def name(self) -> str:
        """Of the schedule."""
        return self.comparison.name

    @property
    def makespan_error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted.makespan_s / self.measured.makespan_s - 1

    @property
    def agrees(self) -> bool:
        """Whether the losses of the run are those of the model without a pipeline."""
        return self.loss_difference <= LOSS_TOLERANCE

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as ``pipesched verify --json`` prints it."""
        difference = self.loss_difference if math.isfinite(self.loss_difference) else None
        return {**self.comparison.to_dict(), "largest_loss_difference": difference}

    def plot(self) -> Figure:
        """Draw both on one time axis, the rows of a rank together."""
        from pipesched.simulator.views import gantt_figure

        title = f"{self.name}: predicted makespan {self.makespan_error:+.1%} off the measured one"
        return gantt_figure([self.predicted, self.measured], title=title)


@dataclass(frozen=True, slots=True, repr=False)
class Verification:
    """Several schedules of one model, each predicted and run.

    Attributes:
        schedules: In the order asked for.
        profile: That they were predicted from.
    """

    schedules: tuple[VerifiedSchedule, ...]
    profile: Profile

    def __repr__(self) -> str:
        return f"Verification({self.profile.model!r}, {list(self.schedules)})"

    @property
    def agrees(self) -> bool:
        """Whether the losses of all runs are those of the model without a pipeline."""
        return all(verified.agrees for verified in self.schedules)

    def __getitem__(self, name: str) -> VerifiedSchedule:
        """Return the schedule `name`.

        Raises:
            KeyError: There is none.
        """
        found = next((verified for verified in self.schedules if verified.name == name), None)
        if found is None:
            names = ", ".join(verified.name for verified in self.schedules)
            raise KeyError(f"{name}: expected one of {names}")
        return found

    def to_frame(self) -> pd.DataFrame:
        """Return a row per schedule: both makespans [s], how far off, and the largest difference of a loss."""
        import pandas as pd

        rows = [
            {
                "name": verified.name,
                "predicted_s": verified.predicted.makespan_s,
                "measured_s": verified.measured.makespan_s,
                "makespan_error": verified.makespan_error,
                "loss": verified.loss,
                "whole_loss": verified.whole_loss,
                "loss_difference": verified.loss_difference,
            }
            for verified in self.schedules
        ]
        return pd.DataFrame(rows).set_index("name")

    def plot(self) -> Figure:
        """Draw the prediction and the measurement of every schedule one under another."""
        from pipesched.simulator.views import gantt_figure

        return gantt_figure([line for each in self.schedules for line in (each.predicted, each.measured)])

    def table(self) -> Table:
        """Return every quantity of every schedule, predicted and measured, as people read it."""
        return comparison_table([verified.comparison for verified in self.schedules])

    def _repr_html_(self) -> str:
        return self.table().to_html()


def verify(
    model: ModelArgument,
    schedules: Sequence[ScheduleArgument] = ("gpipe", "1f1b"),
    *,
    num_ranks: int | None = None,
    num_microbatches: int | None = None,
    num_chunks: int | None = None,
    parameters: Mapping[str, ParameterValue] | None = None,
    microbatch_size: int = 1,
    partition: str | None = None,
    profile: ProfileArgument | None = None,
    cluster: ClusterArgument = None,
    iterations: int = 5,
    warmup: int = 1,
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
    **keywords: Unpack[RunKeywords],
) -> Verification:
    """Profile a model, predict schedules of it and run them, and compare times, memory and losses.

    Args:
        model: A Model that has a name, or a name as `profile` takes it.
        schedules: Each as `simulate` takes one.
        num_ranks: Of the schedules by name.
        num_microbatches: Of the schedules by name.
        num_chunks: Of those by name that take chunks.
        parameters: Of those by name that have them.
        microbatch_size: Samples of a micro-batch.
        partition: ``balanced`` (None), ``uniform``, or layers per stage as in ``3,3,4``.
        profile: Of the model; None: it is measured first, while as many processes are busy as a run has.
        cluster: That the prediction is for; None: equal devices whose links take no time.
        iterations: Measured runs of the lists, of which the median counts.
        warmup: Runs before them.
        progress: Told now and then what fraction is done.
        keywords: How the model is run: the fields of `RunKeywords`.

    Raises:
        ArgumentError: An argument, or a combination, makes no sense.
        NotRunnableError: Lists cannot run to their end.
        ScheduleError: No such schedule, bad counts, or a bad file.
        ProfileError: There is no such model, it cannot be cut so, or a file is bad.
        RankFailed: A rank failed, died or hung; with rank, op and micro-batch. All others are ended.
    """
    require_names("schedules", schedules)
    require_keywords(keywords)
    for count, value, least in (
        ("microbatch_size", microbatch_size, 1),
        ("iterations", iterations, 1),
        ("warmup", warmup, 0),
    ):
        require_at_least(count, value, least)
    if profile is None and is_rank():
        raise ArgumentError(
            "profile: got none under torchrun, where every process would measure its own, expected one for all; "
            "try a file that pipesched profile has written"
        )
    sources = [
        read_schedule_argument(
            schedule,
            num_ranks=num_ranks,
            num_microbatches=num_microbatches,
            num_chunks=num_chunks,
            parameters=parameters,
        )
        if isinstance(schedule, str) and lookup(schedule) is not None
        else read_schedule_argument(schedule)
        for schedule in schedules
    ]
    if not sources:
        raise ArgumentError("schedules: got none, expected names; try gpipe,1f1b")
    if all(source.schedule.origin is not None for source in sources):
        require_followed({source.schedule.name: source.schedule.traits for source in sources}, keywords)
    require_possible(keywords)
    require_epsilon([source.schedule.traits for source in sources], keywords)
    built, name = read_model_argument(model), name_for_processes(model)
    require_verifiable([source.schedule for source in sources], built, partition, cluster)
    num_busy = max(source.schedule.num_ranks for source in sources)
    layers = profile_for_runs(built, microbatch_size, num_busy, profile, keywords)
    conditions = Conditions(
        costs=layers, cluster=cluster, microbatch_size=microbatch_size, partition=partition or "balanced"
    )
    verified = []
    for index, source in enumerate(sources):

        def tick(fraction: float, index: int = index) -> None:
            progress((index + fraction) / len(sources))

        verified.append(verify_source(source, name, conditions, keywords, tick, iterations=iterations, warmup=warmup))
    return Verification(tuple(verified), layers)


def require_verifiable(
    schedules: Sequence[Schedule], model: Model, partition: str | None, cluster: ClusterArgument
) -> None:
    """Refuse, before anything is measured, what would fail after it.

    Raises:
        ArgumentError: There are too few devices.
        NotRunnableError: Lists cannot run to their end.
        ProfileError: The model cannot be cut so.
    """
    for schedule in schedules:
        require_runnable(schedule)
        parse_partition(partition or "balanced", (1.0,) * len(model.layers), schedule.num_stages)
        read_cluster_argument(cluster, max(schedule.rank_to_device) + 1, f"schedule {schedule.name}")


def profile_for_runs(
    model: Model,
    microbatch_size: int,
    num_ranks: int,
    profile: ProfileArgument | None,
    keywords: RunKeywords,
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
) -> Profile:
    """Return the profile, or measure one while as many processes are busy as a run of `num_ranks` has.

    Raises:
        ArgumentError: It is of another model, dtype or optimizer than the run.
        ProfileError: The file is none, or the model fails.
    """
    dtype, optimizer = keywords.get("dtype", "float32"), keywords.get("optimizer", "adamw")
    if profile is None:
        device = keywords.get("device", "cpu")
        return profile_layers(
            model,
            [microbatch_size],
            optimizer=optimizer,
            dtype=dtype,
            device=device,
            threads=keywords.get("threads", 1),
            companions=min(num_ranks, num_cores()) - 1 if device == "cpu" else 0,
            seed=keywords.get("seed", 0),
            progress=progress,
        ).profile
    loaded = read_profile_of(profile, model)
    where = "profile" if isinstance(profile, Profile) else profile
    for name, found, wanted in (
        ("dtype", loaded.provenance.dtype, dtype),
        ("optimizer", loaded.provenance.optimizer, optimizer),
    ):
        if found != wanted:
            raise ArgumentError(
                f"{where}: {name}: got a profile measured with {found}, expected {wanted} as in the run; "
                f"try `{name}={found}`, or leave out `profile`"
            )
    return loaded


def verify_source(
    source: ScheduleSource,
    model: str,
    conditions: Conditions,
    keywords: RunKeywords,
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
    **measured_how: Any,
) -> VerifiedSchedule:
    """Predict and run one schedule, and compare its losses with those of the whole model.

    Args:
        source: Of the schedule.
        model: Its name.
        conditions: Of the prediction, from a profile that says how the model is cut.
        keywords: How it is run.
        progress: Told now and then what fraction of all ops is done.
        measured_how: Fields of `Measure`.
    """
    from pipesched.executor.runs import whole_model_losses

    schedule, costs, size = source.schedule, conditions.costs, conditions.microbatch_size or 1
    assert isinstance(costs, Profile), "the model is measured"
    predicted = predict_source(source, conditions).timeline
    seconds = layer_seconds(costs, size)
    bounds = parse_partition(conditions.partition or "balanced", seconds, schedule.num_stages)
    spec = modelled_spec(schedule, model, bounds, size, keywords, **measured_how)
    found = measured(spec, progress)
    losses = zip(found.losses, whole_model_losses(spec), strict=True)
    pairs = [pair for pair, comparable in zip(losses, with_initial_weights(schedule), strict=True) if comparable]
    return VerifiedSchedule(
        predicted,
        found.timeline,
        compare_timelines(predicted, found.timeline),
        loss=mean(loss for loss, _ in pairs),
        whole_loss=mean(whole_loss for _, whole_loss in pairs),
        loss_difference=max(relative_difference(loss, whole_loss) for loss, whole_loss in pairs),
    )


def relative_difference(value: float, expected: float) -> float:
    """Return by how much `value` is off, relative to `expected`; infinite where one of them is no number any more."""
    if not (math.isfinite(value) and math.isfinite(expected)):
        return math.inf  # max() would pass over a NaN
    if value == expected:
        return 0.0
    return abs(value - expected) / abs(expected) if expected else math.inf


def with_initial_weights(schedule: Schedule) -> list[bool]:
    """Return of each micro-batch whether all its forwards read the initial weights, as the whole model does.

    That whose backward is the first of all always does: no stage can have stepped before. Where there is a step between
    the micro-batches, others have losses of their own. Weights that are predicted before the stage's first step are
    the initial ones, as there is nothing yet to predict them from.
    """
    parts = [part for row in schedule.ops for op in row for part in computes(op) if part.phase is Phase.FORWARD]
    later = {part.microbatch for part in parts if part.version}
    return [microbatch not in later for microbatch in range(schedule.num_microbatches)]
