"""``pipesched partition``: how to cut a model into stages, and how many devices to give each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, assert_never

import typer

from pipesched.cli.errors import NEGATIVE, InputError
from pipesched.cli.options.machine_options import MachineOptions
from pipesched.cli.options.schedule_options import Json, grouped, out_option
from pipesched.cli.output.output_files import check_outputs, emit
from pipesched.cli.output.terminal import complain, num_bytes, print_json, print_table, seconds

if TYPE_CHECKING:
    from pipesched.profiles.clusters import Cluster
    from pipesched.profiles.costs import Profile
    from pipesched.profiles.partitioning import Staging

By = Literal["replicas", "time", "memory"]
FormOption = Literal["paper", "published"]


@grouped
def partition(
    profile: Annotated[Path, typer.Argument(help="Profile (JSON), or a graph of PipeDream's profiler (.txt).")],
    workers: Annotated[int, typer.Option("--workers", "-p", help="Devices, all of them used.", min=1, max=100_000)],
    by: Annotated[
        By, typer.Option(help="Least time with PipeDream's replicas, least time or least memory without.")
    ] = "replicas",
    form: Annotated[FormOption, typer.Option(help="With replicas: PipeDream's formula, or its optimizer's.")] = "paper",
    straight: Annotated[bool, typer.Option("--straight", help="PipeDream's formula, but one device each.")] = False,
    chunks: Annotated[int, typer.Option("--chunks", "-v", help="By time: stages per device.", min=1, max=1024)] = 1,
    microbatch_size: Annotated[
        int | None, typer.Option(help="Samples per micro-batch; else the smallest.", min=1)
    ] = None,
    machines: MachineOptions = MachineOptions(),  # noqa: B008 -- frozen
    json: Json = False,
    out: Annotated[Path | None, out_option("Write it all: .json; or what --partition takes: .txt.")] = None,
) -> None:
    """Cut a model into stages and show what each costs. --out: .json, or .txt with what --partition takes.

    Exit code 1 when a stage does not fit into its devices.
    """
    check_outputs((out, (".txt", ".json")))
    if by != "replicas" and (form != "paper" or straight):
        raise InputError(f"--by {by}: got --form or --straight too, expected them with --by replicas; leave them out")
    if by != "time" and chunks != 1:
        raise InputError(f"--chunks: got {chunks} with --by {by}, expected it with --by time; leave it out")
    from pipesched.profiles.io import load_profile
    from pipesched.profiles.partitioning import over_memory

    cluster = machines.load(workers, "--workers")
    measured = load_profile(profile)
    size = microbatch_size or measured.microbatch_sizes[0]
    way = _Way(by, size, chunks, form, straight)
    staging = way.stages(measured, cluster, workers)
    over = over_memory(staging, cluster)
    data = {
        "model": measured.model,
        "by": by,
        "workers": workers,
        "microbatch_size": size,
        "partition": staging.partition,
        "replicas": staging.replicas,
        "slowest_s": staging.slowest_s,
        "fits": over is None,
        "stages": [{**asdict(stage), "replicas": stage.replicas} for stage in staging.stages],
    }
    if out is not None:
        _write(data, out)
    if json:
        print_json(data)
    elif out is None:
        _print(measured, staging, by, chunks)
    if over is not None:
        stage, held, limit = over
        complain(
            f"over memory: stage {stage}: got {num_bytes(held)}, expected at most {num_bytes(limit)}; "
            f"try {_remedy(way, staging, measured, cluster, workers)}"
        )
        raise typer.Exit(NEGATIVE)


@dataclass(frozen=True, slots=True)
class _Way:
    """How to cut a model, as the options say it."""

    by: By
    microbatch_size: int
    chunks: int = 1
    form: FormOption = "paper"
    straight: bool = False

    def stages(self, profile: Profile, cluster: Cluster, workers: int) -> Staging:
        from pipesched.profiles.partitioning import by_memory, by_replicas, by_time

        match self.by:
            case "replicas":
                size, form, straight = self.microbatch_size, self.form, self.straight
                return by_replicas(profile, size, cluster, workers, form=form, straight=straight)
            case "time":
                return by_time(profile, self.microbatch_size, cluster, workers, self.chunks)
            case "memory":
                return by_memory(profile, self.microbatch_size, cluster, workers)
            case _:
                assert_never(self.by)


def _remedy(way: _Way, staging: Staging, profile: Profile, cluster: Cluster, workers: int) -> str:
    """Return the first change of one option with which all fits, or the devices that would do."""
    from pipesched.profiles import ProfileError
    from pipesched.profiles.partitioning import over_memory

    changes = {f"--chunks {count}": replace(way, chunks=count) for count in range(way.chunks - 1, 0, -1)}
    if way.chunks == 1:
        others: tuple[By, ...] = ("time", "memory", "replicas")
        changes |= {f"--by {by}": replace(way, by=by) for by in others if by != way.by}
    smaller = [size for size in profile.microbatch_sizes if size < way.microbatch_size]
    changes |= {f"--microbatch-size {size}": replace(way, microbatch_size=size) for size in reversed(smaller)}
    for option, changed in changes.items():
        try:
            if over_memory(changed.stages(profile, cluster, workers), cluster) is None:
                return option
        except ProfileError:  # nothing fits
            continue
    return f"devices of {max(stage.memory_bytes for stage in staging.stages)} bytes"


def _write(data: dict[str, object], out: Path) -> None:
    import json

    emit(str(data["partition"]) if out.suffix == ".txt" else json.dumps(data, indent=2, allow_nan=False), out)


def _ranges(numbers: Sequence[int]) -> str:
    """Return ``0-2, 4`` for 0, 1, 2, 4."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _print(profile: Profile, staging: Staging, by: By, chunks: int) -> None:
    rows = [
        {
            "stage": str(index),
            "layers": _ranges(range(stage.first, stage.last)),
            "devices": _ranges(stage.devices),
            "forward": seconds(stage.forward_s),
            "backward": seconds(stage.backward_s),
            "per micro-batch": seconds(stage.compute_s),
            "reduce": seconds(stage.reduce_s),
            "transfer": seconds(stage.transfer_s),
            "weights": num_bytes(stage.weight_bytes),
            "output": num_bytes(stage.output_bytes),
            "memory": num_bytes(stage.memory_bytes),
        }
        for index, stage in enumerate(staging.stages)
    ]
    devices = sum(stage.replicas for stage in staging.stages) // chunks
    if chunks > 1:
        schedule = f"interleaved -p {devices} -v {chunks}"
    elif len(staging.stages) < devices:
        schedule = f"1f1b_rr -p {devices} --set replicas={staging.replicas}"
    else:
        schedule = f"{'pipedream' if by == 'replicas' else '1f1b'} -p {devices}"
    numbered = [device for stage in staging.stages for device in stage.devices]
    others = (
        "" if chunks > 1 or numbered == sorted(numbered) else "\nits ranks take the devices in order, not those above"
    )
    rate = f", at most {1 / staging.slowest_s:.4g} micro-batches/s" if staging.slowest_s else ""
    caption = (
        f"slowest: {seconds(staging.slowest_s)}{rate}\n"
        f"to simulate it: --schedule {schedule} --partition {staging.partition}{others}"
    )
    print_table(f"{profile.model} on {devices} devices", rows, caption)
