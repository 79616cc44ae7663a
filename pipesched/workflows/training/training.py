"""Train a model under a schedule: all ranks in this process, or one process per rank."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pipesched.executor import PAUSE_SIGNALS, LearningSettings, RankFailed, RunSettings, learning_faults
from pipesched.executor.training import OnStep
from pipesched.profiles.io import Plan
from pipesched.profiles.models import Model, draw_batch, draw_held_out, tensors_of, tied_stages
from pipesched.profiles.processes import prints_to_stderr
from pipesched.questions import OF_PROCESSES, OF_STREAMS, InputShare, LayerCut, TrainSettings
from pipesched.schedules import Schedule
from pipesched.schedules.check import require_runnable
from pipesched.schedules.common import declared, shown, values_of
from pipesched.schedules.formats import read_schedule, to_json
from pipesched.schedules.transforms import ScheduleSpec, TrainingRun
from pipesched.simulator.analysis import readable_reason
from pipesched.workflows import ArgumentError, asks, is_rank, require_callable, require_path, require_settings
from pipesched.workflows.arguments import (
    ClusterArgument,
    CostsArgument,
    ModelArgument,
    ProfileArgument,
    ScheduleSource,
    given_plan,
    label_of,
    load_costs,
    name_for_processes,
    named_schedule,
    naming_ties,
    partition_text,
    read_cluster_argument,
    read_model_argument,
    read_profile_of,
    require_as_planned,
    require_epsilon,
    require_followed,
    require_possible,
)
from pipesched.workflows.measuring import with_faults
from pipesched.workflows.simulating import cut_of_model, source_of_training
from pipesched.workflows.training.checkpoint_arguments import checkpoint_settings, require_restartable
from pipesched.workflows.training.training_forecast import TrainingForecast, costs_of_training, forecast_training
from pipesched.workflows.training.training_result import TrainingResult

if TYPE_CHECKING:
    from pipesched.executor.launch import CheckpointSettings, RunSpec
    from pipesched.executor.training import Trained

TrainableSchedule: TypeAlias = ScheduleSpec | Plan | Schedule | ScheduleSource | str | Path
_OnRestart: TypeAlias = Callable[[RankFailed, int], None]
_MAX_LOCAL_RANKS = 1024
"""Most ranks in one process; more take minutes to build."""
_USUAL_BATCH = 64
"""Samples of a step without `batch_size` and without a plan."""
_USUAL_LOOKS = 10
"""Steps between two evaluations with a target and without `held_out_every`."""


def _unheard(error: RankFailed, steps: int) -> None:
    """Ignore a restart."""


@dataclass(frozen=True)
class TrainQuestion(TrainSettings):
    """The question of `train`; its fields are the arguments of that function."""

    model: ModelArgument
    schedule: TrainableSchedule
    partition: LayerCut = field(default=None, kw_only=True)
    input_share: InputShare = field(default=None, kw_only=True)
    profile: ProfileArgument | None = field(default=None, kw_only=True)
    costs: CostsArgument | None = field(default=None, kw_only=True)
    cluster: ClusterArgument = field(default=None, kw_only=True)
    on_step: OnStep | None = field(default=None, kw_only=True)
    on_restart: _OnRestart = field(default=_unheard, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse invalid settings."""
        object.__setattr__(self, "partition", partition_text(self.partition))
        require_settings(self)
        if self.on_step is not None:
            require_callable("on_step", self.on_step)
        require_callable("on_restart", self.on_restart)
        may_continue = self.checkpoint is not None or self.resume is not None
        fault = next(learning_faults(self, self.optimizer, self.num_steps, may_continue=may_continue), None)
        if fault is not None:
            raise ArgumentError(fault)
        if self.limit_bytes is not None and self.advance is None:
            raise ArgumentError(f"limit_bytes: got {self.limit_bytes} without `advance`, expected both; leave it out")
        if self.cluster is not None and self.costs is None and self.profile is None:
            raise ArgumentError(
                "cluster: got a cluster without `costs` or `profile`, which a prediction and a cut need, expected one "
                "of them; leave `cluster` out"
            )

    @property
    def is_elsewhere(self) -> bool:
        """Whether every rank has a process of its own."""
        return self.is_distributed or is_rank()


