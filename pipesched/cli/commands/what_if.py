"""``pipesched what-if``: the predicted effect of another schedule, cut or machine on a measured run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import pipesched
from pipesched.cli.errors import InputError
from pipesched.cli.options.cost_options import RunCostOptions, run_files
from pipesched.cli.options.machine_options import slow_part
from pipesched.cli.options.option_groups import Json, file_option, grouped, out_option
from pipesched.cli.options.schedule_options import ScheduleOptions
from pipesched.cli.options.values import number, pairs
from pipesched.cli.output.notes import doubts_of_table
from pipesched.cli.output.output_files import JSON, check_outputs, print_answer
from pipesched.cli.terminal import progress_bar
from pipesched.questions import WhatIfSettings
from pipesched.schedules.common import values_of
from pipesched.simulator import views
from pipesched.simulator.views import GANTT_SUFFIXES
from pipesched.workflows import measuring

if TYPE_CHECKING:
    from pipesched.workflows.measuring import RunsArgument

_NUMBER = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[-+]?[0-9]{1,2})?"


@dataclass(frozen=True, kw_only=True)
class ChangeOptions:
    """Options for other links, other speeds, and the machines of the run."""

    link: Annotated[
        str | None,
        typer.Option(help="Other links: bandwidth=x2, latency=x0.5, or latency=10us,bandwidth=10GB/s."),
    ] = None
    slow: Annotated[
        list[str] | None,
        typer.Option(help="Straggler, device=3,factor=1.2, or slow link, link=0-1,factor=2; repeatable."),
    ] = None
    heal: Annotated[
        list[int] | None, typer.Option(help="Slow device of the run, to be as fast as its peers; repeatable.")
    ] = None
    cluster: Annotated[
        Path | None, typer.Option(help="Machines of the run (JSON) (default: message times from the run).")
    ] = None

    def keywords(self) -> dict[str, Any]:
        """Return the options as keywords of `pipesched.what_if`.

        Raises:
            InputError: The text of an option is not a valid change.
        """
        return {**_links(self.link), **_slow(self.slow or ()), "heal": self.heal or (), "cluster": self.cluster}


@grouped
def what_if(
    run: Annotated[
        str, typer.Argument(help="Measured Timeline; further Timelines, as run.json,other.json, add costs.")
    ],
    *,
    schedule: ScheduleOptions,
    change: ChangeOptions,
    known: RunCostOptions,
    settings: WhatIfSettings,
    gantt: Annotated[Path | None, file_option("Draw the run and the change", GANTT_SUFFIXES)] = None,
    json: Json = False,
    out: Annotated[Path | None, out_option("Write the output of --json", JSON)] = None,
) -> None:
    """Predict the effect of a change on a measured run.

    Both predictions use the costs of the run, so the speed of its machine cancels. Every option that differs from the
    run is applied, also several at once. The interval is the spread of the measured seconds.
    """
    check_outputs((gantt, GANTT_SUFFIXES), (out, JSON))
    runs = run_files(run, "run")
    asked = _asked(schedule, runs) | change.keywords() | known.keywords() | values_of(settings)
    with progress_bar("predicting") as tick:
        result = pipesched.what_if(runs, **asked, progress=tick)
    notes = [*result.notes, *doubts_of_table(known.layer_costs)]
    said = result.table().noted(notes)
    if gantt is not None:
        views.draw_gantt([result.before, result.after], gantt, notes=said.lines(()))
    print_answer("what-if", result.to_dict(), notes, [said], is_json=json, out=out)


def _asked(options: ScheduleOptions, runs: RunsArgument) -> dict[str, Any]:
    """Return the requested schedule; options that are left open are as in the run."""
    if options == ScheduleOptions(recompute=options.recompute, recompute_when=options.recompute_when):
        return {"recompute": options.recomputed_stages(), "recompute_when": options.recompute_when}
    if options.plan is not None:
        raise InputError("--plan: got a plan, expected a schedule: a plan also changes the layers; try --schedule")
    from pipesched.schedules import schedule_of
    from pipesched.workflows.what_if import as_in_run, recompute_when_of

    lists = schedule_of(measuring.read_runs(runs)[0][0])
    if options.recompute is not None and options.recompute_when is None:
        options = replace(options, recompute_when=recompute_when_of(lists))
    if options.schedule_file is not None:
        return {"schedule": options.source()}
    name, counts = as_in_run(lists, options.schedule, options.counts, options.width or 1)
    return {"schedule": replace(options, schedule=str(name), counts=counts).source()}


def _links(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    changes = pairs(text, "--link", ("latency_s", "bandwidth_bytes_per_s"), "bandwidth=x2")
    asked = {}
    for key, value in changes.items():
        name = key.partition("_")[0]
        if value.startswith("x"):
            if re.fullmatch(rf"x{_NUMBER}", value) is None or not number(value[1:], f"--link: {name}"):
                raise InputError(f"--link: {name}: got {value}, expected a factor above 0; try {name}=x2")
            asked[f"{name}_factor"] = float(value[1:])
        elif re.fullmatch(rf"{_NUMBER}[x%]", value) or (re.fullmatch(_NUMBER, value) and key not in text):
            factor = float(value.rstrip("x%")) / (100 if value.endswith("%") else 1)
            raise InputError(
                f"--link: {name}: got {value}, expected a factor, or a value with its unit; try {name}=x{factor or 2:g}"
            )
    if not asked:
        from pipesched.cli.options.machine_options import parse_link

        return {"link": parse_link(text, "--link")}
    if len(asked) < len(changes):
        raise InputError(f"--link: got {text}, expected only factors or only values; leave one out")
    return asked


def _slow(texts: Sequence[str]) -> dict[str, Any]:
    devices, links = {}, {}
    for text in texts:
        ends, factor = slow_part(text)
        if len(ends) == 1:
            devices[ends[0]] = factor
        else:
            links[ends[0], ends[1]] = factor
    return {"slow_devices": devices, "slow_links": links}
