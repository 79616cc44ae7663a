"""``pipesched partition`` and ``export``: the cut of a model into stages, and a setting for another trainer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import pipesched
from pipesched.cli.errors import NEGATIVE, InputError, in_flags
from pipesched.cli.options.machine_options import MachineOptions
from pipesched.cli.options.option_groups import Json, grouped, out_option
from pipesched.cli.options.schedule_options import ScheduleOptions
from pipesched.cli.output.notes import doubts_of_own_machine, doubts_of_table
from pipesched.cli.output.output_files import check_outputs, emit, print_answer
from pipesched.cli.terminal import complain, json_answer, print_json
from pipesched.profiles import partitioning
from pipesched.questions import NumDevices, PartitionSettings, ProfiledSize, TrainerName
from pipesched.schedules.common import values_of
from pipesched.schedules.formats import suffix_of
from pipesched.simulator.analysis import readable_bytes
from pipesched.workflows import (
    ArgumentError,
    exporting,
    measuring,
)

if TYPE_CHECKING:
    from pipesched.profiles.costs import Profile
    from pipesched.workflows.planning import PartitionedModel


@grouped
def partition(
    profile: Annotated[
        Path, typer.Argument(help="Profile (JSON), graph of PipeDream's profiler (.txt), or table of layers (CSV).")
    ],
    num_devices: NumDevices,
    settings: PartitionSettings = PartitionSettings(),  # noqa: B008 -- frozen
    microbatch_size: ProfiledSize = None,
    machines: MachineOptions = MachineOptions(),  # noqa: B008 -- frozen
    json: Json = False,
    out: Annotated[
        Path | None,
        out_option("Write the result (.json), the argument of --partition (.txt), or a graph with stages (.graph.txt)"),
    ] = None,
) -> None:
    """Cut a model into stages and show the cost of each (--out: .json, .txt for --partition, or .graph.txt).

    Exits with 1 if a stage does not fit into its devices.
    """
    check_outputs((out, (".txt", ".json")))
    result = pipesched.partition(
        _layers(profile, microbatch_size),
        num_devices,
        machines.load(num_devices, "--ranks"),
        microbatch_size=microbatch_size,
        **values_of(settings),
    )
    doubts = doubts_of_own_machine(result.request.profile, machines.machine)
    notes = [*doubts_of_table(profile), *doubts, *map(in_flags, result.notes)]
    if out is not None:
        if out.name.endswith(".graph.txt"):
            emit(result.staged_graph(profile), out)
        else:
            emit(result.layers if suffix_of(out) == ".txt" else json_answer("partition", result.to_dict(), notes), out)
    said = result.table().noted([*notes, f"to simulate it: {_schedule(result, out)}"])
    print_answer("partition", result.to_dict(), notes, [said], is_json=json)
    if result.over is not None:
        stage, held, limit = result.over
        remedy = in_flags(ArgumentError(result.remedy()))
        complain(
            f"over memory: stage {stage}: got {readable_bytes(held)}, expected at most {readable_bytes(limit)}; "
            f"try {remedy}"
        )
        raise typer.Exit(NEGATIVE)


def _layers(file: Path, microbatch_size: int | None) -> Profile | Path:
    """Return the profile of the layers; a table is read here, with the size of its micro-batches."""
    if suffix_of(file) != ".csv":
        return file
    return measuring.profile_of_layers(file, microbatch_size or 1).profile


def _schedule(result: PartitionedModel, out: Path | None) -> str:
    """Return the options that simulate the stages: their layers, or, if needed, the graph with its stages."""
    partitioned, chunks, by = result.partitioned, result.request.num_chunks, result.request.by
    devices = sum(stage.replicas for stage in partitioned.stages) // chunks
    if chunks > 1:
        schedule = f"interleaved -p {devices} -v {chunks}"
    elif len(partitioned.stages) < devices:
        schedule = f"1f1b_rr -p {devices} --set replicas={partitioned.replicas}"
    else:
        schedule = f"{'pipedream' if by == 'replicas' else '1f1b'} -p {devices}"
    numbered = [device for stage in partitioned.stages for device in stage.devices]
    others = (
        ""
        if chunks > 1 or numbered == sorted(numbered)
        else "\nthe ranks of this schedule use the devices in order, not the devices of the table"
    )
    if result.is_told_by_layers:
        return f"--schedule {schedule} --partition {partitioned.partition}{others}"
    is_staged = out is not None and out.name.endswith(".graph.txt")
    file = f"{out}" if is_staged else "F.graph.txt, which --out F.graph.txt writes"
    return f"--schedule {schedule} --profile {file}{others}"


@grouped
def export(
    *,
    trainer: Annotated[TrainerName, typer.Argument(help="Trainer: torchtitan, megatron or deepspeed.")],
    schedule: ScheduleOptions,
    partition: Annotated[
        str | None,
        typer.Option(help="Layers of each stage: 3,3,4, or Megatron-LM's Ettt|ttt|tttL (default: as in the plan)."),
    ] = None,
    microbatch_size: Annotated[
        int | None, typer.Option(help="Samples per micro-batch (default: as in the plan).", min=1)
    ] = None,
    json: Json = False,
    out: Annotated[Path | None, out_option("Write the export: a script of bash, a .toml, or a .json")] = None,
) -> None:
    """Export a plan or schedule as flags or configuration for Megatron-LM, torchtitan or DeepSpeed.

    Megatron-LM takes an array of bash, torchtitan TOML, DeepSpeed JSON. An error names a part of the setting that the
    trainer cannot express.
    """
    check_outputs((out, ()))
    if schedule.step_barrier:
        raise InputError(
            "--step-barrier: got this option with export, expected no barrier option: trainers have the barrier by "
            "default; leave the option out"
        )
    if schedule.plan is None:
        text = exporting.export_setting(_setting(schedule, partition, microbatch_size), trainer)
    elif microbatch_size is not None:
        raise InputError(
            "--microbatch-size: got this option with --plan, which gives the size, expected only one of them; leave "
            "--microbatch-size out"
        )
    else:
        plan = replace(schedule, placement=None, recompute=None).read_plan()
        assert plan is not None, "it is given"
        text = exporting.export_setting(
            plan, trainer, placement=schedule.placement, partition=partition, recompute=schedule.recomputed_stages()
        )
    if out is not None:
        emit(text, out)
    if json:
        print_json("export", {"trainer": trainer, "text": text})
    elif out is None:
        emit(text, None)


def _setting(
    schedule: ScheduleOptions, partition: str | None, microbatch_size: int | None
) -> exporting.PipelineSetting:
    """Return the setting of a schedule by name, or of lists."""
    if partition is None or microbatch_size is None:
        option = "--partition" if partition is None else "--microbatch-size"
        raise InputError(f"{option}: got none, expected a value; try --partition 3,3,4 --microbatch-size 2, or --plan")
    schedule.load()  # refuses missing options
    return exporting.PipelineSetting(
        schedule_spec=schedule.schedule_spec(), partition=_stage_sizes(partition), microbatch_size=microbatch_size
    )


def _stage_sizes(partition: str) -> tuple[int, ...]:
    from pipesched.profiles import ProfileError

    try:
        return tuple(partitioning.stage_sizes(partition))
    except ProfileError as error:
        raise InputError(f"--{error}") from None
