"""``pipesched train``: train a model under any schedule, or under several."""

from __future__ import annotations

import json as jsonlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import pipesched
from pipesched.cli.errors import NEGATIVE, InputError
from pipesched.cli.options.cost_options import CostOptions
from pipesched.cli.options.option_groups import Json, file_option, grouped, out_option
from pipesched.cli.options.schedule_options import ScheduleOptions, options_of_each, schedule_names
from pipesched.cli.options.torch_options import (
    ModelChoice,
    TrustModel,
    load_model,
    planned_model,
)
from pipesched.cli.output.live_training import live
from pipesched.cli.output.notes import device_limit_lines, doubts_of_machine
from pipesched.cli.output.output_files import JSON, TABLE, check_outputs, emit
from pipesched.cli.terminal import complain, print_json, print_lines, print_results, progress_bar
from pipesched.executor import PAUSED, LayerSettings, RunSettings, launch
from pipesched.executor.launch import fork_client
from pipesched.profiles import io
from pipesched.profiles.processes import LoadMeter
from pipesched.questions import TrainSettings
from pipesched.schedules.common import MAX_NUMBER, declared, values_of
from pipesched.schedules.formats import suffix_of
from pipesched.simulator import views
from pipesched.simulator.analysis import TABLE_FORMATS, readable_reason, readable_s
from pipesched.simulator.views import FIGURE_SUFFIXES
from pipesched.workflows import arguments, merged_notes, unjudged_limit

if TYPE_CHECKING:
    from pipesched.executor.launch import CheckpointSettings
    from pipesched.executor.training import AdvanceTrials, Scores
    from pipesched.profiles.costs import Profile
    from pipesched.profiles.io import Plan
    from pipesched.profiles.models import Model
    from pipesched.schedules.transforms import ScheduleSpec
    from pipesched.workflows.training import TrainedRun, Training, TrainingForecast, TrainingResult


@dataclass(frozen=True, kw_only=True)
class TrainOutputs:
    """The files and the form of the output."""

    job: Annotated[Path | None, file_option("Write only the job (.json), for 'torchrun ... -m pipesched.executor'")] = (
        None
    )
    log: Annotated[Path | None, file_option("Write loss and accuracy of every step, a line each: .jsonl")] = None
    plot: Annotated[Path | None, file_option("Draw the losses against steps and predicted time", FIGURE_SUFFIXES)] = (
        None
    )
    json: Json = False
    out: Annotated[Path | None, out_option("Write the table", TABLE)] = None

    def require_possible(self, options: TrainSettings, limit: str | None) -> None:
        """Refuse files that cannot be written, and outputs and options that --job excludes.

        Args:
            options: The settings of the run, with the file of the weights.
            limit: The memory limit, as it was given.

        Raises:
            InputError: An output or option is refused.
        """
        export = None if options.export is None else Path(options.export)
        check_outputs(
            (self.job, JSON),
            (self.log, (".jsonl",)),
            (export, (".safetensors",)),
            (self.plot, FIGURE_SUFFIXES),
            (self.out, TABLE),
        )
        if self.job is None:
            return
        if any(output is not None for output in (self.log, export, self.plot, self.out)):
            raise InputError("--job: got an output too, expected none: --job writes only the job; leave the output out")
        if limit is not None:
            raise InputError(
                "--job: got --memory-limit too, expected none: --job predicts nothing; leave --memory-limit out"
            )
        if options.restarts:
            raise InputError(
                "--job: got --restarts too, expected none: torchrun has restarts of its own; leave --restarts out"
            )