@dataclass(frozen=True, slots=True)
class Training:
    """A training run that is checked and can begin.

    Attributes:
        question: The settings.
        model: The model.
        run: The run of the schedule.
        spec: The job.
        forecast: The forecast, or None without costs.
    """

    question: TrainQuestion
    model: Model
    run: TrainingRun
    spec: RunSpec
    forecast: TrainingForecast | None

    @property
    def checkpoints(self) -> CheckpointSettings | None:
        """The checkpoints of the run, or None without any."""
        return self.spec.training.checkpoints

    @property
    def samples_per_step(self) -> int:
        """Samples of a step, of all pipelines together."""
        return self.run.pipelines * self.spec.training.batch_size

    @property
    def microbatch_size(self) -> int:
        """Samples of a micro-batch."""
        return self.run.microbatch_size(self.spec.training.batch_size)

    def train(self, on_step: OnStep | None = None, on_restart: _OnRestart = _unheard) -> TrainingResult:
        """Train: as this process' rank under torchrun, with processes of our own, or with all ranks in this process.

        A run with checkpoints that receives a stop signal ends after a checkpoint.

        Args:
            on_step: Receives each step and its scores soon after the step; not under torchrun.
            on_restart: Receives the error, and the number of finished steps, at each restart.

        Raises:
            ArgumentError: A device exceeds its memory, or `export` is not possible here.
            ExecutionError: An op failed in this process, or the checkpoint is damaged, or of another run.
            RankFailed: A rank failed, died or hung; the message names rank, op and micro-batch. All others are ended.
        """
        if self.forecast is not None and self.forecast.over is not None:
            smaller = "a smaller batch, " if self.microbatch_size > 1 else ""
            raise ArgumentError(
                f"batch_size: over memory: {readable_reason(str(self.forecast.over))}; try {smaller}more stages, or "
                "recomputation"
            )
        num_steps, pipelines = self.question.num_steps, self.run.pipelines
        trained = self._trained(on_step, on_restart)
        seed = self.question.seed
        return TrainingResult(self.run.name, self.model.name, num_steps, trained, self.forecast, pipelines, seed)

    def with_seed(self, seed: int) -> Training:
        """Return the run with other weights, samples and dropout."""
        return replace(self, question=replace(self.question, seed=seed), spec=replace(self.spec, seed=seed))

    def _trained(self, on_step: OnStep | None, on_restart: _OnRestart) -> Trained:
        from pipesched.executor.launch import pause_requests
        from pipesched.executor.runs import RankListener, launch_training, run_rank, train_locally, training_of
        from pipesched.executor.training import Trained

        question, spec = self.question, self.spec
        export = None if question.export is None else require_path(question.export, "export")
        if is_rank() and export is not None:
            raise ArgumentError(
                f"export: got {export} under torchrun, expected no export, as each process has only its own stages; "
                "try `save`"
            )
        signals = (signal.SIGUSR1,) if is_rank() else PAUSE_SIGNALS  # SIGTERM is how torchrun ends all ranks
        with pause_requests(has_checkpoints=self.checkpoints is not None, signals=signals) as is_asked:
            if is_rank():
                trained = run_rank(spec, RankListener(is_asked=is_asked), is_shared=True, model=self.model)
                assert isinstance(trained, Trained), "its job trains"
                return trained
            if question.is_distributed:
                return launch_training(spec, on_step, is_asked, export, question.restarts, on_restart)
            every = question.held_out_every or (None if question.target_accuracy is None else _USUAL_LOOKS)
            training = training_of(spec, self.model)
            return train_locally(training, on_step, every, is_asked, export, question.target_accuracy)


@asks(TrainQuestion)
def train(question: TrainQuestion) -> TrainingResult:
    """Train a model under a schedule. A run that diverges ends there, and is a result.

    In a script that torchrun has started, this process joins as its rank, and every process gets the result. Under
    torchrun the final weights are not judged, and a run that diverges continues. `close` ends processes that stay
    for the next run.

    Args:
        model: A Model, or a name as `profile` takes it; with a plan, the model of the plan.
        schedule: A ScheduleSpec, which makes the lists of any number of steps; a Plan; a Schedule of one batch, which
            is repeated; or a file of one.
        partition: Cut of the layers into stages. Leave it out with a plan. The default is ``balanced`` with
            `profile`, else ``uniform``.
        profile: Profile of the model, for the partition.
        costs: Costs for a prediction of the run, as `simulate` takes them, except that a DeviceCost is of a whole
            batch; None: no prediction.
        cluster: The machines of the prediction and of the balanced cut; None: equal devices whose links take no time.
        on_step: Receives each step and its scores soon after the step, and the steps before `resume` at once; not under
            torchrun.
        on_restart: Receives the error, and the number of finished steps, at each restart.

    Raises:
        ArgumentError: An argument, or a combination, makes no sense.
        ScheduleError: No such schedule, or lists that cannot have `num_steps` steps.
        ProfileError: The model does not exist, the partition does not fit, or a file is bad.
        ExecutionError: A value is out of range, an op failed in this process, or the checkpoint is damaged or of
            another run; the message names the file and the difference.
        RankFailed: A rank failed, died or hung; the message names rank, op and micro-batch. All others are ended.
    """
    require_trainable(question)
    return _prepared(question).train(question.on_step, question.on_restart)


