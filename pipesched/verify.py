"""``pipesched verify``: profile, simulate, run, and set the two side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipesched.comparison import print_comparison
from pipesched.errors import NEGATIVE, InputError
from pipesched.jobs import RunOptions
from pipesched.options import CostOptions, Json, ScheduleOptions, grouped
from pipesched.output import print_json, progress, write_timeline
from pipesched.predict import predict
from pipesched.profile import torch_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

    from executor.job import Job
    from profiles.profile import Profile
    from schedules.schedule import Schedule
    from schedules.timeline import Timeline

_LOSS_TOLERANCE = 1e-5
"""Relative; the sums run in the same order, so float32 agrees to its last digits."""


@grouped
def verify(
    model: Annotated[str, typer.Argument(help="Model, as for 'profile'.")],
    schedule: ScheduleOptions,
    costs: CostOptions,
    options: RunOptions,
    json: Json = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for Timelines, Gantt chart and trace.")] = None,
) -> None:
    """Profile MODEL (unless --profile), simulate, run, compare. --schedule takes several, as gpipe,1f1b.

    Exit code 1 when the loss of the run is not that of the un-pipelined model.
    """
    schedules = _schedules(schedule)
    size = costs.microbatch_size or 1
    profile = _profile(model, size, max(s.num_ranks for s in schedules), costs, options)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    found = [_one(each, model, profile, size, costs, options, out) for each in schedules]
    if json:
        print_json([data for data, _ in found])
    if not all(agrees for _, agrees in found):
        raise typer.Exit(NEGATIVE)


def _schedules(options: ScheduleOptions) -> list[Schedule]:
    if options.schedule_file is not None:
        return [options.load()]
    names = [name for name in (options.schedule or "gpipe,1f1b").split(",") if name]
    return [options.build(name) for name in names]


def _profile(
    model: str, size: int, num_ranks: int, costs: CostOptions, options: RunOptions
) -> Profile:
    """Read the profile, or measure one while as many processes are busy as the run will have."""
    from profiles.files import load_profile
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
            companions=num_ranks - 1 if options.device == "cpu" else 0,
            seed=options.seed,
            progress=lambda done, total, text: tick(done / total),  # noqa: ARG005
        )


def _one(
    schedule: Schedule,
    model: str,
    profile: Profile,
    size: int,
    costs: CostOptions,
    options: RunOptions,
    out: Path | None,
) -> tuple[dict[str, object], bool]:
    """Predict and run one schedule; return what was found as plain data, and whether the losses agree."""
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
    found = compare(predicted, measured.timeline)
    print_comparison(found)
    return {"schedule": schedule.name, **found.to_dict()}, _loss_agrees(job, measured.losses)


def _loss_agrees(job: Job, losses: Sequence[float]) -> bool:
    from executor.whole import whole_model_losses

    expected = whole_model_losses(job)
    worst = max(abs(got - want) / abs(want) for got, want in zip(losses, expected, strict=True))
    print(f"loss of the run {sum(losses) / len(losses):.6f}, of the un-pipelined model {sum(expected) / len(expected):.6f}, "
          f"largest relative difference of a micro-batch {worst:.1e}")  # fmt: skip
    return worst <= _LOSS_TOLERANCE
