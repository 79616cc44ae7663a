"""``pipesched verify``: profile, simulate, run, and set the two side by side."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated

import typer

from pipesched.cli.errors import NEGATIVE, InputError
from pipesched.cli.flows.run_jobs import RunOptions, require_epsilon
from pipesched.cli.options.schedule_list import schedule_names
from pipesched.cli.options.schedule_options import CostOptions, Json, ScheduleOptions, grouped
from pipesched.cli.options.torch_options import ModelName, load_model, load_profile_of
from pipesched.cli.output.comparison_table import print_comparisons
from pipesched.cli.output.memory_lines import device_limit_lines, require_fits
from pipesched.cli.output.output_files import check_folder, write_timeline
from pipesched.cli.output.terminal import print_json, progress_bar, simulating, terminal_line

if TYPE_CHECKING:
    from pipesched.profiles.costs import Profile
    from pipesched.profiles.models import Model
    from pipesched.schedules import Schedule, Timeline
    from pipesched.simulator.analysis import Comparison

_LOSS_TOLERANCE = 1e-5
_LONGEST_STEM = 100  # characters of a file's name that are the schedule's
"""Relative; the sums run in the same order, so float32 agrees to its last digits."""


@grouped
def verify(
    model: ModelName,
    schedule: ScheduleOptions,
    costs: CostOptions,
    options: RunOptions,
    json: Json = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for Timelines, Gantt chart and trace.")
    ] = None,
) -> None:
    """Profile MODEL (unless --profile), simulate, run, compare. --schedule takes several, as gpipe,1f1b.

    Exit code 1 when the loss of the run is not that of the un-pipelined model, or --memory-limit is not kept to. Where
    one of several schedules fails, what those before it gave is told all the same.
    """
    from pipesched.simulator.analysis import metrics

    schedules = _schedules(schedule)
    size = costs.microbatch_size or 1
    built = _require_possible(schedules, model, costs, options, out)
    profile = _profile(built, size, max(s.num_ranks for s in schedules), costs, options)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    limit = device_limit_lines(costs.machines, costs.load_cluster(schedules[0]), schedules[0].rank_to_device)
    checked: list[_Checked] = []
    try:
        for each in schedules:
            with _named(each.name):
                checked.append(_one(each, model, profile, size, costs, options))
    finally:
        if checked:
            _tell(checked, out, limit, json=json)
    for timeline in (timeline for each in checked for timeline in (each.predicted, each.measured)):
        require_fits(metrics(timeline), costs.machines.limit_bytes())
    if not all(each.loss_difference <= _LOSS_TOLERANCE for each in checked):
        raise typer.Exit(NEGATIVE)


def _tell(checked: list[_Checked], out: Path | None, limit: Sequence[str], *, json: bool) -> None:
    """Print what was found, as data or as people read it, and write it where it is asked for."""
    if json:
        print_json(
            [{**each.found.to_dict(), "largest_loss_difference": _finite(each.loss_difference)} for each in checked]
        )
    else:
        print_comparisons([each.found for each in checked])
        for each in checked:
            print(
                f"{each.found.name}: loss {each.loss:.6f}, that of the un-pipelined model {each.whole_loss:.6f}; "
                f"largest relative difference of a micro-batch {each.loss_difference:.1e}"
            )
        for line in limit:
            print(line)
    if out is not None:
        for each in checked:
            _write(each, out, is_quiet=json)


@contextmanager
def _named(schedule: str) -> Iterator[None]:
    """Name the schedule in what is raised."""
    from pipesched.executor import ExecutionError
    from pipesched.profiles import ProfileError
    from pipesched.schedules import ScheduleError
    from pipesched.simulator import SimulationError

    try:
        yield
    except (ExecutionError, ProfileError, ScheduleError, SimulationError) as error:
        raise type(error)(f"verify {schedule}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Checked:
    """One schedule, predicted and run."""

    predicted: Timeline
    measured: Timeline
    found: Comparison
    loss: float
    whole_loss: float
    loss_difference: float


def _schedules(options: ScheduleOptions) -> list[Schedule]:
    if options.schedule_file is not None:
        return [options.load()]
    names = schedule_names(options.schedule or "gpipe,1f1b")
    if not names:
        raise InputError(f"--schedule: got {options.schedule!r}, expected names; try gpipe,1f1b")
    return [options.build(name) for name in names]


def _require_possible(
    schedules: list[Schedule], model: str, costs: CostOptions, options: RunOptions, out: Path | None
) -> Model:
    """Return the model; refuse, before anything is measured, what would fail after it."""
    if costs.uniform is not None or costs.stage_costs is not None:
        raise InputError("verify: got costs by hand, expected --profile, or nothing: then one is measured")
    if out is not None:
        if out.exists() and not out.is_dir():
            raise InputError(f"{out}: got a file, expected a folder, or the name of a new one; try another")
        check_folder(next(folder for folder in (out, *out.parents) if folder.exists()), out)
    options.require_possible()
    require_epsilon(options, [schedule.traits for schedule in schedules])
    from pipesched.profiles.partitioning import parse_partition
    from pipesched.schedules.check import require_runnable

    built = load_model(model)
    for schedule in schedules:
        require_runnable(schedule)
        parse_partition(costs.partition or "balanced", (1.0,) * len(built.layers), schedule.num_stages)
        costs.load_cluster(schedule)
    return built


def _profile(built: Model, size: int, num_ranks: int, costs: CostOptions, options: RunOptions) -> Profile:
    """Read the profile, or measure one while as many processes are busy as the run will have."""
    if costs.profile is not None:
        profile = load_profile_of(costs.profile, built)
        _require_same_conditions(profile, costs.profile, options)
        return profile
    return options.profile(built, [size], num_ranks)


def _require_same_conditions(profile: Profile, path: Path, options: RunOptions) -> None:
    """Refuse a profile of other numbers or of another optimizer than the run will have.

    Raises:
        InputError: It was measured with another dtype or optimizer.
    """
    for name, measured, wanted in (
        ("dtype", profile.provenance.dtype, options.dtype),
        ("optimizer", profile.provenance.optimizer, options.optimizer),
    ):
        if measured != wanted:
            raise InputError(
                f"{path}: {name}: got a profile measured with {measured}, expected {wanted} as in the run; "
                f"try --{name} {measured}, or leave out --profile"
            )


def _one(
    schedule: Schedule, model: str, profile: Profile, size: int, costs: CostOptions, options: RunOptions
) -> _Checked:
    """Predict and run one schedule, and compare its losses with those of the whole model."""
    from pipesched.executor.runs import launch, whole_model_losses
    from pipesched.profiles.costs import costs_of_stages, layer_seconds
    from pipesched.profiles.partitioning import parse_partition
    from pipesched.simulator.analysis import compare_timelines
    from pipesched.workflows import Conditions, ScheduleSource, predict_source

    bounds = parse_partition(costs.partition or "balanced", layer_seconds(profile, size), schedule.num_stages)
    conditions = Conditions(costs=costs_of_stages(profile, bounds, size), cluster=costs.load_cluster(schedule))
    with simulating(schedule):
        predicted = predict_source(ScheduleSource(schedule), conditions).timeline
    job = options.job(schedule, model=model, bounds=bounds, microbatch_size=size)
    with progress_bar(f"running {schedule.name}") as tick:
        measured = launch(job, tick)
        losses = zip(measured.losses, whole_model_losses(job), strict=True)
    pairs = [pair for pair, comparable in zip(losses, _with_initial_weights(schedule), strict=True) if comparable]
    return _Checked(
        predicted,
        measured.timeline,
        compare_timelines(predicted, measured.timeline),
        loss=mean(got for got, _ in pairs),
        whole_loss=mean(want for _, want in pairs),
        loss_difference=max(_difference(got, want) for got, want in pairs),
    )


def _difference(got: float, want: float) -> float:
    """Return by how much `got` is off, relative to `want`; infinite where one of them is no number any more."""
    if not (math.isfinite(got) and math.isfinite(want)):
        return math.inf  # max() would pass over a NaN
    if got == want:
        return 0.0
    return abs(got - want) / abs(want) if want else math.inf


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _with_initial_weights(schedule: Schedule) -> list[bool]:
    """Return of each micro-batch whether all its forwards read the initial weights, as the whole model does.

    That whose backward is the first of all always does: no stage can have stepped before. Where there is a step between
    the micro-batches, others have losses of their own. Weights that are predicted before the stage's first step are
    the initial ones, as there is nothing yet to predict them from.
    """
    from pipesched.schedules import Phase, computes

    parts = [part for row in schedule.ops for op in row for part in computes(op) if part.phase is Phase.FORWARD]
    later = {part.microbatch for part in parts if part.version}
    return [microbatch not in later for microbatch in range(schedule.num_microbatches)]


def _write(checked: _Checked, out: Path, *, is_quiet: bool) -> None:
    """Write both Timelines, the Gantt chart that lays one over the other, and the trace of both."""
    from pipesched.schedules.formats import write_text
    from pipesched.simulator.views import draw_gantt, to_trace

    name, both = checked.found.name, (checked.predicted, checked.measured)
    stem = name.replace("/", "_")[:_LONGEST_STEM]
    for timeline in both:
        write_timeline(timeline, out / f"{stem}-{timeline.source}.json")
    error = checked.predicted.makespan_s / checked.measured.makespan_s - 1
    draw_gantt(both, out / f"{stem}.png", title=f"{name}: predicted makespan {error:+.1%} off the measured one")
    write_text(out / f"{stem}-trace.json", to_trace(*both))
    if not is_quiet:
        print(terminal_line(f"wrote {out}/{stem}-predicted.json, {stem}-measured.json, {stem}.png, {stem}-trace.json"))
