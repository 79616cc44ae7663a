"""``pipesched run``: execute a schedule with real processes and measure it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipesched.cli.errors import InputError
from pipesched.cli.options.common_options import Json, out_option
from pipesched.cli.options.cost_options import CostOptions
from pipesched.cli.options.fault_options import FaultOptions
from pipesched.cli.options.option_groups import grouped
from pipesched.cli.options.planned_run import planned_model
from pipesched.cli.options.run_options import RunOptions
from pipesched.cli.options.schedule_options import ScheduleOptions
from pipesched.cli.options.simulation_options import SlowOption, with_slow_parts
from pipesched.cli.options.torch_options import ModelOption, TrustModel, model_of
from pipesched.cli.output.doubts import doubts_of_machine
from pipesched.cli.output.memory_lines import device_limit_lines, require_fits
from pipesched.cli.output.output_files import JSON, TIMELINE, check_outputs, emit, write_timeline
from pipesched.cli.terminal import print_json, print_results, progress_bar
from pipesched.executor import How
from pipesched.executor.launch import fork_client
from pipesched.profiles.processes import LoadMeter
from pipesched.workflows import busy_machine

if TYPE_CHECKING:
    from pipesched.executor.launch import RunSpec
    from pipesched.workflows import Table
    from pipesched.workflows.arguments import ScheduleSource
    from pipesched.workflows.measuring import RunResult


@grouped
def run(
    schedule: ScheduleOptions,
    costs: CostOptions,
    options: RunOptions,
    faults: FaultOptions,
    given: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="Model to run, as for 'profile'; none: emulate the costs."),
    ] = None,
    model: ModelOption = None,
    trust_model: TrustModel = False,
    slow: SlowOption = None,
    how: Annotated[How, typer.Option(help="Behaviour of emulated stages: they sleep, or are busy.")] = "sleep",
    job: Annotated[
        Path | None, typer.Option(help="Write only the job (.json), for 'torchrun ... -m pipesched.executor'.")
    ] = None,
    json: Json = False,
    out: Annotated[Path | None, out_option("Write the measured Timeline: .json, .csv, .parquet or .html.")] = None,
) -> None:
    """Run the op lists, one process per rank, and write the measured Timeline (--out).

    Exits with 1 if a device exceeds --memory-limit, and with 3 if a rank fails.
    """
    meter, notes = LoadMeter(), list[str]()
    check_outputs((out, TIMELINE), (job, JSON))
    if job is not None and out is not None:
        raise InputError("--job: got --out too, expected one; give --out to 'torchrun ... -m pipesched.executor'")
    model = model_of(given, model)
    plan = schedule.read_plan()
    if plan is not None and (model is not None or not costs.are_given):
        model = planned_model(plan, model, "--model", trusts=trust_model)
    if costs.machines.are_given and model is not None:
        raise InputError(
            "--cluster, --link and --nodes: got one with --model, expected it to emulate: the messages of a model are "
            "real; leave it out"
        )
    if slow and model is not None:
        raise InputError("--slow: got it with --model, expected costs to emulate; try --inject slow:rank=1,factor=1.3")
    limit = costs.machines.limit_bytes()
    if limit is not None and (model is None or job is not None):
        raise InputError(
            "--memory-limit: got it for ranks that hold nothing or are not run, expected --model without --job; leave "
            "it out, or see 'pipesched simulate'"
        )
    source = schedule.source()
    loaded = source.schedule
    from pipesched.executor.launch import job_to_json
    from pipesched.executor.runs import launch
    from pipesched.simulator.views import RunDetails
    from pipesched.workflows.measuring import result_of

    if job is None:
        options.require_possible()
        computes = model is not None or how == "busy"
        notes = doubts_of_machine(loaded.num_ranks, options, meter) if computes else busy_machine(meter.others(), 1)
        fork_client.prepare(options.device)
    faults.require_there(loaded, loaded.num_microbatches, options.warmup + options.iterations)
    spec = faults.applied(_spec(source, costs, options, model, how, slow or ()))
    if job is not None:
        emit(job_to_json(spec), job)
        return
    with progress_bar(f"running {loaded.name}") as tick:
        result = result_of(source, launch(spec, tick), None if model is None else costs.profile)
    notes += result.notes
    judged = device_limit_lines(costs.machines, costs.load_cluster(loaded), loaded.rank_to_device) if limit else []
    said = _tables(result, [*judged, *costs.shares(loaded), *notes])
    if out is not None:
        details = RunDetails({} if limit is None else dict.fromkeys(result.timeline.devices, limit))
        write_timeline(result.timeline, out, details, _below(said))
    if json:
        print_json("run", result.to_dict() | {"stage_share": costs.stage_share(loaded)}, notes)
    else:
        print_results(said)
    require_fits(result.metrics, limit)


def _tables(result: RunResult, notes: Sequence[str]) -> list[Table]:
    """Return the table of the measurement, and of the plan's prediction if there is one."""
    tables = [result.table().noted(notes)]
    return tables if result.planned is None else [*tables, result.planned.table()]


def _below(tables: Sequence[Table]) -> list[str]:
    return [line for table in tables for line in table.lines(())]


def _spec(
    source: ScheduleSource, costs: CostOptions, options: RunOptions, model: str | None, how: How, slow: Sequence[str]
) -> RunSpec:
    """Return the run of a model, or of its emulation."""
    from pipesched.workflows.measuring import prepare_emulation, prepare_run
    from pipesched.workflows.simulating import Setup

    if model is None and not costs.are_given:
        raise InputError(
            "run: got neither MODEL nor costs, expected one; try 'run mlp', or to emulate --uniform f=10ms,b=20ms"
        )
    if model is None:
        is_given = costs.machines.are_given or slow
        cluster = with_slow_parts(costs.load_cluster(source.schedule), slow) if is_given else None
        setup = Setup(
            costs=costs.source(source.schedule, source.plan),
            cluster=cluster,
            microbatch_size=costs.microbatch_size,
            partition=costs.partition,
            input_share=costs.input_share,
            compression=options.compression,
        )
        return prepare_emulation(source, setup, options, how=how, **options.counts())
    by_hand = costs.sources.keys() - {"--profile"}
    if by_hand:
        raise InputError(f"--model: got {by_hand.pop()} to emulate too, expected one or the other; leave one out")
    cut: dict[str, Any] = {"microbatch_size": costs.microbatch_size, "partition": costs.partition}
    return prepare_run(source, model, options, profile=costs.profile, **cut, **options.counts())
