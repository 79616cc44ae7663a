"""Train a model under a schedule: all ranks in this process, or one process per rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import (
    Compression,
    DeviceCost,
    Profile,
    StageCosts,
    costs_of_stages,
    element_bytes,
)
from pipesched.profiles.io import Plan
from pipesched.profiles.models import Model, draw_batch
from pipesched.profiles.processes import prints_to_stderr
from pipesched.schedules import Schedule
from pipesched.schedules.builders import ParameterValue, find
from pipesched.schedules.check import require_runnable
from pipesched.schedules.formats import read_schedule, to_json
from pipesched.schedules.transforms import ScheduleSpec, TrainingRun
from pipesched.workflows.arguments import (
    ClusterArgument,
    CostsArgument,
    ProfileArgument,
    load_costs,
    read_cluster_argument,
    require_no_counts,
)
from pipesched.workflows.errors import ArgumentError, require_at_least, require_choice
from pipesched.workflows.model_arguments import (
    ModelArgument,
    RunKeywords,
    cut_model,
    name_for_processes,
    read_model_argument,
    read_profile_of,
    require_epsilon,
    require_followed,
    require_keywords,
    require_possible,
)
from pipesched.workflows.session import is_rank
from pipesched.workflows.table import Table
from pipesched.workflows.trained_run import TrainedRun, summarize_training, trained_table
from pipesched.workflows.training_forecast import TrainingForecast, forecast_training

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from pipesched.executor.launch import RunSpec
    from pipesched.executor.training import OnStep, Trained

TrainableSchedule: TypeAlias = ScheduleSpec | Plan | Schedule | str | Path
MAX_LOCAL_RANKS = 1024
"""In one process; more take minutes to build."""


@dataclass(frozen=True, slots=True, repr=False)
class TrainingResult:
    """A training run.

    Attributes:
        schedule: The name of its schedule.
        model: The model's name.
        num_steps: Optimizer steps that were asked for.
        trained: The scores of every step, where it diverged, and the scores of the final weights.
        forecast: What was predicted of it; None without costs.
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
        """Of every step, before its update, as far as the run came."""
        return tuple(scores.loss for scores in self.trained.steps)

    @property
    def accuracies(self) -> tuple[float | None, ...]:
        """Of every step; None where targets are no classes."""
        return tuple(scores.accuracy for scores in self.trained.steps)

    @property
    def held_out_loss(self) -> float | None:
        """Of the final weights, on samples kept from training; None if there are none, or under torchrun."""
        return None if self.trained.held_out is None else self.trained.held_out.loss

    @property
    def held_out_accuracy(self) -> float | None:
        """Likewise."""
        return None if self.trained.held_out is None else self.trained.held_out.accuracy

    @property
    def diverged_at(self) -> int | None:
        """The step whose loss ended the run; None where it did not diverge."""
        return None if self.trained.diverged is None else self.trained.diverged.step

    def summary(self, target_loss: float | None = None) -> TrainedRun:
        """Return the run in one row; with a target, when the smoothed loss came down to it."""
        return summarize_training(self.schedule, self.forecast, self.trained, self.num_steps, target_loss)

    def to_frame(self) -> pd.DataFrame:
        """Return a row per step: loss, accuracy, and with costs when it is predicted to be known [s]."""
        import pandas as pd

        frame = pd.DataFrame({"loss": self.losses, "accuracy": self.accuracies}).rename_axis("step")
        if self.forecast is not None:
            frame["predicted_s"] = [self.forecast.time.at_s(step) for step in range(len(self.losses))]
        return frame.astype({"accuracy": "Float64"})

    def plot(self) -> Figure:
        """Draw the losses against steps, and with costs against predicted time."""
        from pipesched.simulator.views import Curve, learning_curve_figure

        time = None if self.forecast is None else self.forecast.time
        times_s = None if time is None else tuple(time.at_s(step) for step in range(len(self.losses)))
        curve = Curve(self.schedule, self.losses, times_s, self.diverged_at is not None, self.pipelines)
        return learning_curve_figure([curve], self.model)

    def table(self) -> Table:
        """Return the run as people read it."""
        return trained_table([self.summary()])

    def _repr_html_(self) -> str:
        return self.table().to_html()


