"""``pipesched profile`` and ``profile-links``: costs of models and of links, measured, estimated or from runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

import pipesched
from pipesched.cli.errors import InputError
from pipesched.cli.options.cost_options import RunCostOptions, run_files
from pipesched.cli.options.option_groups import Json, file_option, given_options, grouped, out_option
from pipesched.cli.options.torch_options import ModelChoice
from pipesched.cli.options.values import parse_bytes
from pipesched.cli.output.notes import doubts_of_table
from pipesched.cli.output.output_files import CSV, JSON, check_outputs, emit, print_answer
from pipesched.cli.terminal import print_result, progress_bar
from pipesched.profiles import io
from pipesched.profiles.costs import LayerSharding
from pipesched.profiles.processes import LoadMeter
from pipesched.questions import InputShare, LinkSettings, NumRanks, ProfiledSizes, ProfileSettings
from pipesched.schedules.common import tuple_of, values_of
from pipesched.workflows import arguments, busy_machine, measuring

if TYPE_CHECKING:
    from pipesched.workflows.measuring import GpuFit, KernelMeasurement, MeasuredCosts, ProfileMeasurement, RunsArgument

_GPUS = (
    "a10, a100, a100-40gb, b200, b300, gb200, gb300, h100, h100-96gb, h20, h200, h800, l4, l40s, mi300x, mi355x, v100"
)
"""The names in `profiles.io.loading`, written here because loading that package takes time."""


@dataclass(frozen=True, kw_only=True)
class LayerOptions(ProfileSettings):
    """Options for measuring layers."""

    microbatch_sizes: ProfiledSizes = None


@dataclass(frozen=True, kw_only=True)
class GpuOptions:
    """Options for estimating layers."""

    panel: ClassVar[str] = "Estimate"

    gpu: Annotated[
        str | None,
        typer.Option(
            help=f"Estimate the profile for this GPU instead of measuring it here: {_GPUS}, or a file (JSON)."
        ),
    ] = None
    machine: Annotated[
        str | None,
        typer.Option(help="Node of the GPUs, as dgx-h100, or a file (JSON) (default: the usual node of the GPU)."),
    ] = None
    sharding: LayerSharding = LayerSharding()  # noqa: RUF009 -- frozen


@dataclass(frozen=True, kw_only=True)
class KernelOptions:
    """Options for kernels in place of layers."""

    shapes: Annotated[
        Path | None,
        file_option("Measure matrix products and attention on this machine, in place of MODEL; write their table", CSV),
    ] = None
    fit: Annotated[
        Path | None,
        typer.Option(
            help="Fit the kernel speeds of --gpu to a table from --shapes; --out writes the new GPU (JSON), for --gpu."
        ),
    ] = None


@grouped
def profile(
    *,
    model: ModelChoice,
    runs: Annotated[
        str | None, typer.Option("--from", help="Measured Timelines in place of MODEL, as run.json,run2.json.")
    ] = None,
    layers: LayerOptions,
    estimate: GpuOptions,
    kernels: KernelOptions,
    known: RunCostOptions,
    stages: Annotated[
        bool, typer.Option("--stages", help="Write costs of stages, with hand-over, also for runs with a profile.")
    ] = False,
    input_share: InputShare = None,
    json: Json = False,
    out: Annotated[Path | None, out_option("Write the profile, or the costs of the runs' stages", JSON)] = None,
) -> None:
    """Measure seconds and bytes of every layer at several micro-batch sizes, or take them from runs (--from).

    Measures also an optimizer step, a copy of the weights, a predicted copy, and averaging with a reference model.
    --gpu estimates all of this for a transformer, as llama3-70b, from its operators and a data sheet. Runs alone give
    the median and spread of every op of a stage, hand-over and messages, as a file for --stage-costs. Runs and
    --profile give a profile with the seconds of the runs. --layer-costs and --microbatch-size alone give a profile
    too. --shapes measures kernels of this machine, and --fit makes a file for --gpu of them.
    """
    meter, notes = LoadMeter(), list[str]()
    check_outputs((out, JSON), (kernels.shapes, CSV))
    name = model.name
    if kernels != KernelOptions():
        is_alone = (name, runs, known, stages, input_share) == (None, None, RunCostOptions(), False, None)
        _print_kernels(kernels, layers, estimate, is_alone=is_alone, is_json=json, out=out)
        return
    is_table = name is None and runs is None and known.layer_costs is not None
    if (name is None) == (runs is None) and not is_table:
        got = "none" if name is None else "both"
        raise InputError(f"profile: got {got} of MODEL and --from, expected one; try 'pipesched profile gpt'")
    if input_share is not None and not is_table:
        raise InputError("--input-share: got no table of layers, expected --layer-costs too; leave --input-share out")
    measured: ProfileMeasurement | MeasuredCosts
    if is_table:
        measured = _of_table(known, layers, estimate, stages, input_share)
    elif runs is None:
        _require_unused("--from", [*given_options(known), *(["--stages"] if stages else [])])
        assert name is not None
        if estimate.gpu is None:
            _require_unused("--gpu", given_options(estimate))
            notes = busy_machine(meter.others(), layers.companions + 1) if layers.device == "cpu" else []
            measured = _measured(name, layers)
        else:
            measured = _estimated(name, layers, estimate)
    else:
        _require_unused("MODEL", [*given_options(layers), *given_options(estimate)])
        measured = _from_runs(run_files(runs, "--from"), known.keywords(), stages)
        notes = doubts_of_table(known.layer_costs)
    if out is not None:
        measured.save(out)
    if json:
        emit(measured.to_json(), None)
    else:
        print_result(measured.table(), [*notes, *measured.notes])


def _print_kernels(
    kernels: KernelOptions,
    layers: LayerOptions,
    estimate: GpuOptions,
    *,
    is_alone: bool,
    is_json: bool,
    out: Path | None,
) -> None:
    """Print and write the kernels that --shapes measures, or the GPU that --fit fits."""
    if not is_alone:
        raise InputError(
            "profile: got --shapes or --fit with a model, costs or runs, expected only --shapes or --fit; leave the "
            "others out"
        )
    answer = _of_kernels(kernels, layers, estimate, out)
    print_answer("profile", answer.to_dict(), answer.notes, [answer.table().noted(answer.notes)], is_json=is_json)


def _of_kernels(
    kernels: KernelOptions, layers: LayerOptions, estimate: GpuOptions, out: Path | None
) -> KernelMeasurement | GpuFit:
    """Return the kernels that --shapes measures, or the GPU that --fit fits, and write them."""
    if kernels.shapes is not None:
        if kernels.fit is not None or estimate != GpuOptions() or out is not None:
            raise InputError(
                "--shapes: got --fit, --gpu or --out too, expected --shapes alone; fit the table afterwards"
            )
        chosen = {name: getattr(layers, name) for name in ("device", "dtype", "threads", "repeats", "seed")}
        if layers != LayerOptions(**chosen):
            raise InputError(
                f"--shapes: got another option of layers, expected only --{', --'.join(chosen)}; leave it out"
            )
        with progress_bar("measuring kernels") as tick:
            measured = measuring.profile_kernels(**chosen, progress=tick)
        measured.save(kernels.shapes)
        return measured
    if estimate.gpu is None or estimate != GpuOptions(gpu=estimate.gpu) or layers != LayerOptions():
        got = "a table without --gpu" if estimate.gpu is None else "options of layers or of an estimate too"
        raise InputError(f"--fit: got {got}, expected --gpu and --out; try --fit shapes.csv --gpu h100 --out mine.json")
    assert kernels.fit is not None, "as just asked"
    fitted = measuring.fit_gpu(kernels.fit, estimate.gpu)
    if out is not None:
        fitted.save(out)
    return fitted


def _require_unused(missing: str, given: Sequence[str]) -> None:
    if given:
        advice = "try --microbatch-sizes" if given[0] == "--microbatch-size" else "leave it out"
        raise InputError(f"{given[0]}: got this option without {missing}, expected both; {advice}")


def _of_table(
    known: RunCostOptions, layers: LayerOptions, estimate: GpuOptions, stages: bool, share: float | None
) -> ProfileMeasurement:
    """Return the profile of a table of layers."""
    of_runs = given_options(known, {"layer_costs", "microbatch_size"})
    _require_unused("--from", [*of_runs, *(["--stages"] if stages else [])])
    _require_unused("MODEL", [*given_options(layers, {"microbatch_sizes"}), *given_options(estimate)])
    assert known.layer_costs is not None, "as just asked"
    sizes = None if layers.microbatch_sizes is None else tuple_of(layers.microbatch_sizes)
    return measuring.profile_of_layers(known.layer_costs, known.microbatch_size or 1, sizes, input_share=share)


def _from_runs(runs: RunsArgument, known: dict[str, Any], stages: bool) -> ProfileMeasurement | MeasuredCosts:
    """Return the given profile with the seconds of runs, or, without a profile or on request, costs of stages."""
    if known["profile"] is None or known["output_bytes"] is not None or stages:
        return measuring.costs_from_runs(runs, **known)
    del known["output_bytes"]
    return measuring.profile_from_runs(runs, **known)


def _measured(model: str, options: LayerOptions) -> ProfileMeasurement:
    with progress_bar("profiling") as tick:
        return pipesched.profile(model, **values_of(options), progress=tick)


def _estimated(model: str, options: LayerOptions, estimate: GpuOptions) -> ProfileMeasurement:
    sizes, optimizer = options.microbatch_sizes, options.optimizer
    if options.dtype != LayerOptions().dtype:
        raise InputError(
            f"--dtype: got {options.dtype} with --gpu, expected --precision, the number type of matrix products; "
            f"try --precision {options.dtype}"
        )
    measured = given_options(options, {"microbatch_sizes", "optimizer"})
    if measured:
        raise InputError(
            f"{measured[0]}: got this option with --gpu, which measures nothing, expected only one of them; leave one "
            "out"
        )
    assert estimate.gpu is not None, "as just asked"
    settings = values_of(estimate.sharding)
    return pipesched.analytic_profile(
        model, estimate.gpu, sizes, machine=estimate.machine, optimizer=optimizer, **settings
    )


@grouped
def profile_links(
    *,
    out: Annotated[Path, out_option("Write the cluster", JSON)],
    num_ranks: NumRanks = 2,
    settings: LinkSettings,
    sizes: Annotated[
        str | None, typer.Option(help="Sizes of the messages, as 1KiB,256KiB (default: 1 KiB to 4 MiB).")
    ] = None,
    json: Json = False,
) -> None:
    """Measure every pair of ranks by ping-pong, and write the cluster; over gloo, also measure two ranks that compute.

    Under torchrun, measure its ranks on all its nodes, by ping-pong alone.
    """
    check_outputs((out, JSON))
    sizes_bytes = None if sizes is None else [parse_bytes(size, "--sizes") for size in sizes.split(",")]
    if "RANK" in os.environ:
        from pipesched.profiles.measuring import main

        if settings.backend == "nccl":
            arguments.require_gpu("backend: got nccl", "`backend=gloo`")

        measure = ["--out", str(out), "--backend", settings.backend, "--repeats", str(settings.repeats)]
        raise typer.Exit(main(measure if sizes_bytes is None else [*measure, "--sizes", *map(str, sizes_bytes)]))
    with progress_bar("measuring links"):
        measurement = measuring.profile_links(num_ranks, sizes_bytes=sizes_bytes, **values_of(settings))
    measurement.save(out)
    if json:
        emit(io.cluster_text(measurement.cluster, str(out)), None)
    else:
        print_result(measurement.table())
