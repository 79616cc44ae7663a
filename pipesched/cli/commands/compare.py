"""``pipesched compare``: several schedules in one table, or two Timelines side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipesched.cli.errors import InputError
from pipesched.cli.flows.memory_limit import limit_lines, require_judged
from pipesched.cli.flows.prediction import BuffersOption, predict_schedule
from pipesched.cli.flows.steady_time import steady_s_per_microbatch
from pipesched.cli.flows.timelines import timelines_of
from pipesched.cli.options.schedule_list import options_of_each
from pipesched.cli.options.schedule_options import CostOptions, Json, ScheduleOptions, grouped, out_option
from pipesched.cli.options.traffic_options import TrafficOptions
from pipesched.cli.output.comparison_table import print_comparisons
from pipesched.cli.output.output_files import check_outputs, emit
from pipesched.cli.output.schedule_table import print_summaries
from pipesched.cli.output.terminal import print_json, progress_bar

if TYPE_CHECKING:
    from pipesched.schedules import Schedule, Timeline
    from pipesched.simulator.analysis import CellValue, Summary

CompareFormat = Literal["table", "markdown", "csv", "json"]
_SUFFIXES: dict[str, CompareFormat] = {".md": "markdown", ".csv": "csv", ".json": "json"}


@grouped
def compare(
    what: Annotated[
        list[str] | None,
        typer.Argument(help="Schedules by name or file; or two Timelines (JSON)."),
    ] = None,
    all_schedules: Annotated[
        bool, typer.Option("--all", help="Every schedule that can be run, too; one that cannot be built says why.")
    ] = False,
    schedule: ScheduleOptions = ScheduleOptions(),  # noqa: B008 -- frozen
    costs: CostOptions = CostOptions(),  # noqa: B008
    traffic: TrafficOptions = TrafficOptions(),  # noqa: B008
    buffers: BuffersOption = "pooled",
    gantt: Annotated[
        Path | None, typer.Option(help="Draw them one under another on one time axis: .png, .svg or .pdf.")
    ] = None,
    form: Annotated[CompareFormat, typer.Option("--format", help="What is printed.")] = "table",
    json: Json = False,
    out: Annotated[Path | None, out_option("Write the table: .md, .csv or .json.")] = None,
) -> None:
    """Compare schedules of one model in one table (--out: .md, .csv or .json), or two Timelines of one schedule."""
    from pipesched.simulator.views import FIGURE_SUFFIXES

    check_outputs((gantt, FIGURE_SUFFIXES), (out, tuple(_SUFFIXES)))
    if schedule.schedule_file is not None:
        raise InputError("--schedule-file: got it in compare, expected the file as an argument; leave out the option")
    form = "json" if json else form
    names = _names(what or [], schedule, all_schedules)
    timelines = [name for name in names if _is_timeline(name)]
    if timelines:
        _require_two(timelines, names)
        _compare_timelines([Path(name) for name in names], schedule, costs, traffic, form, gantt, out)
        return
    found = list(_found(names, schedule, costs, traffic, buffers, keep_going=all_schedules))
    summaries = [each.summary for each in found]
    rows = [each.summary.to_row() | {"stage_share": each.stage_share} for each in found]
    _write([each.timeline for each in found if each.timeline is not None], rows, gantt, out)
    if form != "table":
        emit(_text(rows, form), None)
    elif out is None:
        schedules = [each.schedule for each in found if each.schedule is not None]
        limits = dict.fromkeys(line for each in found for line in each.limit)
        print_summaries(summaries, [*limits, *costs.shares(*schedules, named=True)])


@dataclass(frozen=True, slots=True)
class _Found:
    """One schedule, predicted; without a timeline if it could not be."""

    summary: Summary
    timeline: Timeline | None = None
    schedule: Schedule | None = None
    stage_share: float | None = None
    limit: Sequence[str] = ()


def _names(what: Sequence[str], schedule: ScheduleOptions, all_schedules: bool) -> list[str]:
    """Return the names and files asked for, each once."""
    given = [*what, schedule.schedule or ""]
    if all_schedules:
        from pipesched.schedules.builders import CATALOGUE

        given += CATALOGUE
    names = list(dict.fromkeys(_own_name(name) for argument in given for name in argument.split(",") if name))
    if not names:
        raise InputError("compare: got no schedules, expected names; try compare gpipe,1f1b or --all")
    return names


def _own_name(name: str) -> str:
    """Return the name that the catalogue has for a schedule; a file is left as it is."""
    from pipesched.schedules.builders import lookup

    entry = lookup(name)
    return name if entry is None else entry.name


def _is_timeline(name: str) -> bool:
    path = Path(name)
    if path.suffix != ".json" or not path.is_file():
        return False
    with path.open("rb") as file:
        return b'"pipesched.timeline"' in file.read(200)


def _require_two(timelines: Sequence[str], names: Sequence[str]) -> None:
    other = next((name for name in names if name not in timelines), None)
    if other is not None:
        missing = "nothing there" if Path(other).suffix and not Path(other).exists() else "no Timeline"
        raise InputError(f"{other}: got {missing}, expected a Timeline as {timelines[0]} is one; try another file")
    if len(timelines) != 2:
        raise InputError(
            f"{timelines[0]}: got {len(timelines)} Timelines, expected two; try predicted.json measured.json"
        )


def _compare_timelines(
    paths: Sequence[Path],
    schedule: ScheduleOptions,
    costs: CostOptions,
    traffic: TrafficOptions,
    form: CompareFormat,
    gantt: Path | None,
    out: Path | None,
) -> None:
    from pipesched.simulator.analysis import compare as compare_timelines

    timelines = timelines_of(paths, schedule, costs, traffic).timelines
    names = None
    if {timeline.source for timeline in timelines} == {"predicted", "measured"}:
        timelines.sort(key=lambda timeline: timeline.source, reverse=True)  # the prediction first
    else:
        names = _told_apart(paths, timelines)
    found = compare_timelines(timelines[0], timelines[1], names)
    if names is not None:  # so that they are called the same in the picture
        timelines = [replace(timeline, source=name) for timeline, name in zip(timelines, names, strict=True)]
    _write(timelines, found.to_rows(), gantt, out)
    if form == "json":
        print_json(found.to_dict())
    elif form != "table":
        emit(_text(found.to_rows(), form), None)
    elif out is None:
        print_comparisons([found])


def _told_apart(paths: Sequence[Path], timelines: Sequence[Timeline]) -> tuple[str, str]:
    """Return a name for each of two files: what tells them apart in as few words as will do."""
    (first, second), (one, other) = paths, timelines
    whole = str(first.with_suffix("")), str(second.with_suffix(""))
    for names in ((first.stem, second.stem), (one.name, other.name), whole):
        if len({*names, "quantity", "device", "difference"}) == 5:  # the other columns are called so
            return names
    return f"{first.stem} 1", f"{second.stem} 2"


def _write(
    timelines: Sequence[Timeline], rows: list[dict[str, CellValue]], gantt: Path | None, out: Path | None
) -> None:
    if gantt is not None:
        from pipesched.simulator.views import draw_gantt

        draw_gantt(timelines, gantt)
    if out is not None:
        emit(_text(rows, _SUFFIXES[out.suffix]), out)


def _text(rows: list[dict[str, CellValue]], form: CompareFormat) -> str:
    import json

    from pipesched.simulator.analysis import to_csv, to_markdown

    if form == "json":
        return json.dumps(rows, indent=2, allow_nan=False)
    return to_markdown([_for_people(row) for row in rows]) if form == "markdown" else to_csv(rows)


def _for_people(row: dict[str, CellValue]) -> dict[str, CellValue]:
    """Return a row with two of a kind under their own names."""
    if "first_name" not in row:
        return row
    headings = {"first": str(row["first_name"]), "second": str(row["second_name"])}
    return {headings.get(key, key): value for key, value in row.items() if not key.endswith("_name")}


def _found(
    names: Sequence[str],
    options: ScheduleOptions,
    costs: CostOptions,
    traffic: TrafficOptions,
    buffers: BuffersOption,
    *,
    keep_going: bool,
) -> Iterator[_Found]:
    """Predict one after the other; to keep going is to say in its row why one cannot be, unless that holds for all."""
    from pipesched.profiles import ProfileError
    from pipesched.schedules import ScheduleError
    from pipesched.simulator import SimulationError
    from pipesched.simulator.analysis import Summary

    by_name = options_of_each([name for name in names if Path(name).suffix not in (".csv", ".json")], options)
    refused: list[Exception] = []
    with progress_bar("comparing") as tick:
        for index, name in enumerate(names):
            tick(index / len(names))
            try:
                yield _one(_options_of(name, by_name.get(name), options), costs, traffic, buffers)
            except (InputError, ScheduleError, ProfileError, SimulationError) as error:
                refused.append(error)
                if not keep_going or len(refused) == len(names):
                    raise refused[0] from None
                yield _Found(Summary(name=name, reason=str(error)))


def _one(options: ScheduleOptions, costs: CostOptions, traffic: TrafficOptions, buffers: BuffersOption) -> _Found:
    from pipesched.schedules.lowering import lower
    from pipesched.simulator.analysis import summarize

    schedule = options.load()
    stage_costs, cluster = costs.load(schedule)
    require_judged(costs.machines, stage_costs)
    stage_costs = traffic.compressed(stage_costs, costs.element_bytes())
    timeline = predict_schedule(schedule, stage_costs, cluster, traffic=traffic, buffers=buffers)
    steady_s = steady_s_per_microbatch(options, schedule, timeline, stage_costs, cluster, traffic)
    return _Found(
        summarize(lower(schedule), timeline, stage_costs, cluster, steady_s),
        timeline,
        schedule,
        costs.stage_share(schedule),
        limit_lines(costs.machines, cluster, schedule.rank_to_device, has_bytes=stage_costs.has_bytes),
    )


def _options_of(name: str, mine: ScheduleOptions | None, options: ScheduleOptions) -> ScheduleOptions:
    """Return the options of one schedule: of a file, or with those that the schedule of that name takes."""
    return ScheduleOptions(schedule_file=Path(name), recompute=options.recompute) if mine is None else mine