def train(
    model: ModelArgument,
    schedule: TrainableSchedule,
    *,
    num_ranks: int | None = None,
    num_microbatches: int | None = None,
    num_chunks: int | None = None,
    parameters: Mapping[str, ParameterValue] | None = None,
    batch_size: int | None = None,
    num_steps: int = 100,
    partition: str | None = None,
    profile: ProfileArgument | None = None,
    costs: CostsArgument | None = None,
    cluster: ClusterArgument = None,
    is_distributed: bool = False,
    advance: Literal["auto"] | None = None,
    limit_bytes: int | None = None,
    on_step: OnStep | None = None,
    **keywords: Unpack[RunKeywords],
) -> TrainingResult:
    """Train a model under a schedule. A run that diverges is a result: it ends there.

    In a script that torchrun has started, this process joins as its rank, and the result comes back in all of them;
    nobody judges the final weights then, nor ends a run that diverges. What processes that are started here leave for
    the next run is ended by `close`.

    Args:
        model: A Model, or a name as `profile` takes it.
        schedule: A name of the catalogue with `num_ranks`, a ScheduleSpec, a Plan, a Schedule, or a file of one.
        num_ranks: Of a schedule by name.
        num_microbatches: Of a schedule by name: that a batch is cut into; None: as many as ranks.
        num_chunks: Of a schedule by name: stages per rank, where it takes them.
        parameters: Of a schedule by name, as its entry of the catalogue lists them.
        batch_size: Samples of a step, of each pipeline where several are averaged; None: 64, or as a plan says.
        num_steps: Optimizer steps.
        partition: ``uniform``, ``balanced`` with a profile, or layers per stage as in ``3,3,4``.
        profile: Of the model, where it is to be cut by it.
        costs: As `simulate` takes them, to predict the time of the run with, but a DeviceCost is of a whole batch;
            None: nothing is predicted.
        cluster: The machines that it is predicted for; None: equal devices whose links take no time.
        is_distributed: Whether every rank has a process of its own; else all are in this one.
        advance: ``auto``: the forwards run further ahead until that is no faster; with several processes.
        limit_bytes: That a device may hold while they do.
        on_step: Told each step and its scores, soon after it was; not under torchrun.
        keywords: How a model is run: the fields of `RunKeywords`.

    Raises:
        ArgumentError: An argument, or a combination, makes no sense.
        ScheduleError: No such schedule, or lists that cannot have so many steps.
        ProfileError: There is no such model, it cannot be cut so, or a file is bad.
        ExecutionError: A value is out of range, or an op failed in this process.
        RankFailed: A rank failed, died or hung; with rank, op and micro-batch. All others are ended.
    """
    require_keywords(keywords)
    require_choice("advance", advance, (None, "auto"))
    require_at_least("num_steps", num_steps, 1)
    if batch_size is not None:
        require_at_least("batch_size", batch_size, 1)
    if limit_bytes is not None:
        require_at_least("limit_bytes", limit_bytes, 1)
        if advance is None:
            raise ArgumentError(f"limit_bytes: got {limit_bytes}, expected `advance` with it; leave it out")
    if cluster is not None and costs is None:
        raise ArgumentError("cluster: got it without `costs`, expected both, as nothing is predicted; leave it out")
    if isinstance(schedule, Plan):
        if batch_size is not None or partition is not None:
            raise ArgumentError("schedule: got a plan, and `batch_size` or `partition` too; leave them out")
        batch_size, partition = schedule.batch_size, ",".join(map(str, schedule.partition))
        keywords["compression"] = schedule.compression
    recipe = _recipe(schedule, num_ranks, num_microbatches, num_chunks, parameters)
    batch_size = 64 if batch_size is None else batch_size
    built, is_elsewhere = read_model_argument(model), is_distributed or is_rank()
    run = recipe.run(num_steps)
    lists = run.lists(num_steps)
    require_possible(keywords)
    require_cut([run], batch_size)
    if recipe.name or lists.origin is not None:
        require_followed({recipe.name or lists.name: lists.traits}, keywords)
    require_epsilon([lists.traits], keywords)
    if not is_elsewhere:
        require_few(lists)
    layers = None if profile is None else read_profile_of(profile, built)
    bounds = cut_model(built, lists.num_stages, partition, layers, run.microbatch_size(batch_size))
    with prints_to_stderr():
        draw_batch(built, 1, keywords.get("seed", 0))  # data that are not there are found before anything is done
    forecast = None
    if costs is not None:
        stage_costs = costs_of_training(load_costs(costs), run, lists, bounds, batch_size, keywords)
        machines = read_cluster_argument(cluster, max(lists.rank_to_device) + 1, f"schedule {lists.name}")
        forecast = _forecast(recipe, bounds, num_steps, stage_costs, machines)
    name = name_for_processes(model) if is_elsewhere else built.name
    job = {"num_steps": num_steps, "batch_size": batch_size, "advance": advance, "limit_bytes": limit_bytes}
    spec = training_spec(recipe, name, bounds, keywords, **job)
    trained = trained_by(spec, built, on_step, is_distributed=is_distributed)
    return TrainingResult(run.name, built.name, num_steps, trained, forecast, run.pipelines)


def training_spec(
    recipe: ScheduleSpec, model: str, bounds: tuple[tuple[int, int], ...], keywords: RunKeywords, **job: Any
) -> RunSpec:
    """Return a run that trains; `job` are fields of `Train`.

    Raises:
        ExecutionError: A value is out of range.
    """
    from pipesched.executor.launch import RunSpec, Train

    return RunSpec(job=Train(recipe=recipe, **job), model=model, bounds=bounds, **keywords)