@grouped
def train(
    context: typer.Context,
    *,
    schedule: ScheduleOptions,
    costs: CostOptions,
    options: TrainSettings,
    model: ModelChoice,
    trust_model: TrustModel = False,
    compare: Annotated[
        str | None,
        typer.Option(help="Schedules to compare, as gpipe,pipedream, from the same weights, on the same samples."),
    ] = None,
    target_loss: Annotated[float | None, typer.Option(help="Target of the training loss.")] = None,
    num_seeds: Annotated[
        int, typer.Option("--seeds", help="Number of runs of each schedule, with rising seeds.", min=1, max=MAX_NUMBER)
    ] = 1,
    outputs: TrainOutputs,
) -> None:
    """Train MODEL, all ranks in this process unless --distributed, and predict the wall time on real ranks.

    A step is an optimizer step on --batch-size samples. Schedules that step after each micro-batch take the samples
    whole; others cut them into -m micro-batches (default: the number of ranks). A run that diverges ends there, and is
    reported with step and loss. Exits with 0, also after divergence; with 1 if a run would exceed --memory-limit; with
    75 if SIGTERM or SIGUSR1 ended it after a checkpoint.
    """
    has_checkpoints = outputs.job is None and (options.checkpoint is not None or options.resume is not None)
    context.with_resource(launch.pause_requests(has_checkpoints=has_checkpoints))  # also heard while costs are measured

    meter = LoadMeter()
    outputs.require_possible(options, costs.machines.memory_limit)
    asked = _asked(schedule, model.name, trust_model, compare, costs, options)
    asked.require_possible(num_seeds, target_loss)
    if outputs.job is not None:
        emit(launch.job_to_json(asked.job(num_seeds).spec), outputs.job)
        return
    from pipesched.workflows.training import forecast_table, require_trainable, trained_table

    require_trainable(options)
    trainings, origin = asked.predicted()
    trainings = [training.with_seed(options.seed + k) for training in trainings for k in range(num_seeds)]
    notes = _notes_before(trainings, options, meter)
    if options.is_distributed:
        fork_client.prepare(options.device)
    results = list(_train(trainings, outputs.log))
    _leave_if_paused(results[0], trainings[0])
    notes += _notes_after(results, options.export)
    outcomes = [result.summary(target_loss) for result in results]
    _write(results, outcomes, outputs, asked, target_loss)
    if outputs.json:
        ahead = {name: asdict(trials) for name, trials in _ahead(results).items()}
        rows = [outcome.to_row() for outcome in outcomes]
        data = {"model": asked.model.name, "costs": origin, "runs": rows} | ({"ahead": ahead} if ahead else {})
        print_json("train", data, notes)
        return
    targets = (target_loss, options.target_accuracy)
    print_results(
        (trained_table(outcomes, *targets), forecast_table(outcomes, asked.costs_line(origin, results), *targets))
    )
    print_lines([*notes, *_lines_ahead(results)])


def _notes_before(trainings: Sequence[Training], options: TrainSettings, meter: LoadMeter) -> list[str]:
    """Return the notes on runs and this machine; end the command if a run would not fit into its memory."""
    forecasts = [training.forecast for training in trainings if training.forecast is not None]
    _require_fitting(forecasts)
    judged = ((forecast.cluster, forecast.rank_to_device, forecast.costs.has_bytes) for forecast in forecasts)
    notes = list(dict.fromkeys(note for parts in judged for note in unjudged_limit(*parts)))
    notes += _steps_before(trainings[0].checkpoints)
    if options.is_distributed:
        num_ranks = max(len(forecast.rank_to_device) for forecast in forecasts)
        notes += doubts_of_machine(num_ranks, options, meter)
    return notes


def _notes_after(results: Sequence[TrainingResult], export: str | Path | None) -> list[str]:
    """Return the notes on the runs, and on a file that was not written."""
    named = ((result.schedule, f"{result.schedule}: {note}") for result in results for note in result.notes)
    is_lost = export is not None and results[0].diverged_at is not None
    return [*merged_notes(named), *([f"{export} was not written: the run diverged"] if is_lost else [])]


def _lines_ahead(results: Sequence[TrainingResult]) -> Iterator[str]:
    """Yield, for each schedule with an `advance`, a line on the advance that was chosen."""
    for name, ahead in _ahead(results).items():
        tried = ", ".join(f"{trial.advance}: {readable_s(trial.seconds)}" for trial in ahead.trials) or "nothing"
        yield f"{name}: forwards run {ahead.advance} further ahead than in 1f1b; time of a batch by advance: {tried}"


def _ahead(results: Sequence[TrainingResult]) -> dict[str, AdvanceTrials]:
    """Return, for each schedule with an `advance`, the trials that chose it."""
    return {result.schedule: result.trained.ahead for result in results if result.trained.ahead is not None}


