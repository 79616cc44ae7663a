"""From options to the forecasts of training runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pipesched.cli.errors import InputError
from pipesched.cli.terminal import progress_bar

if TYPE_CHECKING:
    from pipesched.cli.options.cost_options import CostOptions
    from pipesched.cli.options.train_options import TrainOptions
    from pipesched.profiles.costs import Profile
    from pipesched.profiles.models import Model
    from pipesched.schedules import Schedule
    from pipesched.schedules.transforms import ScheduleSpec, TrainingRun
    from pipesched.workflows.training import TrainingForecast

_REPEATS = 5
"""Measured runs of a profile that is only for this training."""


def make_forecasts(
    schedule_specs: Sequence[ScheduleSpec], model: Model, costs: CostOptions, options: TrainOptions
) -> tuple[list[TrainingForecast], str]:
    """Return a forecast for each specification, and the origin of the costs; all checks of a training happen here.

    Raises:
        InputError: Options that do not go together.
        ProfileError: The partition does not fit the model, or the profile is bad.
        ScheduleError: Lists that cannot have `--steps` steps.
        SimulationError: A run whose time cannot be predicted.
    """
    from pipesched.workflows.arguments import cut_model
    from pipesched.workflows.training import require_few

    runs = [schedule_spec.run(options.steps) for schedule_spec in schedule_specs]
    _require_possible(runs, costs, options)
    lists = [run.lists(options.steps) for run in runs]
    for run_lists in lists:
        if not options.distributed:
            require_few(run_lists)
        named = None if costs.partition == "balanced" else costs.partition_text
        cut_model(model, run_lists.num_stages, named)  # it cannot be cut by a profile before there is one
        costs.load_cluster(run_lists)
    profile = _profile(runs, model, costs, options)
    forecasts = []
    with progress_bar("predicting") as tick:
        for index, (schedule_spec, run, run_lists) in enumerate(zip(schedule_specs, runs, lists, strict=True)):
            tick(index / len(runs))
            forecasts.append(_forecast(schedule_spec, run, run_lists, model, costs, profile, options))
    return forecasts, _origin(costs, profile, lists)


def training_bounds(
    schedule_spec: ScheduleSpec, model: Model, costs: CostOptions, options: TrainOptions
) -> tuple[tuple[int, int], ...]:
    """Return the layers of every stage of one run, without predicting anything.

    Raises:
        InputError: Options that do not go together.
        ProfileError: The partition does not fit the model, or the profile is bad.
        ScheduleError: Lists that cannot have `--steps` steps.
    """
    run = schedule_spec.run(options.steps)
    _require_possible([run], costs, options)
    from pipesched.workflows.arguments import read_profile_of

    profile = None if costs.profile is None else read_profile_of(costs.profile, model)
    size = run.microbatch_size(options.batch_size)
    return _bounds(run, model, costs, costs.partition_text, profile, size, options)


def _require_possible(runs: Sequence[TrainingRun], costs: CostOptions, options: TrainOptions) -> None:
    if costs.stage_costs is not None or costs.layer_costs is not None or costs.microbatch_size is not None:
        raise InputError(
            "--stage-costs, --layer-costs and --microbatch-size: got one, expected --profile, --uniform, or nothing: "
            "then a profile is measured; --batch-size says the samples of a step"
        )
    if costs.profile is not None and costs.uniform is not None:
        raise InputError("costs: got --profile and --uniform, expected one of them; leave one out")
    if costs.partition == "balanced" and costs.uniform is not None:
        raise InputError("--partition: got balanced with --uniform, expected uniform or counts; try 2,2,1")
    from pipesched.workflows.training import require_cut

    require_cut(runs, options.batch_size)


def _forecast(
    schedule_spec: ScheduleSpec,
    run: TrainingRun,
    lists: Schedule,
    model: Model,
    costs: CostOptions,
    profile: Profile | None,
    options: TrainOptions,
) -> TrainingForecast:
    from pipesched.cli.options.uniform_costs import uniform_costs
    from pipesched.profiles.costs import with_input_share
    from pipesched.workflows.training import costs_of_training, forecast_training

    evenly = "uniform" if costs.profile is None else None  # a cut by a new measurement would differ each time
    size = run.microbatch_size(options.batch_size)
    bounds = _bounds(run, model, costs, costs.partition_text or evenly, profile, size, options)
    share = costs.input_share  # without --uniform a profile is read or measured
    given = profile or uniform_costs(costs.uniform or "", lists if share is None else None)
    stage_costs = costs_of_training(given, run, lists, bounds, options.batch_size, options)
    if share is not None:
        stage_costs = replace(stage_costs, stages=tuple(with_input_share(stage_costs.stages, share)))
    costs.machines.require_judged(stage_costs.has_bytes)
    return forecast_training(schedule_spec, bounds, options.steps, stage_costs, costs.load_cluster(lists))


def _bounds(
    run: TrainingRun,
    model: Model,
    costs: CostOptions,
    partition: str | None,
    profile: Profile | None,
    microbatch_size: int,
    options: TrainOptions,
) -> tuple[tuple[int, int], ...]:
    from pipesched.workflows.simulating import cut_of_model, source_of_training

    source = source_of_training(run)
    cluster = costs.load_cluster(source.schedule)
    return cut_of_model(
        model, source, partition, profile, microbatch_size, cluster=cluster, compression=options.compression
    )


def _profile(runs: Sequence[TrainingRun], model: Model, costs: CostOptions, options: TrainOptions) -> Profile | None:
    """Read the profile, or measure one at the micro-batch sizes of the runs; None if costs are given."""
    if costs.uniform is not None:
        return None
    from pipesched.workflows.arguments import read_profile_of
    from pipesched.workflows.measuring import profile

    if costs.profile is not None:
        return read_profile_of(costs.profile, model)

    with progress_bar(f"profiling {model.name}") as tick:
        return profile(
            model,
            [run.microbatch_size(options.batch_size) for run in runs],
            repeats=_REPEATS,
            warmup=1,
            optimizer=options.optimizer,
            dtype=options.dtype,
            device=options.device,
            threads=options.threads,
            seed=options.seed,
            progress=tick,
        ).profile


def _origin(costs: CostOptions, profile: Profile | None, lists: Sequence[Schedule]) -> str:
    if profile is None:
        notes = "; ".join(costs.shares(*lists, named=True))
        return f"--uniform {costs.uniform}" + (f" ({notes})" if notes else "")
    where = "measured now" if costs.profile is None else str(costs.profile)
    return f"a profile of {profile.provenance.device}, {where}"
