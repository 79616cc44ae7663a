"""``pipesched run``: execute a schedule with real processes and measure it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipesched.cli.errors import InputError
from pipesched.cli.flows.planned_run import planned_run
from pipesched.cli.flows.run_jobs import HowOption, RunOptions, require_epsilon, require_used
from pipesched.cli.options.schedule_options import CostOptions, Json, ScheduleOptions, grouped, out_option
from pipesched.cli.options.torch_options import TrustModel, load_model, load_profile_of
from pipesched.cli.output.memory_lines import device_limit_lines, require_fits
from pipesched.cli.output.output_files import JSON, TIMELINE, check_outputs, emit, write_timeline
from pipesched.cli.output.terminal import num_bytes, percent, print_json, print_table, progress_bar, seconds
from pipesched.executor.launch import fork_client as forks
from pipesched.schedules import LONGEST_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipesched.executor.launch import RunSpec
    from pipesched.profiles.clusters import Cluster
    from pipesched.profiles.costs import StageCosts
    from pipesched.schedules import Schedule
    from pipesched.simulator.analysis import Metrics


@grouped
def run(
    schedule: ScheduleOptions,
    costs: CostOptions,
    options: RunOptions,
    model: Annotated[str | None, typer.Option(help="Model to run, as for 'profile'; none: emulate the costs.")] = None,
    trust_model: TrustModel = False,
    how: Annotated[HowOption, typer.Option(help="Emulated stages sleep, or are busy.")] = "sleep",
    job: Annotated[
        Path | None, typer.Option(help="Only write the job (.json), for 'torchrun ... -m pipesched.executor'.")
    ] = None,
    json: Json = False,
    out: Annotated[Path | None, out_option("Write the measured Timeline: .json, .csv or .parquet.")] = None,
) -> None:
    """Run the op lists, one process per rank, and write the measured Timeline (--out).

    Exit code 1: a device held more than --memory-limit; 3: a rank failed.
    """
    check_outputs((out, TIMELINE), (job, JSON))
    if job is not None and out is not None:
        raise InputError("--job: got --out too, expected one; give --out to 'torchrun ... -m pipesched.executor'")
    plan = schedule.read_plan()
    if plan is not None:
        model, costs, options = planned_run(plan, model, costs, options, trusts=trust_model)
    if costs.machines.are_given and model is not None:
        raise InputError(
            "--cluster, --link and --nodes: got one with --model, expected it to emulate: the messages of a model are "
            "real; leave it out"
        )
    limit = costs.machines.limit_bytes()
    if limit is not None and (model is None or job is not None):
        raise InputError(
            "--memory-limit: got it for ranks that hold nothing or are not run, expected --model without --job; leave "
            "it out, or see 'pipesched simulate'"
        )
    loaded = _loaded(schedule, options)
    if job is None:
        options.require_possible()
        forks.prepare()
    from pipesched.executor.launch import Measure, job_to_json
    from pipesched.executor.runs import launch
    from pipesched.simulator.analysis import metrics

    todo = _job(loaded, costs, options, model, how)
    if isinstance(todo.job, Measure) and todo.job.emulate is not None and not options.no_check:
        _require_patience(loaded, todo.job.emulate, costs.load_cluster(loaded), options.timeout)
    if job is not None:
        emit(job_to_json(todo), job)
        return
    with progress_bar(f"running {loaded.name}") as tick:
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
                "stage_share": costs.stage_share(loaded),
                "first_loss": mean_loss if mean_loss is None or math.isfinite(mean_loss) else None,
            }
        )
    else:
        judged = device_limit_lines(costs.machines, costs.load_cluster(loaded), loaded.rank_to_device) if limit else []
        _print(loaded.name, found, measured.makespans_s, mean_loss, [*judged, *costs.shares(loaded)])
    require_fits(found, limit)


def _print(
    name: str, found: Metrics, makespans_s: Sequence[float], mean_loss: float | None, notes: Sequence[str]
) -> None:
    loss = "" if mean_loss is None else f"; mean loss at the start {mean_loss:.6g}"
    rows = [
        {
            "device": str(device.device),
            "busy": seconds(device.busy_s),
            "idle": seconds(device.idle_s),
            "peak memory": num_bytes(device.peak_memory_bytes),
        }
        for device in found.devices
    ]
    median = f"makespan {seconds(found.makespan_s)} (median of {len(makespans_s)})"
    bubble = f"; bubble_fraction {percent(found.bubble_fraction)}"
    print_table(f"{name}, measured", rows, "\n".join([median + bubble + loss, *notes]))


def _require_patience(schedule: Schedule, costs: StageCosts, cluster: Cluster, timeout_s: float) -> None:
    """Refuse to emulate what is known to take too long, or to wait longer than a message may keep a rank waiting."""
    from pipesched.schedules.lowering import lower
    from pipesched.simulator.engine import simulate_lists

    timeline = simulate_lists(lower(schedule), costs, cluster)
    if not timeline.makespan_s <= LONGEST_S:
        raise InputError(
            f"costs: got a list that is predicted to take {timeline.makespan_s:.3g} s, expected at most a week "
            f"({LONGEST_S:g}); try smaller costs"
        )
    works = timeline.work
    if not works:
        return
    longest = max(works, key=lambda span: span.start_s - span.posted_s)
    wait_s = longest.start_s - longest.posted_s
    if wait_s > timeout_s:
        raise InputError(
            f"--timeout: got {timeout_s:g} s, but {longest.op} of rank {longest.rank} is predicted to wait "
            f"{wait_s:.3g} s, expected more; try --timeout {math.ceil(2 * wait_s)}, or smaller costs"
        )


def _loaded(schedule: ScheduleOptions, options: RunOptions) -> Schedule:
    """Return the lists, which can finish unless nobody is to check that."""
    if schedule.schedule is not None:
        require_used(options, [schedule.schedule])
    loaded = schedule.load()
    if not options.no_check:
        from pipesched.schedules.check import require_runnable

        require_runnable(loaded)
    return loaded


def _job(schedule: Schedule, costs: CostOptions, options: RunOptions, model: str | None, how: HowOption) -> RunSpec:
    if model is None:
        from pipesched.workflows import Conditions, ScheduleSource

        conditions = Conditions(
            costs=costs.source(schedule),
            microbatch_size=costs.microbatch_size,
            partition=costs.partition,
            compression=options.compression,
        )
        emulate = conditions.costs_of(ScheduleSource(schedule))
        return options.job(schedule, emulate=emulate, how=how, cluster=_cluster(schedule, costs))
    require_epsilon(options, [schedule.traits])
    if costs.stage_costs is not None or costs.uniform is not None:
        raise InputError(
            "--model: got costs to emulate too, expected one or the other; leave out --uniform or --stage-costs"
        )
    from pipesched.profiles.costs import layer_seconds
    from pipesched.profiles.partitioning import parse_partition

    built = load_model(model)
    size = costs.microbatch_size or 1
    if costs.profile is not None:
        seconds_of = layer_seconds(load_profile_of(costs.profile, built), size)
    elif costs.partition == "balanced":
        raise InputError("--partition: got balanced without --profile, expected uniform or counts; give the profile")
    else:
        seconds_of = (1.0,) * len(built.layers)
    partition = costs.partition or ("uniform" if costs.profile is None else "balanced")
    bounds = parse_partition(partition, seconds_of, schedule.num_stages)
    return options.job(schedule, model=model, bounds=bounds, microbatch_size=size)


def _cluster(schedule: Schedule, costs: CostOptions) -> str | None:
    """Return the machines to emulate, in JSON; None where none are named."""
    if not costs.machines.are_given:
        return None
    cluster = costs.load_cluster(schedule)
    from pipesched.executor.emulation import require_emulable
    from pipesched.profiles.io import cluster_text

    require_emulable(schedule, cluster)
    return cluster_text(cluster, "the cluster")
