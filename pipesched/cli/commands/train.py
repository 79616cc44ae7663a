"""``pipesched train``: train a model under any schedule, or under several."""

from __future__ import annotations

import json as jsonlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipesched.cli.errors import NEGATIVE, InputError
from pipesched.cli.options.common_options import OUTPUT, Json, out_option
from pipesched.cli.options.cost_options import CostOptions
from pipesched.cli.options.fault_options import FaultOptions
from pipesched.cli.options.option_groups import grouped
from pipesched.cli.options.planned_run import planned_training
from pipesched.cli.options.schedule_list import options_of_each, schedule_names
from pipesched.cli.options.schedule_options import ScheduleOptions
from pipesched.cli.options.torch_options import ModelName, ModelOption, TrustModel, load_model, model_of
from pipesched.cli.options.train_options import TrainOptions
from pipesched.cli.output.doubts import doubts_of_machine
from pipesched.cli.output.live_training import live
from pipesched.cli.output.memory_lines import device_limit_lines
from pipesched.cli.output.output_files import JSON, TABLE, check_outputs, emit, table_text
from pipesched.cli.terminal import complain, print_json, print_lines, seconds
from pipesched.executor import PAUSED
from pipesched.executor.launch import fork_client
from pipesched.profiles.processes import LoadMeter
from pipesched.schedules.formats import suffix_of
from pipesched.simulator.analysis import readable_reason
from pipesched.workflows import unjudged_limit

if TYPE_CHECKING:
    from pipesched.executor.launch import CheckpointSettings
    from pipesched.executor.training import AdvanceTrials, Scores, Trained
    from pipesched.profiles.models import Model
    from pipesched.schedules.transforms import ScheduleSpec, TrainingRun
    from pipesched.workflows.training import TrainingForecast


@grouped
def train(
    context: typer.Context,
    schedule: ScheduleOptions,
    costs: CostOptions,
    options: TrainOptions,
    faults: FaultOptions,
    given: ModelName = None,
    model: ModelOption = None,
    trust_model: TrustModel = False,
    compare: Annotated[
        str | None,
        typer.Option(help="Schedules to compare, as gpipe,pipedream, from the same weights, on the same samples."),
    ] = None,
    target_loss: Annotated[float | None, typer.Option(help="Target of the training loss.")] = None,
    job: Annotated[
        Path | None, typer.Option(help="Write only the job (.json), for 'torchrun ... -m pipesched.executor'.")
    ] = None,
    log: Annotated[
        Path | None, typer.Option(help="Write loss and accuracy of every step, a line each: .jsonl.")
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=OUTPUT, help="Write the final weights of the whole model, as one state dict: .safetensors."
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the losses against steps and predicted time: .png, .svg or .pdf.")
    ] = None,
    json: Json = False,
    out: Annotated[Path | None, out_option("Write the table: .md, .csv or .json.")] = None,
) -> None:
    """Train MODEL, all ranks in this process unless --distributed, and predict the wall time on real ranks.

    A step is an optimizer step on --batch-size samples. Schedules that step after each micro-batch take the samples
    whole; others cut them into -m micro-batches (default: the number of ranks). A run that diverges ends there, and is
    reported with step and loss. Exits with 0, also after divergence; with 1 if a run would exceed --memory-limit; with
    75 if SIGTERM or SIGUSR1 ended it after a checkpoint.
    """
    from pipesched.executor.launch import pause_requests

    has_checkpoints = job is None and (options.checkpoint is not None or options.resume is not None)
    context.with_resource(pause_requests(has_checkpoints=has_checkpoints))  # also heard while costs are measured
    from pipesched.simulator.views import FIGURE_SUFFIXES
    from pipesched.workflows.training import require_own_folder

    meter = LoadMeter()
    check_outputs((job, JSON), (log, (".jsonl",)), (export, (".safetensors",)), (plot, FIGURE_SUFFIXES), (out, TABLE))
    if target_loss is not None and not math.isfinite(target_loss):
        raise InputError(f"--target-loss: got {target_loss}, expected a finite number; try 0.5")
    if job is not None:
        _require_alone([log, export, plot, out], costs.machines.memory_limit)
    model = model_of(given, model)
    model, costs, options = _as_planned(context, schedule, model, trust_model, compare, costs, options)
    checkpoints = options.checkpoints()
    if job is None:
        options.require_possible()
        require_own_folder(checkpoints)
    schedule_specs = [options.begun(schedule_spec) for schedule_spec in _schedule_specs(schedule, compare)]
    _require_one_run(schedule_specs, options, export)
    _require_faults(faults, schedule_specs, options, is_job=job is not None)
    from pipesched.workflows.arguments import require_epsilon, require_followed
    from pipesched.workflows.training import summarize_training

    if all(schedule_spec.lists is None for schedule_spec in schedule_specs):
        require_followed({schedule_spec.name: schedule_spec.traits for schedule_spec in schedule_specs}, options)
    require_epsilon([schedule_spec.traits for schedule_spec in schedule_specs], options)
    from pipesched.cli.options.forecasts import make_forecasts
    from pipesched.cli.output.training_table import print_outcomes
    from pipesched.profiles.models import draw_batch
    from pipesched.profiles.processes import prints_to_stderr

    built = load_model(model)
    with prints_to_stderr():
        draw_batch(built, 1, options.seed)  # missing data are found before anything is done
    if job is not None:
        emit(_job(schedule_specs, built, costs, options, checkpoints, faults), job)
        return
    forecasts, origin = make_forecasts(schedule_specs, built, costs, options)
    _require_fitting(forecasts)
    judged = ((forecast.cluster, forecast.rank_to_device, forecast.costs.has_bytes) for forecast in forecasts)
    notes = list(dict.fromkeys(note for parts in judged for note in unjudged_limit(*parts)))
    notes += _steps_before(checkpoints)
    if options.distributed:
        num_ranks = max(len(forecast.rank_to_device) for forecast in forecasts)
        notes += doubts_of_machine(num_ranks, options, meter)
        fork_client.prepare(options.device)
    runs = _train(forecasts, built, options, faults, log, costs.machines.limit_bytes(), checkpoints, export)
    results = list(runs)
    _leave_if_paused(results[0], forecasts[0].run, options.steps, checkpoints)
    notes += [] if export is None or results[0].diverged is None else [f"{export} was not written: the run diverged"]
    outcomes = [
        summarize_training(forecast.run.name, forecast, trained, options.steps, target_loss)
        for forecast, trained in zip(forecasts, results, strict=True)
    ]
    if plot is not None:
        _plot(forecasts, results, plot, f"{built.name}, {options.optimizer}, lr {options.lr:g}", target_loss)
    if out is not None:
        emit(table_text([outcome.to_row() for outcome in outcomes], suffix_of(out)), out)
    ahead = {
        forecast.run.name: result.ahead
        for forecast, result in zip(forecasts, results, strict=True)
        if result.ahead is not None
    }
    if json:
        data: dict[str, object] = {
            "model": built.name,
            "costs": origin,
            "runs": [outcome.to_row() for outcome in outcomes],
        }
        data |= {"ahead": {name: asdict(forecast) for name, forecast in ahead.items()}} if ahead else {}
        print_json("train", data, notes)
        return
    limits = dict.fromkeys(line for forecast in forecasts for line in _limit_lines(costs, forecast))
    print_outcomes(outcomes, "; ".join([origin, *limits]), target_loss)
    print_lines(notes)
    _print_ahead(ahead)