def trained_by(spec: RunSpec, model: Model, on_step: OnStep | None = None, *, is_distributed: bool = False) -> Trained:
    """Train: as this process' rank under torchrun, with processes of our own, or with all ranks in this process.

    Raises:
        ArgumentError: What is for several processes is asked of one.
        RankFailed: A rank failed, died or hung; with rank, op and micro-batch.
    """
    from pipesched.executor.launch import Train
    from pipesched.executor.runs import launch_training, run_rank, train_locally, training_of
    from pipesched.executor.training import Trained

    assert isinstance(spec.job, Train), "its job trains"
    if is_rank():
        found = run_rank(spec, is_shared=True)
        assert isinstance(found, Trained), "its job trains"
        return found
    if is_distributed:
        return launch_training(spec, on_step)
    if spec.job.advance is not None:
        raise ArgumentError(
            f"advance: got {spec.job.advance}, expected `is_distributed` with it: in one process ranks take turns, and "
            "no order is faster; add it"
        )
    import torch

    training = training_of(spec, torch.device(spec.device), model)
    before = torch.get_num_threads()
    torch.set_num_threads(spec.threads)
    try:
        return train_locally(training.run.lists(spec.job.num_steps), training, on_step)
    finally:
        torch.set_num_threads(before)


def costs_of_training(
    costs: StageCosts | DeviceCost | Profile,
    run: TrainingRun,
    lists: Schedule,
    bounds: tuple[tuple[int, int], ...],
    batch_size: int,
    keywords: RunKeywords,
) -> StageCosts:
    """Return what a micro-batch costs on each stage.

    Args:
        costs: Of the layers, of a device with a whole batch, or of a micro-batch on each stage.
        run: How many micro-batches a step has.
        lists: How many stages there are.
        bounds: Half-open range of layers of every stage.
        batch_size: Samples of a step, of each pipeline.
        keywords: Whether messages are compressed.

    Raises:
        ProfileError: The profile has no such micro-batches.
    """
    if isinstance(costs, Profile):
        stage_costs = costs_of_stages(costs, bounds, run.microbatch_size(batch_size))
    elif isinstance(costs, DeviceCost):
        stage_costs = costs.stage_costs(lists).of_share(run.pipelines / run.microbatches_per_step)
    else:
        stage_costs = costs
    if keywords.get("compression") is None:
        return stage_costs
    return replace(stage_costs, compression=Compression(element_bytes(keywords.get("dtype", "float32"))))


def require_cut(runs: Sequence[TrainingRun], batch_size: int) -> None:
    """Refuse a batch that a run cannot cut into equal micro-batches.

    Raises:
        ArgumentError: There is such a run.
    """
    for run in runs:
        count = run.microbatches_per_step // run.pipelines
        if batch_size % count:
            near = batch_size - batch_size % count or count
            raise ArgumentError(
                f"batch_size: got {batch_size} samples for the {count} micro-batches of a step of "
                f"{run.name}, expected a multiple; try {near}"
            )


def require_few(lists: Schedule) -> None:
    """Refuse more ranks than one process could build in a minute or so.

    Raises:
        ArgumentError: There are more.
    """
    if lists.num_ranks > MAX_LOCAL_RANKS:
        raise ArgumentError(
            f"schedule {lists.name}: got {lists.num_ranks} ranks in one process, expected at most {MAX_LOCAL_RANKS}; "
            "try fewer ranks or copies, or torchrun"
        )


def _forecast(
    recipe: ScheduleSpec, bounds: tuple[tuple[int, int], ...], num_steps: int, costs: StageCosts, cluster: Cluster
) -> TrainingForecast:
    """Return the forecast of what fits.

    Raises:
        ArgumentError: A device holds more than it has.
    """
    forecast = forecast_training(recipe, bounds, num_steps, costs, cluster)
    if forecast.over is not None:
        raise ArgumentError(
            f"batch_size: over memory: {forecast.over}; try a smaller batch, more stages, or recomputation"
        )
    return forecast


def _recipe(
    schedule: TrainableSchedule,
    num_ranks: int | None,
    num_microbatches: int | None,
    num_chunks: int | None,
    parameters: Mapping[str, ParameterValue] | None,
) -> ScheduleSpec:
    """Return how the lists of a training run are made."""
    if isinstance(schedule, str) and Path(schedule).suffix not in (".json", ".csv"):
        if num_ranks is None:
            raise ArgumentError(f"num_ranks: got none with schedule {schedule}, expected it; try num_ranks=4")
        entry = find(schedule)
        values = {parameter.name: parameter.default for parameter in entry.parameters} | dict(parameters or {})
        pipelines = values.get("pipelines", 1)
        assert isinstance(pipelines, int), "as its type says"
        return ScheduleSpec(
            name=entry.name,
            num_ranks=num_ranks,
            num_microbatches=num_ranks * pipelines if num_microbatches is None else num_microbatches,
            num_chunks=num_chunks,
            parameters=dict(parameters or {}),
        )
    require_no_counts(
        num_ranks=num_ranks, num_microbatches=num_microbatches, num_chunks=num_chunks, parameters=parameters or None
    )
    match schedule:
        case ScheduleSpec():
            return schedule
        case Plan():
            return schedule.recipe
        case Schedule():
            lists = schedule
        case str() | Path():
            lists = read_schedule(Path(schedule))
        case _:
            raise ArgumentError(f"schedule: got {schedule!r}, expected a name, lists, a plan or a file; try '1f1b'")
    require_runnable(lists)
    return ScheduleSpec(lists=to_json(lists))
