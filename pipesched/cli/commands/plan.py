"""``pipesched plan``: a training plan for a model on given machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, NoReturn

import typer

import pipesched
from pipesched.cli.errors import NEGATIVE, InputError, in_flags
from pipesched.cli.options.machine_options import MachineOptions
from pipesched.cli.options.option_groups import Json, file_option, given_options, grouped, out_option
from pipesched.cli.options.torch_options import load_model
from pipesched.cli.output.notes import device_limit_lines, doubts_of_own_machine, doubts_of_table
from pipesched.cli.output.output_files import JSON as PLAN
from pipesched.cli.output.output_files import PAGE, TABLE, check_outputs, emit
from pipesched.cli.terminal import complain, json_answer, print_json, print_result, print_results, progress_bar
from pipesched.executor import LayerSettings
from pipesched.profiles import io, processes
from pipesched.questions import ConvertRate, InputShare, LayoutSettings, PlanLimits, PlanSettings, TrainerName
from pipesched.schedules.common import MAX_NUMBER, Counts, Description, declared, tuple_of, values_of
from pipesched.schedules.formats import suffix_of
from pipesched.simulator import NetworkOptions
from pipesched.simulator.analysis import TABLE_FORMATS
from pipesched.simulator.views import FIGURE_SUFFIXES, save_figure
from pipesched.workflows import measuring, simulating

if TYPE_CHECKING:
    from pipesched.profiles.clusters import Cluster, Gpu
    from pipesched.profiles.costs import Profile
    from pipesched.workflows.planning import LayoutSearch, PlanSearch


_MOST_PROFILED = 8
"""Default number of samples in the largest measured micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConditions:
    """Options for compression, backwards and the network."""

    convert_bytes_per_s: ConvertRate = None
    input_share: InputShare = None
    network: NetworkOptions = NetworkOptions()  # noqa: RUF009 -- frozen

    def setup(self, profile: Profile, cluster: Cluster) -> simulating.Setup:
        """Return the setup with a profile and machines."""
        return simulating.Setup(
            profile,
            cluster,
            self.network,
            input_share=self.input_share,
            convert_bytes_per_s=self.convert_bytes_per_s,
        )


