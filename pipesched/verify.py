"""``pipesched verify``: profile, simulate, run, and set the two side by side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated

import typer

from pipesched.comparison import print_comparisons
from pipesched.errors import NEGATIVE, InputError
from pipesched.jobs import RunOptions
from pipesched.options import CostOptions, Json, ScheduleOptions, grouped
from pipesched.output import print_json, progress, write_timeline
from pipesched.predict import predict
from pipesched.profile import torch_dtype

if TYPE_CHECKING:
    from profiles.profile import Profile
    from schedules.schedule import Schedule
    from schedules.timeline import Timeline
    from simulator.compare import Comparison

_LOSS_TOLERANCE = 1e-5
"""Relative; the sums run in the same order, so float32 agrees to its last digits."""


@grouped
def verify(
    model: Annotated[str, typer.Argument(help="Model, as for 'profile'.")],
    schedule: ScheduleOptions,
    costs: CostOptions,
    options: RunOptions,
    json: Json = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for Timelines, Gantt chart and trace.")
    ] = None,
) -> None:
    """Profile MODEL (unless --profile), simulate, run, compare. --schedule takes several, as gpipe,1f1b.

    Exit code 1 when the loss of the run is not that of the un-pipelined model.
    """
    schedules = _schedules(schedule)
    size = costs.microbatch_size or 1
    profile = _profile(model, size, max(s.num_ranks for s in schedules), costs, options)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    checked = [_one(each, model, profile, size, costs, options) for each in schedules]
    if json:
        print_json([{**each.found.to_dict(), "largest_loss_difference": each.loss_difference} for each in checked])
    else:
        print_comparisons([each.found for each in checked])
        for each in checked:
            print(
                f"{each.found.name}: loss {each.loss:.6f}, that of the un-pipelined model {each.whole_loss:.6f}; "
                f"largest relative difference of a micro-batch {each.loss_difference:.1e}"
            )
    if out is not None:
        for each in checked:
            _write(each, out, is_quiet=json)
    if any(each.loss_difference > _LOSS_TOLERANCE for each in checked):
        raise typer.Exit(NEGATIVE)


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
    names = [name for name in (options.schedule or "gpipe,1f1b").split(",") if name]
    return [options.build(name) for name in names]


def _profile(model: str, size: int, num_ranks: int, costs: CostOptions, options: RunOptions) -> Profile:
    """Read the profile, or measure one while as many processes are busy as the run will have."""
    from profiles.files import load_profile
    from profiles.host import num_cores
    from profiles.models.resolve import resolve_model

    if costs.uniform is not None or costs.stage_costs is not None:
        raise InputError("verify: got costs by hand, expected --profile, or nothing to measure one")
    built = resolve_model(model)
    if costs.profile is not None:
        profile = load_profile(costs.profile)
        if profile.model != built.name:
            raise InputError(f"{costs.profile}: got a profile of {profile.model}, expected one of {built.name}")
        return profile
    from profiles.profiler import profile_model

    with progress(f"profiling {built.name}") as tick:
        return profile_model(
            built,
            microbatch_sizes=[size],
            optimizer=options.optimizer,
            dtype=torch_dtype(options.dtype),
            device=options.device,
            threads=options.threads,
            companions=min(num_ranks, num_cores()) - 1 if options.device == "cpu" else 0,
            seed=options.seed,
            progress=lambda done, total, text: tick(done / total),  # noqa: ARG005
        )


def _one(
    schedule: Schedule, model: str, profile: Profile, size: int, costs: CostOptions, options: RunOptions
) -> _Checked:
    """Predict and run one schedule, and compare its losses with those of the whole model."""
    from executor.launch import launch
    from executor.whole import whole_model_losses
    from profiles.partition import parse_partition
    from profiles.profile import layer_seconds, stage_costs
    from simulator.compare import compare

    bounds = parse_partition(costs.partition, layer_seconds(profile, size), schedule.num_stages)
    predicted = predict(schedule, stage_costs(profile, bounds, size), costs.load_cluster(schedule))
    job = options.job(schedule, model=model, bounds=bounds, microbatch_size=size)
    with progress(f"running {schedule.name}") as tick:
        measured = launch(job, tick)
    whole = whole_model_losses(job)
    return _Checked(
        predicted,
        measured.timeline,
        compare(predicted, measured.timeline),
        loss=mean(measured.losses),
        whole_loss=mean(whole),
        loss_difference=max(abs(got - want) / abs(want) for got, want in zip(measured.losses, whole, strict=True)),
    )


def _write(checked: _Checked, out: Path, *, is_quiet: bool) -> None:
    """Write both Timelines, the Gantt chart that lays one over the other, and the trace of both."""
    from schedules.formats.files import write_text
    from simulator.gantt import draw_gantt
    from simulator.trace import to_trace

    name, both = checked.found.name, (checked.predicted, checked.measured)
    for timeline in both:
        write_timeline(timeline, out / f"{name}-{timeline.source}.json")
    error = checked.predicted.makespan_s / checked.measured.makespan_s - 1
    draw_gantt(both, out / f"{name}.png", title=f"{name}: predicted makespan {error:+.1%} off the measured one")
    write_text(out / f"{name}-trace.json", to_trace(*both))
    if not is_quiet:
        print(f"wrote {out}/{name}-predicted.json, {name}-measured.json, {name}.png, {name}-trace.json")