def _write(
    results: Sequence[TrainingResult],
    outcomes: Sequence[TrainedRun],
    outputs: TrainOutputs,
    asked: TrainingOptions,
    target_loss: float | None,
) -> None:
    """Draw the losses, and write the table, as asked."""
    if outputs.plot is not None:
        curves: dict[str, list[views.Curve]] = {}
        for result in results:
            curves.setdefault(result.schedule, []).append(result.curve)
        title = _title(asked, max(map(len, curves.values())))
        means = [views.mean_curve(its) for its in curves.values()]
        views.save_figure(lambda: views.learning_curve_figure(means, title, target_loss), outputs.plot)
    if outputs.out is not None:
        emit(TABLE_FORMATS[suffix_of(outputs.out)]([outcome.to_row() for outcome in outcomes]), outputs.out)


def _title(asked: TrainingOptions, num_seeds: int) -> str:
    """Return the title of the curves: model, optimizer, learning rate with its schedule, and the band of the seeds."""
    settings = asked.settings
    parts = [asked.model.name, settings.optimizer, f"lr {settings.lr:g}"]
    if settings.lr_schedule != "constant":
        parts.append(settings.lr_schedule)
    if settings.lr_warmup:
        parts.append(f"{settings.lr_warmup} steps of warm-up")
    if num_seeds > 1:
        parts.append(f"mean of {num_seeds} seeds +- standard deviation")
    return ", ".join(parts)


def _asked(
    schedule: ScheduleOptions,
    model: str | None,
    trusts: bool,
    compare: str | None,
    costs: CostOptions,
    options: TrainSettings,
) -> TrainingOptions:
    """Return the runs of the options; a plan gives the model."""
    plan = schedule.read_plan()
    if plan is not None:
        model = planned_model(plan, model, "MODEL", trusts=trusts)
        arguments.require_as_planned(plan, compare=compare)
        return TrainingOptions(load_model(model), [plan], costs, options)
    if model is None:
        raise InputError("MODEL: got none, expected a model, or --plan; try gpt:layers=8")
    return TrainingOptions(load_model(model), _schedule_specs(schedule, compare), costs, options)


def _leave_if_paused(result: TrainingResult, training: Training) -> None:
    """End the command if a signal ended the run after a checkpoint."""
    checkpoints = training.checkpoints
    if checkpoints is None or not result.is_paused:
        return
    steps = len(result.losses)
    how = ", drained early" if training.run.flush_steps is None and steps % checkpoints.every else ""
    complain(f"paused after {steps} of {result.num_steps} steps{how}; try --resume {checkpoints.folder} to go on")
    raise typer.Exit(PAUSED)


def _steps_before(checkpoints: CheckpointSettings | None) -> list[str]:
    """Return a note if a run continues from a checkpoint."""
    start = None if checkpoints is None else checkpoints.start
    return [] if start is None else [f"continued from {start}: an earlier run took the steps before"]


def _require_fitting(forecasts: Sequence[TrainingForecast]) -> None:
    """End the command if a run would not fit into the memory of the machines."""
    over = [
        f"{forecast.run.name}: {readable_reason(str(forecast.over))}"
        for forecast in forecasts
        if forecast.over is not None
    ]
    if over:
        advice = "try a smaller --batch-size, more stages or --recompute all"
        complain(f"over memory: {'; '.join(over)}; {advice}")
        raise typer.Exit(NEGATIVE)


def _schedule_specs(schedule: ScheduleOptions, compare: str | None) -> list[ScheduleSpec]:
    if compare is None:
        return [schedule.schedule_spec()]
    if schedule.schedule is not None or schedule.schedule_file is not None:
        raise InputError("--compare: got --schedule or --schedule-file too, expected only one of them; leave one out")
    names = schedule_names(compare)
    if not names:
        raise InputError(f"--compare: got {compare!r}, expected names of schedules; try gpipe,pipedream")
    return [options.schedule_spec() for options in options_of_each(names, schedule).values()]