@dataclass(frozen=True, kw_only=True)
class LayoutOptions(LayoutSettings):
    """Options for planning a transformer that is estimated."""

    gpu: Annotated[
        str | None,
        typer.Option(help="Data sheet of the GPUs, as h100, or a file (JSON) (default: the GPU of --machine)."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions(LayerSettings):
    """Options for profiling a model without a given profile."""

    panel: ClassVar[str] = "Run"
    microbatch_sizes: Annotated[
        Counts | None,
        Description(
            "Samples per micro-batch: the sizes to measure of a model, as 1,2,4, or the one size of a table of layers.",
            least=1,
            most=MAX_NUMBER,
        ),
    ] = None

    def load(self, what: str, batch_size: int, num_devices: int) -> Profile:
        """Read a profile, or measure the model of that name.

        Raises:
            InputError: A profile, and options for measuring one.
            ProfileError: The text is neither a file nor a model, or the model fails.
        """
        if suffix_of(what) == ".csv":
            return self._of_table(what)
        if io.names_profile(what):
            if self != ModelOptions():
                raise InputError(
                    f"{what}: got a profile and an option for measuring one, expected only one of them; leave the "
                    "option out"
                )
            return io.load_profile(what)
        sizes = [2**power for power in range(4) if 2**power <= min(batch_size, _MOST_PROFILED)]
        if self.microbatch_sizes is not None:
            sizes = list(tuple_of(self.microbatch_sizes))
        model = load_model(what)
        companions = processes.num_companions(num_devices, self.device)
        with progress_bar(f"profiling {model.name}") as tick:
            return pipesched.profile(
                model, sizes, companions=companions, progress=tick, **values_of(self, LayerSettings)
            ).profile

    def _of_table(self, file: str) -> Profile:
        """Return the profile of a table of layers; the table is for one micro-batch size."""
        sizes = () if self.microbatch_sizes is None else tuple_of(self.microbatch_sizes)
        if len(sizes) != 1 or self != ModelOptions(microbatch_sizes=self.microbatch_sizes):
            raise InputError(
                f"{file}: got a table of layers, expected --microbatch-sizes with the one size of the table, and no "
                "other option of a model; try --microbatch-sizes 1, or, for more sizes, 'pipesched profile "
                f"--layer-costs {file}'"
            )
        return measuring.profile_of_layers(file, sizes[0]).profile


PlannedModel = Annotated[
    str,
    typer.Argument(
        help=(
            "Profile (JSON), graph (.txt), table of layers (CSV), transformer to estimate (llama3-70b, "
            "hf:config.json, transformer:layers=..), or another model, which is measured first."
        )
    ),
]


@grouped
def plan(
    profile: PlannedModel,
    machines: MachineOptions,
    asked: PlanSettings,
    layout: LayoutOptions = LayoutOptions(),
    conditions: PlanConditions = PlanConditions(),
    model: ModelOptions = ModelOptions(),
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help=(
                "Print the causes of idle time under the best plan, and its critical path; for a transformer, the time "
                "of the best layout with each choice."
            ),
        ),
    ] = False,
    plot: Annotated[
        Path | None, file_option("Draw the best plan, on its devices and over time", FIGURE_SUFFIXES)
    ] = None,
    json: Json = False,
    out: Annotated[
        list[Path] | None,
        out_option(
            "Write the best plan (.json) or a page of all plans (.html); for a transformer, a table of layouts",
            is_repeatable=True,
        ),
    ] = None,
) -> None:
    """Find the fastest layout, schedule and partition that fits (--out: a plan for 'run --plan' and 'train --plan').

    For a transformer, also find tensor, context and expert parallelism, ZeRO and micro-batch sizes, from estimates.
    Counts are lists and ranges: 1,2,4 or 1:8:x2. Ctrl-C ends the search with the best plan so far. Exits with 1 if
    nothing fits.
    """
    if asked.trainer is not None:
        _require_flags_alone(out or (), explain=explain, is_json=json)
    if io.names_shape(profile) or layout.gpu is not None:
        _require_none(_not_of_layouts(asked, conditions, model, plot), f"{profile}, a transformer to estimate")
        check_outputs(*((path, TABLE) for path in out or ()))
        layouts = _planned_layouts(profile, machines, asked, layout, model.microbatch_sizes)
        _print_layouts(layouts, asked.trainer, out or (), explain=explain, is_json=json)
        return
    _require_none(given_options(layout), f"{profile}, which is not a transformer to estimate, such as llama3-70b")
    check_outputs(*((path, (*PLAN, PAGE)) for path in out or ()), (plot, FIGURE_SUFFIXES))
    result = _planned(profile, machines, asked, conditions, model)
    cluster = result.request.cluster
    doubts = [*doubts_of_table(profile), *doubts_of_own_machine(result.request.profile, machines.machine)]
    if result.best is None:
        _end_without_plan(result, [*doubts, *result.notes], is_json=json)
    remarks = [*device_limit_lines(machines, cluster, range(len(cluster.devices))), *doubts]
    for path in out or ():
        _write(result, remarks, path)
    _print_plans(result, asked.trainer, remarks, doubts, explain=explain, is_json=json)
    if plot is not None:
        save_figure(result.plot, plot)


def _planned(
    profile: str, machines: MachineOptions, asked: PlanSettings, conditions: PlanConditions, model: ModelOptions
) -> PlanSearch:
    """Search the plans of a model that is profiled, or measured now."""
    from pipesched.workflows.planning import require_planning

    require_planning(asked)
    cluster = machines.load_first(asked.num_devices, "--devices", "plan")
    costs = model.load(profile, asked.batch_size, len(cluster.devices))
    machines.require_suited(costs)
    with progress_bar(f"planning for {len(cluster.devices)} devices") as tick:
        return pipesched.plan(conditions.setup(costs, cluster), **values_of(asked), progress=tick)


def _print_plans(
    result: PlanSearch,
    trainer: TrainerName | None,
    remarks: Sequence[str],
    doubts: Sequence[str],
    *,
    explain: bool,
    is_json: bool,
) -> None:
    """Print the best plan for a trainer; or all plans, as JSON with `doubts` or as tables with `remarks`."""
    from pipesched.cli.output.plan_print import explained, print_explained

    request, best = result.request, result.best
    assert best is not None, "a plan fits"
    if trainer is not None:
        emit(result.export(trainer), None)
        return
    if is_json:
        data = result.to_dict() | (explained(best, request) if explain else {})
        print_json("plan", data, [*doubts, *result.notes])
        return
    print_results(result.tables(remarks, in_flags))
    if explain:
        print_explained(best, request)