@asks(TrainQuestion)
def prepare_training(question: TrainQuestion) -> Training:
    """Return the run that `train` would do, with its forecast, without beginning it.

    Raises:
        ArgumentError: As `train` does, and every other error of `train` that comes before the first step.
    """
    return _prepared(question)


def _prepared(question: TrainQuestion) -> Training:
    plan = given_plan(question.schedule)
    schedule_spec = _schedule_spec(question.schedule if plan is None else plan)
    built = read_model_argument(question.model)
    if plan is not None:
        question = _as_planned(question, plan, built)
    batch_size = _USUAL_BATCH if question.batch_size is None else question.batch_size
    if question.advance is not None:
        schedule_spec = _begun(question, schedule_spec)
    if question.clip_grad_norm is not None:
        schedule_spec = replace(schedule_spec, step_barrier=True)
    run = schedule_spec.run(question.num_steps)
    lists = run.lists(question.num_steps)
    _require_cut(run, batch_size)
    if schedule_spec.name or lists.origin is not None:
        require_followed({schedule_spec.name or lists.name: lists.traits}, question)
    require_epsilon([lists.traits], question)
    if not question.is_elsewhere:
        _require_few(lists)
    checkpoints = checkpoint_settings(question)
    require_restartable(question, checkpoints)
    _require_held_out(question, built, averages=lists.traits.averages)
    bounds = cut_of_model(
        built,
        source_of_training(run),
        partition_text(question.partition),
        None if question.profile is None else read_profile_of(question.profile, built),
        run.microbatch_size(batch_size),
        cluster=question.cluster,
        compression=question.compression,
    )
    if stages := tied_stages(built, bounds):
        with naming_ties(built, bounds):
            schedule_spec = replace(schedule_spec, tied_stages=stages)
            run = schedule_spec.run(question.num_steps)
            lists = run.lists(question.num_steps)
    with prints_to_stderr():
        draw_batch(built, 1, question.seed)  # missing data are found before anything is done
    forecast = None
    if question.costs is not None:
        share = question.input_share
        costs = costs_of_training(load_costs(question.costs), run, bounds, batch_size, question, share)
        machines = read_cluster_argument(question.cluster, max(lists.rank_to_device) + 1, f"schedule {lists.name}")
        forecast = forecast_training(schedule_spec, bounds, question.num_steps, costs, machines)
    from pipesched.executor.launch import RunSpec, Train

    job = Train(
        schedule_spec=schedule_spec,
        num_steps=question.num_steps,
        batch_size=batch_size,
        advance=question.advance,
        limit_bytes=question.limit_bytes,
        checkpoints=checkpoints,
        **values_of(question, LearningSettings),
    )
    name = name_for_processes(question.model) if question.is_elsewhere else built.name
    spec = RunSpec(job=job, model=name, bounds=bounds, **values_of(question, RunSettings))
    spec = with_faults(spec, question, run.beginning(1), run.microbatches_per_step, question.num_steps)
    return Training(question, built, run, spec, forecast)


def _require_held_out(question: TrainQuestion, model: Model, *, averages: bool) -> None:
    """Refuse evaluations during a run if this process does not hold one whole model, or if there is no accuracy.

    Raises:
        ArgumentError: Such evaluations are requested.
    """
    if question.is_elsewhere:
        fault = "a process per rank, expected all ranks in this process, as an evaluation needs all stages"
    elif question.checkpoint is not None or question.resume is not None:
        fault = "checkpoints, expected none, as checkpoints do not keep the evaluations"
    elif averages:
        fault = "pipelines that are averaged, expected one pipeline, as each pipeline has a model of its own"
    else:
        fault = None
    for name in ("held_out_every", "target_accuracy") if fault is not None else ():
        if (value := getattr(question, name)) is not None:
            raise ArgumentError(
                f"{name}: got {value} with {fault}; leave it out: the final weights are evaluated anyway"
            )
    if question.target_accuracy is not None:
        samples = draw_held_out(model)
        if samples is None or any(tensor.is_floating_point() for tensor in tensors_of(samples[1])):
            raise ArgumentError(
                f"target_accuracy: got {question.target_accuracy} for model {model.name}, expected a model with "
                "classes and held-out samples; try digits"
            )