def _require_alone(outputs: Sequence[Path | None], limit: str | None) -> None:
    """Refuse other outputs, and predictions, beside --job."""
    if any(output is not None for output in outputs):
        raise InputError("--job: got an output too, expected none: the job only is written; leave it out")
    if limit is not None:
        raise InputError("--job: got --memory-limit too, expected none: nothing is predicted; leave it out")


def _require_one_run(schedule_specs: Sequence[ScheduleSpec], options: TrainOptions, export: Path | None) -> None:
    """Refuse options for one run if several are compared."""
    given = {"checkpoint": options.checkpoint, "resume": options.resume, "export": export}
    for name, value in given.items():
        if value is not None and len(schedule_specs) != 1:
            raise InputError(f"--{name}: got {value} for {len(schedule_specs)} schedules, expected one; use --schedule")


def _leave_if_paused(
    trained: Trained, run: TrainingRun, num_steps: int, checkpoints: CheckpointSettings | None
) -> None:
    """End the command if a signal ended the run after a checkpoint."""
    if checkpoints is None or not trained.is_paused:
        return
    steps = len(trained.steps)
    how = ", drained before its time" if run.flush_steps is None and steps % checkpoints.every else ""
    complain(f"paused after {steps} of {num_steps} steps{how}; try --resume {checkpoints.folder} to go on")
    raise typer.Exit(PAUSED)


def _steps_before(checkpoints: CheckpointSettings | None) -> list[str]:
    """Return a note if a run continues from a checkpoint."""
    start = None if checkpoints is None else checkpoints.start
    return [] if start is None else [f"went on from {start}: the steps up to it were taken before"]


def _limit_lines(costs: CostOptions, forecast: TrainingForecast) -> list[str]:
    """Return the lines on the memory limit of a run."""
    return device_limit_lines(
        costs.machines, forecast.cluster, forecast.rank_to_device, has_bytes=forecast.costs.has_bytes
    )


def _print_ahead(trials: Mapping[str, AdvanceTrials]) -> None:
    """Print the chosen advance of the forwards, and the trials."""
    for name, ahead in trials.items():
        tried = ", ".join(f"{trial.advance}: {seconds(trial.seconds)}" for trial in ahead.trials) or "nothing"
        print(f"{name}: forwards run {ahead.advance} further ahead than in 1f1b; a batch took, by advance: {tried}")