def _train(trainings: Sequence[Training], log: Path | None) -> Iterator[TrainingResult]:
    """Train under one schedule after the other."""
    from pipesched.executor.training import step_line

    num_seeds, num_steps = len({training.spec.seed for training in trainings}), trainings[0].question.num_steps
    names = [_run_name(training, num_seeds) for training in trainings]
    with _logging(log) as write, live(names, num_steps) as show:
        for name, training in zip(names, trainings, strict=True):

            def on_step(step: int, scores: Scores, name: str = name, training: Training = training) -> None:
                line = step_line(training.run.name, step, scores, training.samples_per_step)
                write(line | ({"seed": training.spec.seed} if num_seeds > 1 else {}))
                show(name, step, scores)

            yield training.train(on_step, lambda error, steps: complain(f"{error}; starting again after {steps} steps"))


def _run_name(training: Training, num_seeds: int) -> str:
    return training.run.name if num_seeds == 1 else f"{training.run.name}, seed {training.spec.seed}"


@contextmanager
def _logging(path: Path | None) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield the function that writes a line of the log; each line is complete as soon as it is written."""
    if path is None:
        yield lambda line: None  # noqa: ARG005
        return
    with path.open("w", encoding="utf-8", buffering=1) as file:
        yield lambda line: print(jsonlib.dumps(line, allow_nan=False), file=file)


_REPEATS = 5
"""Measured runs of a profile that is only for this training."""


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """The options of training runs of one model.

    Attributes:
        schedules: The specification of each run, or a plan alone.
    """

    model: Model
    schedules: Sequence[ScheduleSpec | Plan]
    costs: CostOptions
    settings: TrainSettings

    def require_possible(self, num_seeds: int, target_loss: float | None) -> None:
        """Refuse costs that no training uses, settings that no schedule follows, and impossible seeds and targets.

        Raises:
            ArgumentError: Such an option is given, or several runs would share files.
        """
        if target_loss is not None and not math.isfinite(target_loss):
            raise InputError(f"--target-loss: got {target_loss}, expected a finite number; try 0.5")
        options, costs, num_runs = self.settings, self.costs, num_seeds * len(self.schedules)
        given = {"checkpoint": options.checkpoint, "resume": options.resume, "export": options.export}
        for name, value in given.items():
            if value is not None and num_runs > 1:
                raise InputError(
                    f"--{name}: got {value} for {num_runs} trainings, expected one training; use --schedule, without "
                    "--seeds"
                )
        fault = declared(TrainSettings)["seed"].fault(options.seed + num_seeds - 1)
        if fault is not None:
            raise InputError(f"--seeds: last seed, counted from --seed {options.seed}: {fault}; try a smaller --seed")
        if costs.stage_costs is not None or costs.layer_costs is not None or costs.microbatch_size is not None:
            raise InputError(
                "--stage-costs, --layer-costs and --microbatch-size: got one of them, expected --profile, --uniform, "
                "or neither (train then measures a profile); leave it out, and give the samples of a step as "
                "--batch-size"
            )
        if costs.profile is not None and costs.uniform is not None:
            raise InputError("costs: got --profile and --uniform, expected only one of them; leave one out")
        if costs.partition == "balanced" and costs.uniform is not None:
            raise InputError("--partition: got balanced with --uniform, expected uniform or counts; try 2,2,1")
        specs = [schedule for schedule in self.schedules if not isinstance(schedule, io.Plan)]
        if len(specs) > 1 and all(spec.lists is None for spec in specs):
            arguments.require_followed({spec.name: spec.traits for spec in specs}, options)

    def job(self, num_seeds: int) -> Training:
        """Return the one run, for processes that torchrun starts; nothing is predicted.

        Raises:
            ArgumentError: There are several runs, options do not go together, or the partition does not fit.
        """
        if len(self.schedules) * num_seeds > 1:
            raise InputError(f"--job: got {len(self.schedules) * num_seeds} runs, expected one; write a job for each")
        profile = self.costs.profile
        cluster = {} if profile is None else {"cluster": self._cluster(self.schedules[0])}
        asked = {"is_distributed": True, "partition": self.costs.partition_text, "profile": profile, **cluster}
        return self._prepared(self.schedules[0], asked)

    def predicted(self) -> tuple[list[Training], str]:
        """Return the runs with their forecasts, and the origin of their costs; without costs, profile the model first.

        Raises:
            ArgumentError: Options do not go together, or the partition does not fit.
            ProfileError: The profile is bad, or the model fails.
            SimulationError: The time of a run cannot be predicted.
        """
        from pipesched.cli.options.cost_options import uniform_costs
        from pipesched.workflows.training import require_own_folder

        costs, share, profile = self.costs, self.costs.input_share, None
        partition = None if costs.partition == "balanced" else costs.partition_text
        checked = [self._prepared(schedule, {"partition": partition}) for schedule in self.schedules]
        require_own_folder(checked[0].checkpoints)
        lists = [training.run.lists(self.settings.num_steps) for training in checked]
        clusters = [costs.load_cluster(run_lists) for run_lists in lists]
        if costs.profile is not None:
            profile = arguments.read_profile_of(costs.profile, self.model)
        elif costs.uniform is None:
            profile = self._measured(checked)
        cuts: dict[str, Any] = {"partition": costs.partition_text}
        if costs.profile is not None or costs.partition == "balanced":
            cuts["profile"] = profile  # else a cut by a new measurement would differ each time
        asked = {"costs": profile or uniform_costs(costs.uniform or ""), "input_share": share, **cuts}
        trainings = []
        with progress_bar("predicting") as tick:
            for index, (schedule, cluster) in enumerate(zip(self.schedules, clusters, strict=True)):
                tick(index / len(lists))
                trainings.append(self._prepared(schedule, {**asked, "cluster": cluster}))
        for training in trainings:
            assert training.forecast is not None, "it has costs"
            costs.machines.require_judged(training.forecast.costs.has_bytes)
        return trainings, self._origin(profile, lists)

    def _prepared(self, schedule: ScheduleSpec | Plan, asked: dict[str, Any]) -> Training:
        from pipesched.workflows.training import prepare_training

        return prepare_training(self.model, schedule, **self._settings_of(schedule) | asked)

    def _settings_of(self, schedule: ScheduleSpec | io.Plan) -> dict[str, Any]:
        """Return the settings for one schedule, without the prediction and averaging that only other schedules use."""
        settings = values_of(self.settings)
        if self.settings.advance is not None:
            settings["limit_bytes"] = self.costs.machines.limit_bytes()
        if len(self.schedules) > 1 and not isinstance(schedule, io.Plan):
            usual, traits = RunSettings(), schedule.traits
            settings |= {} if traits.prediction is not None else {"prediction": usual.prediction}
            settings |= {} if traits.averages else {"averaging": usual.averaging}
        return settings

    def _cluster(self, schedule: ScheduleSpec | io.Plan) -> Any:
        spec = schedule.schedule_spec if isinstance(schedule, io.Plan) else schedule
        return self.costs.load_cluster(spec.run(self.settings.num_steps).beginning(1))

    def _measured(self, trainings: Sequence[Training]) -> Profile:
        """Measure the model at the micro-batch sizes of the runs."""
        sizes = [training.microbatch_size for training in trainings]
        with progress_bar(f"profiling {self.model.name}") as tick:
            return pipesched.profile(
                self.model,
                sizes,
                repeats=_REPEATS,
                warmup=1,
                progress=tick,
                **values_of(self.settings, LayerSettings),
            ).profile

    def costs_line(self, origin: str, results: Sequence[TrainingResult]) -> str:
        """Return the origin of the costs, and the memory limits of the runs, in a line."""
        limits = dict.fromkeys(
            line
            for forecast in (result.forecast for result in results)
            if forecast is not None
            for line in device_limit_lines(
                self.costs.machines, forecast.cluster, forecast.rank_to_device, has_bytes=forecast.costs.has_bytes
            )
        )
        return "; ".join([origin, *limits])

    def _origin(self, profile: Profile | None, lists: Sequence[Any]) -> str:
        if profile is None:
            notes = "; ".join(self.costs.shares(*lists, named=True))
            return f"--uniform {self.costs.uniform}" + (f" ({notes})" if notes else "")
        where = "measured now" if self.costs.profile is None else str(self.costs.profile)
        return f"a profile of {profile.provenance.device}, {where}"
