"""``pipesched plan``: a training plan for a model on given machines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipesched.cli.errors import NEGATIVE, InputError
from pipesched.cli.options.common_options import Json, out_option
from pipesched.cli.options.option_groups import grouped
from pipesched.cli.options.plan_options import ModelOptions, RequestOptions
from pipesched.cli.output.doubts import doubts_of_table
from pipesched.cli.output.memory_lines import device_limit_lines
from pipesched.cli.output.output_files import JSON as PLAN
from pipesched.cli.output.output_files import PAGE, check_outputs, emit
from pipesched.cli.terminal import complain, print_json, progress_bar
from pipesched.schedules.formats import suffix_of
from pipesched.workflows import MAX_PROCESSES, TrainerName, given_stages, gpus_in_all, other_device, unknown_bytes

if TYPE_CHECKING:
    from pipesched.workflows.planning import PlanSearch


@grouped
def plan(
    profile: Annotated[
        str,
        typer.Argument(help="Profile (JSON), graph (.txt), table of layers (CSV), or a model, measured first."),
    ],
    request: RequestOptions,
    model: ModelOptions = ModelOptions(),  # noqa: B008 -- frozen
    top: Annotated[int, typer.Option(help="Plans to rank.", min=1, max=1000)] = 10,
    time_limit: Annotated[
        float,
        typer.Option(
            help="Seconds of the search; it ends with the best plan so far, once it has one.", min=0.0, max=1e6
        ),
    ] = 20.0,
    workers: Annotated[
        int | None,
        typer.Option(help="Processes (default: one per core if that is faster).", min=1, max=MAX_PROCESSES),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Print the causes of idle time under the best plan, and its critical path."),
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the best plan, on its devices and over time: .png, .svg or .pdf.")
    ] = None,
    export: Annotated[
        TrainerName | None,
        typer.Option(help="Search plans that this trainer runs; print only the best, as its flags or configuration."),
    ] = None,
    json: Json = False,
    out: Annotated[
        list[Path] | None, out_option("Write the best plan, .json, or a page of all plans, .html; repeatable.")
    ] = None,
) -> None:
    """Find the fastest layout, schedule and partition that fits (--out: a plan for 'run --plan' and 'train --plan').

    Ctrl-C ends the search with the best plan so far. Exits with 1 if nothing fits.
    """
    from pipesched.cli.output.plan_print import (
        explained,
        exportable,
        nothing_fits,
        plans_to_dict,
        print_explained,
        print_plans,
    )
    from pipesched.simulator.views import FIGURE_SUFFIXES
    from pipesched.workflows.planning import for_trainer, search_request

    if export is not None and (json or explain):
        other = "--json" if json else "--explain"
        raise InputError(f"--export: got {other} too, expected none, as nothing else is printed then; leave one out")
    check_outputs(*((path, (*PLAN, PAGE)) for path in out or ()), (plot, FIGURE_SUFFIXES))
    asked = for_trainer(request.load(profile, model), export)
    with progress_bar(f"planning for {len(asked.cluster.devices)} devices") as tick:
        result = search_request(asked, top, time_limit, workers, tick)
    ranking, best = result.ranking, result.best
    notes = [
        *doubts_of_table(profile),
        *gpus_in_all(asked.profile, len(asked.cluster.devices)),
        *other_device(asked.profile, request.machines.machine),
        *unknown_bytes(asked.profile),
        *given_stages(asked.profile),
        *ranking.notes,
    ]
    if best is None and not ranking.is_complete:
        raise KeyboardInterrupt  # before there was anything to say
    if best is None:
        if json:
            print_json("plan", plans_to_dict(result), notes)
        complain(nothing_fits(ranking, asked))
        raise typer.Exit(NEGATIVE)
    limit = device_limit_lines(request.machines, asked.cluster, range(len(asked.cluster.devices)))
    said = [*limit, *notes, *request.untried()]
    for path in out or ():
        _write(result, said, path)
    if export is not None:
        emit(result.export(export), None)
    elif json:
        print_json("plan", plans_to_dict(result) | (explained(best, asked) if explain else {}), notes)
    else:
        print_plans(ranking, asked, [*said, *exportable(result)])
        if explain:
            print_explained(best, asked)
    if plot is not None:
        from pipesched.simulator.views import draw_plan

        draw_plan(best, asked, plot)


def _write(result: PlanSearch, notes: Sequence[str], out: Path) -> None:
    """Write the best plan, or a page of all of them."""
    from pipesched.cli.output.plan_print import page_of_plans

    if suffix_of(out) == PAGE:
        emit(page_of_plans(result, notes), out)
    else:
        result.save(out)