def _require_fitting(forecasts: list[TrainingForecast]) -> None:
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


def _as_planned(
    context: typer.Context,
    schedule: ScheduleOptions,
    model: str | None,
    trusts: bool,
    compare: str | None,
    costs: CostOptions,
    options: TrainOptions,
) -> tuple[str, CostOptions, TrainOptions]:
    """Return the model, costs and options, taken from the plan if there is one."""
    plan = schedule.read_plan()
    if plan is None:
        if model is None:
            raise InputError("MODEL: got none, expected one, or --plan; try gpt:layers=8")
        return model, costs, options
    source = context.get_parameter_source("batch_size")
    is_given = source is not None and source.name == "COMMANDLINE"
    batch_size = options.batch_size if is_given else None
    return planned_training(plan, model, costs, options, batch_size=batch_size, compare=compare, trusts=trusts)


def _schedule_specs(schedule: ScheduleOptions, compare: str | None) -> list[ScheduleSpec]:
    if compare is None:
        return [schedule.schedule_spec()]
    if schedule.schedule is not None or schedule.schedule_file is not None:
        raise InputError("--compare: got --schedule or --schedule-file too, expected one of them; leave it out")
    names = schedule_names(compare)
    if not names:
        raise InputError(f"--compare: got {compare!r}, expected names of schedules; try gpipe,pipedream")
    return [options.schedule_spec() for options in options_of_each(names, schedule).values()]


def _require_faults(
    faults: FaultOptions, schedule_specs: Sequence[ScheduleSpec], options: TrainOptions, *, is_job: bool
) -> None:
    """Refuse faults that cannot occur on any rank of one of the runs, or would hit this process."""
    if not faults.inject:
        return
    if not options.distributed and not is_job:
        raise InputError(
            f"--inject: got {faults.inject[0]}, expected --distributed with it, or --job: all ranks are in this "
            "process; add one"
        )
    for run in (schedule_spec.run(options.steps) for schedule_spec in schedule_specs):
        faults.require_there(run.beginning(1), run.microbatches_per_step, options.steps)


def _job(
    schedule_specs: list[ScheduleSpec],
    model: Model,
    costs: CostOptions,
    options: TrainOptions,
    checkpoints: CheckpointSettings | None,
    faults: FaultOptions,
) -> str:
    """Return the job of one training run, as JSON."""
    from pipesched.cli.options.forecasts import training_bounds
    from pipesched.executor.launch import job_to_json

    if len(schedule_specs) != 1:
        raise InputError(f"--job: got {len(schedule_specs)} schedules, expected one; write a job for each")
    bounds = training_bounds(schedule_specs[0], model, costs, options)
    return job_to_json(faults.applied(options.spec(schedule_specs[0], model, bounds, checkpoints=checkpoints)))


def _train(
    forecasts: list[TrainingForecast],
    model: Model,
    options: TrainOptions,
    faults: FaultOptions,
    log: Path | None,
    limit_bytes: int | None,
    checkpoints: CheckpointSettings | None,
    export: Path | None,
) -> Iterator[Trained]:
    """Train under one schedule after the other."""
    from pipesched.executor.training import step_line
    from pipesched.workflows.training import trained_by

    with _logging(log) as write, live([forecast.run.name for forecast in forecasts], options.steps) as show:
        for forecast in forecasts:
            num_samples = forecast.run.pipelines * options.batch_size

            def on_step(
                step: int, scores: Scores, name: str = forecast.run.name, num_samples: int = num_samples
            ) -> None:
                write(step_line(name, step, scores, num_samples))
                show(name, step, scores)

            spec = options.spec(forecast.schedule_spec, model, forecast.bounds, limit_bytes, checkpoints)
            spec = faults.applied(spec)
            yield trained_by(
                spec,
                model,
                on_step,
                is_distributed=options.distributed,
                export=export,
                restarts=options.restarts,
                on_restart=lambda error, steps: complain(f"{error}; starting again after {steps} steps"),
            )


@contextmanager
def _logging(path: Path | None) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield the function that writes a line of the log; each line is complete as soon as it is written."""
    if path is None:
        yield lambda line: None  # noqa: ARG005
        return
    with path.open("w", encoding="utf-8", buffering=1) as file:
        yield lambda line: print(jsonlib.dumps(line, allow_nan=False), file=file)


def _plot(
    forecasts: list[TrainingForecast], results: list[Trained], path: Path, title: str, target_loss: float | None
) -> None:
    from pipesched.simulator.views import Curve, draw_curves

    curves = [
        Curve(
            forecast.run.name,
            tuple(scores.loss for scores in trained.steps),
            tuple(forecast.time.at_s(step) for step in range(len(trained.steps))),
            has_diverged=trained.diverged is not None,
            batches=forecast.run.pipelines,
        )
        for forecast, trained in zip(forecasts, results, strict=True)
    ]
    draw_curves(curves, path, title, target_loss)
