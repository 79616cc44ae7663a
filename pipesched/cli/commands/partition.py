"""``pipesched partition``: the cut of a model into stages, and the number of devices of each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import pipesched
from pipesched.cli.errors import NEGATIVE, in_flags
from pipesched.cli.options.common_options import Json, out_option
from pipesched.cli.options.machine_options import MachineOptions
from pipesched.cli.options.option_groups import grouped
from pipesched.cli.output.doubts import doubts_of_table
from pipesched.cli.output.output_files import check_outputs, emit
from pipesched.cli.terminal import complain, json_answer, num_bytes, print_json, print_result
from pipesched.questions import NumDevices, PartitionSettings, ProfiledSize
from pipesched.schedules.common import values_of
from pipesched.schedules.formats import suffix_of
from pipesched.workflows import ArgumentError

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
        out_option("Write the answer, .json, the argument of --partition, .txt, or a graph with stages, .graph.txt."),
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
    notes = [*doubts_of_table(profile), *result.notes]
    if out is not None:
        if out.name.endswith(".graph.txt"):
            emit(result.staged_graph(profile), out)
        else:
            emit(result.layers if suffix_of(out) == ".txt" else json_answer("partition", result.to_dict(), notes), out)
    if json:
        print_json("partition", result.to_dict(), notes)
    else:
        print_result(result.table(), [*notes, f"to simulate it: {_schedule(result, out)}"])
    if result.over is not None:
        stage, held, limit = result.over
        remedy = in_flags(ArgumentError(result.remedy()))
        complain(
            f"over memory: stage {stage}: got {num_bytes(held)}, expected at most {num_bytes(limit)}; try {remedy}"
        )
        raise typer.Exit(NEGATIVE)


def _layers(file: Path, microbatch_size: int | None) -> Profile | Path:
    """Return the profile of the layers; a table is read here, with the size of its micro-batches."""
    if suffix_of(file) != ".csv":
        return file
    from pipesched.workflows.measuring import profile_of_layers

    return profile_of_layers(file, microbatch_size or 1).profile


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
        "" if chunks > 1 or numbered == sorted(numbered) else "\nits ranks take the devices in order, not those above"
    )
    if result.is_told_by_layers:
        return f"--schedule {schedule} --partition {partitioned.partition}{others}"
    is_staged = out is not None and out.name.endswith(".graph.txt")
    file = f"{out}" if is_staged else "F.graph.txt, which --out F.graph.txt writes"
    return f"--schedule {schedule} --profile {file}{others}"
