"""``pipesched plan``: a training plan for a model on given machines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

import pipesched
from pipesched.cli.errors import NEGATIVE, InputError, in_flags
from pipesched.cli.options.machine_options import MachineOptions
from pipesched.cli.options.option_groups import Json, file_option, grouped, out_option
from pipesched.cli.options.plan_options import ModelOptions, PlanConditions
from pipesched.cli.output.notes import device_limit_lines, doubts_of_own_machine, doubts_of_table
from pipesched.cli.output.output_files import JSON as PLAN
from pipesched.cli.output.output_files import PAGE, check_outputs, emit
from pipesched.cli.terminal import complain, print_json, print_results, progress_bar
from pipesched.questions import PlanSettings
from pipesched.schedules.common import values_of
from pipesched.schedules.formats import suffix_of
from pipesched.simulator.views import FIGURE_SUFFIXES, save_figure

if TYPE_CHECKING:
    from pipesched.workflows.planning import PlanSearch


@grouped
def plan(
    profile: Annotated[
        str,
        typer.Argument(help="Profile (JSON), graph (.txt), table of layers (CSV), or a model, measured first."),
    ],
    machines: MachineOptions,
    asked: PlanSettings,
    conditions: PlanConditions = PlanConditions(),  # noqa: B008 -- frozen
    model: ModelOptions = ModelOptions(),  # noqa: B008
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Print the causes of idle time under the best plan, and its critical path."),
    ] = False,
    plot: Annotated[
        Path | None, file_option("Draw the best plan, on its devices and over time", FIGURE_SUFFIXES)
    ] = None,
    json: Json = False,
    out: Annotated[
        list[Path] | None, out_option("Write the best plan, .json, or a page of all plans, .html", is_repeatable=True)
    ] = None,
) -> None:
    """Find the fastest layout, schedule and partition that fits (--out: a plan for 'run --plan' and 'train --plan').

    Counts are lists and ranges: 1,2,4 or 1:8:x2. Ctrl-C ends the search with the best plan so far. Exits with 1 if
    nothing fits.
    """
    from pipesched.cli.output.plan_print import explained, print_explained
    from pipesched.workflows.planning import require_planning

    if asked.trainer is not None and (json or explain):
        other = "--json" if json else "--explain"
        raise InputError(f"--export: got {other} too, expected none, as nothing else is printed then; leave one out")
    check_outputs(*((path, (*PLAN, PAGE)) for path in out or ()), (plot, FIGURE_SUFFIXES))
    require_planning(asked)
    cluster = machines.load_first(asked.num_devices, "--devices", "plan")
    costs = model.load(profile, asked.batch_size, len(cluster.devices))
    machines.require_judged_profile(costs)
    machines.require_gpus(costs)
    setup = conditions.setup(costs, cluster)
    with progress_bar(f"planning for {len(cluster.devices)} devices") as tick:
        result = pipesched.plan(setup, **values_of(asked), progress=tick)
    request, best = result.request, result.best
    doubts = [*doubts_of_table(profile), *doubts_of_own_machine(costs, machines.machine)]
    notes = [*doubts, *result.notes]
    if best is None:
        _end_without_plan(result, notes, is_json=json)
    limit = device_limit_lines(machines, cluster, range(len(cluster.devices)))
    for path in out or ():
        _write(result, [*limit, *doubts], path)
    if asked.trainer is not None:
        emit(result.export(asked.trainer), None)
    elif json:
        print_json("plan", result.to_dict() | (explained(best, request) if explain else {}), notes)
    else:
        print_results(result.tables([*limit, *doubts], in_flags))
        if explain:
            print_explained(best, request)
    if plot is not None:
        save_figure(result.plot, plot)


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
