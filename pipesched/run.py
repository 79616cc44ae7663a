"""``pipesched run``: execute a schedule with real processes and measure it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipesched.errors import InputError
from pipesched.jobs import RunOptions
from pipesched.options import CostOptions, Json, Out, ScheduleOptions, grouped
from pipesched.output import emit, num_bytes, percent, print_json, print_table, progress, seconds, write_timeline

if TYPE_CHECKING:
    from executor.job import Job
    from schedules.schedule import Schedule


@grouped
def run(
    schedule: ScheduleOptions,
    costs: CostOptions,
    options: RunOptions,
    model: Annotated[str | None, typer.Option(help="Model to run, as for 'profile'; none: emulate the costs.")] = None,
    how: Annotated[str, typer.Option(help="Emulated stages sleep, or are busy.")] = "sleep",
    job: Annotated[Path | None, typer.Option(help="Only write the job, for 'torchrun ... -m executor'.")] = None,
    json: Json = False,
    out: Out = None,
) -> None:
    """Run the op lists, one process per rank, and write the measured Timeline (--out). Exit code 3: a rank failed."""
    from executor.job import job_to_json
    from executor.launch import launch
    from simulator.metrics import metrics

    loaded = schedule.load()
    todo = _job(loaded, costs, options, model, how)
    if job is not None:
        emit(job_to_json(todo), job)
        return
    if not options.no_check:
        from schedules.check import require_runnable

        require_runnable(loaded)
    with progress(f"running {loaded.name}") as tick:
        measured = launch(todo, tick)
    if out is not None:
        write_timeline(measured.timeline, out)
    found = metrics(measured.timeline)
    mean_loss = sum(measured.losses) / len(measured.losses) if measured.losses else None
    if json:
        print_json(
            {
                "schedule": loaded.name,
                **found.to_dict(),
                "throughput_unit": "micro-batches per second",
                "makespans_s": measured.makespans_s,
                "first_loss": mean_loss,
            }
        )
        return
    loss = "" if mean_loss is None else f" · mean loss at the start {mean_loss:.6g}"
    rows = [
        {
            "device": str(device.device),
            "busy": seconds(device.busy_s),
            "idle": seconds(device.idle_s),
            "peak memory": num_bytes(device.peak_memory_bytes),
        }
        for device in found.devices
    ]
    median = f"makespan {seconds(found.makespan_s)} (median of {len(measured.makespans_s)})"
    bubble = f" · bubble_fraction {percent(found.bubble_fraction)}"
    print_table(f"{loaded.name}, measured", rows, median + bubble + loss)


def _job(schedule: Schedule, costs: CostOptions, options: RunOptions, model: str | None, how: str) -> Job:
    if model is None:
        return options.job(schedule, emulate=costs.load_costs(schedule), how=how)
    if costs.stage_costs is not None or costs.uniform is not None:
        raise InputError("--model: got costs to emulate too, expected one or the other")
    from profiles.models.resolve import resolve_model
    from profiles.partition import parse_partition
    from profiles.profile import layer_seconds

    built = resolve_model(model)
    size = costs.microbatch_size or 1
    seconds_of = [1.0] * len(built.layers)
    if costs.profile is not None:
        from profiles.files import load_profile

        profile = load_profile(costs.profile)
        if profile.model != built.name:
            raise InputError(f"{costs.profile}: got a profile of {profile.model}, expected one of {built.name}")
        seconds_of = list(layer_seconds(profile, size))
    bounds = parse_partition(costs.partition, seconds_of, schedule.num_stages)
    return options.job(schedule, model=model, bounds=bounds, microbatch_size=size)