def _as_planned(question: TrainQuestion, plan: Plan, model: Model) -> TrainQuestion:
    """Return the question with the choices of its plan."""
    require_as_planned(
        plan,
        model=model.name,
        compression=question.compression,
        batch_size=question.batch_size,
        partition=question.partition,
        profile=question.profile,
    )
    return replace(question, batch_size=plan.batch_size, partition=plan.partition, compression=plan.compression)


def _begun(question: TrainQuestion, schedule_spec: ScheduleSpec) -> ScheduleSpec:
    """Return the specification from which a search for the advance starts: the one with an advance of 0."""
    if not question.is_elsewhere:
        raise ArgumentError(
            f"advance: got {question.advance}, expected `is_distributed=True` too, as in one process ranks take turns "
            "and no order is faster; add it"
        )
    if not schedule_spec.takes("advance"):
        raise ArgumentError(
            f"advance: got {question.advance} for {schedule_spec.name or 'lists'}, which cannot run ahead, expected no "
            "advance; try the schedule avgpipe"
        )
    if "advance" in schedule_spec.parameters:
        raise ArgumentError(
            f"advance: got {question.advance}, and a schedule with the parameter advance, expected only one of them; "
            "leave one out"
        )
    return replace(schedule_spec, parameters={**schedule_spec.parameters, "advance": 0})


def require_trainable(question: TrainSettings) -> None:
    """Refuse settings that this machine cannot run, and settings for several processes if there is only one.

    Raises:
        ArgumentError: Such a setting is given.
    """
    require_possible(question)
    if question.is_distributed or is_rank():
        _require_no_streams(question)
        return
    settings, on_streams = declared(TrainSettings), OF_STREAMS if question.device == "cuda" else ()
    for name in OF_PROCESSES:
        value = getattr(question, name)
        if value not in (settings[name].default, "streams") and name not in on_streams:
            raise ArgumentError(
                f"{name}: got this setting with all ranks in one process, expected `is_distributed=True` too; add it, "
                f"or leave `{name}` out"
            )
    if question.inject:
        raise ArgumentError(
            f"inject: got {question.inject[0]}, expected `is_distributed=True` too, as all ranks are in this process; "
            "add it"
        )


def _require_no_streams(question: TrainSettings) -> None:
    """Refuse streams of one process where each rank has a process.

    Raises:
        ArgumentError: Streams are requested.
    """
    for name, value in (("transport", "streams"), ("has_green_contexts", True)):
        if getattr(question, name) == value:
            raise ArgumentError(
                f"{name}: got {value} with a process per rank, expected all ranks in one process; leave `{name}` or "
                "`is_distributed` out"
            )


def _require_cut(run: TrainingRun, batch_size: int) -> None:
    """Refuse a batch that a run cannot cut into equal micro-batches."""
    count = run.microbatches_per_step // run.pipelines
    if batch_size % count:
        near = batch_size - batch_size % count or count
        raise ArgumentError(
            f"batch_size: got {batch_size} samples for the {count} micro-batches of a step of {run.name}, expected a "
            f"multiple of {count}; try {near}"
        )


def _require_few(lists: Schedule) -> None:
    """Refuse more ranks than one process can build in about a minute."""
    if lists.num_ranks > _MAX_LOCAL_RANKS:
        raise ArgumentError(
            f"schedule {lists.name}: got {lists.num_ranks} ranks in one process, expected at most {_MAX_LOCAL_RANKS}; "
            "try fewer ranks or copies, or torchrun"
        )


def _schedule_spec(schedule: TrainableSchedule) -> ScheduleSpec:
    """Return the specification of the lists of a training run."""
    if named_schedule(schedule) is not None:
        name = label_of(schedule) if isinstance(schedule, str) else "f"
        raise ArgumentError(
            f"schedule: got {shown(schedule)}, expected a specification with all counts; try "
            f"pipesched.schedules.transforms.ScheduleSpec(name={name!r}, num_ranks=4, num_microbatches=8)"
        )
    match schedule:
        case ScheduleSpec():
            return schedule
        case Plan():
            return schedule.schedule_spec
        case Schedule():
            return _of_lists(schedule)
        case ScheduleSource():
            return _of_lists(schedule.schedule)
        case str() | Path():
            return _of_lists(read_schedule(Path(schedule)))
        case _:
            raise ArgumentError(
                f"schedule: got {shown(schedule)}, expected a ScheduleSpec, lists, a plan or a file; try "
                "pipesched.build('1f1b', num_ranks=4, num_microbatches=8)"
            )


def _of_lists(lists: Schedule) -> ScheduleSpec:
    require_runnable(lists)
    return ScheduleSpec(lists=to_json(lists))