def _not_of_layouts(
    asked: PlanSettings, conditions: PlanConditions, model: ModelOptions, plot: Path | None
) -> list[str]:
    """Return the given options that a search of layouts does not take."""
    strange = [*given_options(asked, {*declared(PlanLimits), "num_devices"}), *given_options(conditions)]
    return [*strange, *given_options(model, {"microbatch_sizes"}), *(["--plot"] if plot is not None else [])]


def _planned_layouts(
    model: str, machines: MachineOptions, asked: PlanSettings, layout: LayoutOptions, sizes: Counts | None
) -> LayoutSearch:
    """Search the layouts of a transformer that is estimated."""
    from pipesched.workflows.planning import gpu_of

    cluster = _gpus(machines, asked.num_devices, layout.gpu)
    gpu: str | Gpu | None = layout.gpu
    if gpu is None and machines.machine and machines.memory_limit:
        # a GPU is recognised by its memory, which the limit replaces in the cluster
        gpu = gpu_of(_gpus(replace(machines, memory_limit=None), asked.num_devices, None))
    with progress_bar(f"planning for {len(cluster.devices)} GPUs") as tick:
        return pipesched.plan_layout(
            model, cluster, **values_of(asked, PlanLimits), **values_of(layout, LayoutSettings), gpu=gpu, sizes=sizes,
            progress=tick,
        )  # fmt: skip


def _print_layouts(
    result: LayoutSearch, trainer: TrainerName | None, out: Sequence[Path], *, explain: bool, is_json: bool
) -> None:
    """Print the layouts, with each choice explained if requested, or the best layout for a trainer; write tables."""
    if result.best is None and not result.ranking.is_complete:
        raise KeyboardInterrupt  # before there was anything to say
    for path in out:
        is_answer = suffix_of(path) in PLAN
        emit(
            json_answer("plan", result.to_dict(), result.notes)
            if is_answer
            else TABLE_FORMATS[suffix_of(path)](result.to_rows()),
            path,
        )
    if is_json:
        print_json("plan", result.to_dict(), result.notes)
    elif result.best is not None and trainer is not None:
        emit(result.export(trainer), None)
    elif result.best is not None:
        print_result(result.table(), result.notes)
    if explain and not is_json:
        print_result(result.choices_table())
    if result.best is None:
        complain(in_flags(result.nothing_fits))
        raise typer.Exit(NEGATIVE)


def _gpus(machines: MachineOptions, num_devices: int | None, gpu: str | None) -> Cluster:
    """Return the GPUs; a named one stands in its usual node, with its own memory, unless a node is given."""
    is_placed = machines.machine is not None or machines.gpus is not None
    if gpu is not None and not is_placed:
        machines = replace(machines, machine=io.load_gpu(gpu).machine)
    cluster = machines.load_first(num_devices, "--devices", "plan")
    if gpu is None or is_placed or machines.memory_limit is not None:
        return cluster
    return replace(cluster, devices=tuple(replace(device, memory_bytes=None) for device in cluster.devices))


def _require_none(options: Sequence[str], what: str) -> None:
    """Refuse options that do not go with `what`.

    Raises:
        InputError: Such an option is given.
    """
    if options:
        raise InputError(f"{options[0]}: got this option with {what}, expected no such option; leave it out")


def _require_flags_alone(out: Sequence[Path], *, explain: bool, is_json: bool) -> None:
    """Refuse another output on stdout beside the flags, and an output file for the flags.

    Raises:
        InputError: Such an output is requested.
    """
    if is_json or explain:
        other = "--json" if is_json else "--explain"
        raise InputError(
            f"--export: got {other} too, expected only one of them, because --export prints nothing else; leave one out"
        )
    for path in out:
        if suffix_of(path) not in {*PLAN, *TABLE, PAGE}:
            raise InputError(
                f"--out: got {path} with --export, expected no file, because --export prints the flags; try > {path}"
            )


def _end_without_plan(result: PlanSearch, notes: Sequence[str], *, is_json: bool) -> NoReturn:
    """End the command after a search that found no plan."""
    from pipesched.cli.output.plan_print import nothing_fits

    if not result.ranking.is_complete:
        raise KeyboardInterrupt  # before there was anything to say
    if is_json:
        print_json("plan", result.to_dict(), notes)
    complain(nothing_fits(result.ranking, result.request))
    raise typer.Exit(NEGATIVE)


def _write(result: PlanSearch, notes: Sequence[str], out: Path) -> None:
    """Write the best plan, or a page of all of them."""
    if suffix_of(out) == PAGE:
        emit(result.page(notes), out)
    else:
        result.save(out)
