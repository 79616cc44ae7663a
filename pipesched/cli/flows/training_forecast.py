"""What is known of a training run before it begins: its staleness, its copies of the weights, its wall time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pipesched.cli.errors import InputError
from pipesched.cli.options.torch_options import load_profile_of, torch_dtype
from pipesched.cli.output.memory_lines import device_limit_lines
from pipesched.cli.output.terminal import progress_bar

if TYPE_CHECKING:
    from pipesched.cli.options.schedule_options import CostOptions
    from pipesched.cli.options.train_options import TrainOptions
    from pipesched.profiles.clusters import Cluster
    from pipesched.profiles.costs import Profile, StageCosts
    from pipesched.profiles.models import Model
    from pipesched.schedules import Schedule
    from pipesched.schedules.transforms import ScheduleSpec, TrainingRun
    from pipesched.simulator.fast import RunTime

_REPEATS = 5
"""Measured runs of a profile that is only for this training."""

_MOST_RANKS = 1024
"""In one process."""

_SHOWN_STEPS = 64
"""Steps, beside as many as stages, whose staleness is looked at: in so many every reading has settled."""


@dataclass(frozen=True, slots=True)
class TrainingForecast:
    """One run.

    Attributes:
        bounds: Half-open range of layers of every stage.
        staleness: The most steps that a forward's weights are behind those that its gradient changes.
        weight_versions: Versions of a stage's weights that a rank holds at most.
        predicts: Whether there is a predicted copy besides, while an op reads it.
        time: Predicted.
        limit: What is said of the memory limit that is judged.
        over_memory: Which device holds more than it has, and of what, as predicted; None: none, or nothing is limited.
    """

    recipe: ScheduleSpec
    run: TrainingRun
    bounds: tuple[tuple[int, int], ...]
    staleness: int
    weight_versions: int
    predicts: bool
    time: RunTime
    limit: Sequence[str]
    over_memory: str | None


def make_outlooks(
    recipes: Sequence[ScheduleSpec], model: Model, costs: CostOptions, options: TrainOptions
) -> tuple[list[TrainingForecast], str]:
    """Return an outlook for each recipe, and where the costs are from; what can fail before training does so here.

    Raises:
        InputError: Options that do not go together.
        ProfileError: The model cannot be cut so, or the profile is bad.
        ScheduleError: Lists that cannot have so many steps.
        SimulationError: A run whose time cannot be predicted.
    """
    runs = [recipe.run(options.steps) for recipe in recipes]
    _require_possible(runs, costs, options)
    lists = [run.lists(options.steps) for run in runs]
    for each in lists:
        _require_few(each, options)
        _bounds(each, model, costs, None, 1)
        costs.load_cluster(each)
    profile = _profile(runs, model, costs, options)
    outlooks = []
    with progress_bar("predicting") as tick:
        for index, (recipe, run, each) in enumerate(zip(recipes, runs, lists, strict=True)):
            tick(index / len(runs))
            outlooks.append(_outlook(recipe, run, each, model, costs, profile, options))
    return outlooks, _origin(costs, profile, lists)


def training_bounds(
    recipe: ScheduleSpec, model: Model, costs: CostOptions, options: TrainOptions
) -> tuple[tuple[int, int], ...]:
    """Return the layers of every stage of one run, without predicting anything.

    Raises:
        InputError: Options that do not go together.
        ProfileError: The model cannot be cut so, or the profile is bad.
        ScheduleError: Lists that cannot have so many steps.
    """
    run = recipe.run(options.steps)
    _require_possible([run], costs, options)
    if costs.partition == "balanced" and costs.profile is None:
        raise InputError("--partition: got balanced with --job, expected --profile with it; add it")
    profile = None if costs.profile is None else load_profile_of(costs.profile, model)
    size = run.microbatch_size(options.batch_size)
    return _bounds(run.lists(options.steps), model, costs, profile, size)


def _require_possible(runs: Sequence[TrainingRun], costs: CostOptions, options: TrainOptions) -> None:
    if costs.stage_costs is not None or costs.microbatch_size is not None:
        raise InputError(
            "--stage-costs and --microbatch-size: got one, expected --profile, --uniform, or nothing: then a profile "
            "is measured; --batch-size says the samples of a step"
        )
    if costs.profile is not None and costs.uniform is not None:
        raise InputError("costs: got --profile and --uniform, expected one of them; leave one out")
    if costs.partition == "balanced" and costs.uniform is not None:
        raise InputError("--partition: got balanced with --uniform, expected uniform or counts; try 2,2,1")
    for run in runs:
        count = run.microbatches_per_step // run.pipelines
        if options.batch_size % count:
            near = options.batch_size - options.batch_size % count or count
            raise InputError(
                f"--batch-size: got {options.batch_size} samples for the {count} micro-batches of a step of "
                f"{run.name}, expected a multiple; try {near}"
            )


def _require_few(lists: Schedule, options: TrainOptions) -> None:
    """Refuse more ranks than one process could build in a minute or so."""
    if not options.distributed and lists.num_ranks > _MOST_RANKS:
        raise InputError(
            f"schedule {lists.name}: got {lists.num_ranks} ranks in one process, expected at most {_MOST_RANKS}; "
            "try fewer -p or --width, or --job for torchrun"
        )


def _outlook(
    recipe: ScheduleSpec,
    run: TrainingRun,
    lists: Schedule,
    model: Model,
    costs: CostOptions,
    profile: Profile | None,
    options: TrainOptions,
) -> TrainingForecast:
    from pipesched.profiles.costs import Compression, element_bytes
    from pipesched.schedules.weights import staleness
    from pipesched.simulator.fast import run_time

    size = run.microbatch_size(options.batch_size)
    bounds = _bounds(lists, model, costs, profile, size)
    stage_costs, cluster = _stage_costs(run, lists, bounds, costs, profile, size), costs.load_cluster(lists)
    if options.compression is not None:
        stage_costs = replace(stage_costs, compression=Compression(element_bytes(options.dtype)))
    costs.machines.require_judged(stage_costs.has_bytes)
    time = run_time(run.lists, options.steps, run.microbatches_per_step, stage_costs, cluster)
    shown = run.beginning(_shown_steps(run, lists, options.steps))
    stages = staleness(shown).stages
    return TrainingForecast(
        recipe,
        run,
        bounds,
        staleness=max(stage.forward.staleness for stage in stages),
        weight_versions=max(stage.live_versions for stage in stages),
        predicts=any(stage.predicts for stage in stages),
        time=time,
        limit=device_limit_lines(costs.machines, cluster, lists.rank_to_device, has_bytes=stage_costs.has_bytes),
        over_memory=_over_memory(shown, stage_costs, cluster),
    )


def _over_memory(lists: Schedule, costs: StageCosts, cluster: Cluster) -> str | None:
    """Return what does not fit, of a run that is long enough to have settled."""
    from pipesched.workflows import Conditions, ScheduleSource, predict_source

    if all(device.memory_bytes is None for device in cluster.devices):
        return None
    over = predict_source(ScheduleSource(lists.held()), Conditions(costs=costs, cluster=cluster)).over
    return None if over is None else str(over)


def _shown_steps(run: TrainingRun, lists: Schedule, num_steps: int) -> int:
    """Return how many steps are enough to see all staleness: all of a short run."""
    return min(num_steps, _SHOWN_STEPS + 4 * lists.num_stages // run.microbatches_per_step)


def _bounds(
    lists: Schedule, model: Model, costs: CostOptions, profile: Profile | None, size: int
) -> tuple[tuple[int, int], ...]:
    """Cut the model; evenly unless asked otherwise, because what is measured here would cut it anew each time."""
    from pipesched.profiles.costs import layer_seconds
    from pipesched.profiles.partitioning import parse_partition

    partition = costs.partition or ("uniform" if costs.profile is None else "balanced")
    seconds = (1.0,) * len(model.layers) if profile is None else layer_seconds(profile, size)
    return parse_partition(partition, seconds, lists.num_stages)


def _stage_costs(
    run: TrainingRun,
    lists: Schedule,
    bounds: tuple[tuple[int, int], ...],
    costs: CostOptions,
    profile: Profile | None,
    size: int,
) -> StageCosts:
    """Return what a micro-batch costs; --uniform says what a whole batch costs."""
    from pipesched.profiles.costs import costs_of_stages

    if profile is not None:
        return costs_of_stages(profile, bounds, size)
    from pipesched.cli.options.uniform_costs import uniform_costs

    assert costs.uniform is not None, "without it a profile is read or measured"
    return uniform_costs(costs.uniform, lists).stage_costs(lists).of_share(run.pipelines / run.microbatches_per_step)


def _profile(runs: Sequence[TrainingRun], model: Model, costs: CostOptions, options: TrainOptions) -> Profile | None:
    """Read the profile, or measure one of the micro-batches that the runs have; None where costs are given."""
    if costs.uniform is not None:
        return None
    if costs.profile is not None:
        return load_profile_of(costs.profile, model)
    from pipesched.profiles.measuring import profile_model

    with progress_bar(f"profiling {model.name}") as tick:
        return profile_model(
            model,
            microbatch_sizes=[run.microbatch_size(options.batch_size) for run in runs],
            repeats=_REPEATS,
            warmup=1,
            optimizer=options.optimizer,
            dtype=torch_dtype(options.dtype),
            device=options.device,
            threads=options.threads,
            seed=options.seed,
            progress=lambda done, total, text: tick(done / total),  # noqa: ARG005
        )


def _origin(costs: CostOptions, profile: Profile | None, lists: Sequence[Schedule]) -> str:
    if profile is None:
        notes = "; ".join(costs.shares(*lists, named=True))
        return f"--uniform {costs.uniform}" + (f" ({notes})" if notes else "")
    where = "measured now" if costs.profile is None else str(costs.profile)
    return f"a profile of {profile.provenance.device}, {where}"
