"""``pipesched compare``: several schedules in one table, or two Timelines side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipesched.comparison import print_comparisons
from pipesched.errors import InputError
from pipesched.files import check_outputs, emit
from pipesched.options import CostOptions, Json, Out, ScheduleOptions, grouped, uniform_costs
from pipesched.output import num_bytes, percent, print_json, print_table, seconds
from pipesched.predict import predict
from pipesched.timelines import timelines_of

if TYPE_CHECKING:
    from schedules.catalogue import Entry
    from schedules.schedule import Schedule
    from schedules.timeline import Timeline
    from simulator.compare import Value


@grouped
def compare(
    what: Annotated[
        list[str] | None,
        typer.Argument(help="Schedules by name or file; or two Timelines, predicted and measured (JSON)."),
    ] = None,
    all_schedules: Annotated[bool, typer.Option("--all", help="Every schedule of the catalogue.")] = False,
    schedule: ScheduleOptions = ScheduleOptions(),  # noqa: B008 -- frozen
    costs: CostOptions = CostOptions(),  # noqa: B008
    gantt: Annotated[Path | None, typer.Option(help="Draw them one under another on one time axis.")] = None,
    json: Json = False,
    out: Out = None,
) -> None:
    """Compare schedules of one model in one table (--out: .md or .csv), or a prediction with a measurement.

    With --uniform, f and b are those of a rank's whole share: a stage of v chunks per rank costs 1/v of them.
    """
    from simulator.gantt import SUFFIXES

    check_outputs((gantt, SUFFIXES), (out, (".md", ".csv")))
    if schedule.schedule_file is not None:
        raise InputError("--schedule-file: got it in compare, expected the file as an argument; leave out the option")
    names = _names(what or [], schedule, all_schedules)
    if len(names) == 2 and all(map(_is_timeline, names)):
        from simulator.compare import compare as compare_timelines

        paths = [Path(name) for name in names]
        timelines = timelines_of(paths, schedule, costs, protocol="rendezvous", jitter=0.0, seed=0)
        found = compare_timelines(*timelines)
        _write(timelines, found.to_rows(), gantt, out)
        if json:
            print_json(found.to_dict())
        elif out is None:
            print_comparisons([found])
        return
    from simulator.compare import schedules_table
    from simulator.metrics import metrics

    timelines = [_predicted(each, costs) for each in _load(names, schedule)]
    rows = schedules_table((timeline.name, metrics(timeline)) for timeline in timelines)
    _write(timelines, rows, gantt, out)
    if json:
        print_json(rows)
    elif out is None:
        print_table(
            "Schedules, predicted",
            [{key.removesuffix("_s").removesuffix("_bytes"): _cell(key, row[key]) for key in row} for row in rows],
            "bubble_fraction: idle / (devices x makespan); "
            "bubble_overhead: (makespan - busiest device) / busiest device; throughput in micro-batches per second",
        )


def _names(what: Sequence[str], schedule: ScheduleOptions, all_schedules: bool) -> list[str]:
    """Return the names and files asked for, each once."""
    given = [*what, schedule.schedule or ""]
    if all_schedules:
        from schedules.catalogue import CATALOGUE

        given += CATALOGUE
    names = list(dict.fromkeys(name for argument in given for name in argument.split(",") if name))
    if not names:
        raise InputError("compare: got no schedules, expected names; try compare gpipe,1f1b or --all")
    return names


def _write(timelines: Sequence[Timeline], rows: list[dict[str, Value]], gantt: Path | None, out: Path | None) -> None:
    if gantt is not None:
        from simulator.gantt import draw_gantt

        draw_gantt(timelines, gantt)
    if out is not None:
        from simulator.compare import to_csv, to_markdown

        emit((to_markdown if out.suffix == ".md" else to_csv)(rows), out)


def _cell(key: str, value: Value) -> str:
    """Return a number as people read it, by the unit in its name."""
    if value is None or isinstance(value, str):
        return value or "-"
    if key.endswith("_s"):
        return seconds(value)
    if key.endswith("_bytes"):
        return num_bytes(value)
    return percent(value) if key.startswith("bubble") else f"{value:.4g}"


def _is_timeline(name: str) -> bool:
    path = Path(name)
    if path.suffix != ".json" or not path.is_file():
        return False
    with path.open("rb") as file:
        return b'"pipesched.timeline"' in file.read(200)


def _predicted(schedule: Schedule, costs: CostOptions) -> Timeline:
    stage_costs, cluster = costs.load(schedule)
    if costs.uniform is not None:
        share = schedule.num_ranks / schedule.num_stages
        stage_costs = uniform_costs(costs.uniform, schedule.num_stages, share)
    return predict(schedule, stage_costs, cluster)


def _load(names: Sequence[str], options: ScheduleOptions) -> list[Schedule]:
    """Read the files and build the others; each gets those of the options that it takes."""
    from schedules.catalogue import find

    entries = {name: find(name) for name in names if Path(name).suffix not in (".csv", ".json")}
    if options.chunks is not None and not any(entry.takes_chunks for entry in entries.values()):
        raise InputError(f"-v: got {options.chunks}, expected a schedule that takes chunks; try interleaved")
    settings = [setting for line in options.settings or [] for setting in line.split(",")]
    for setting in settings:
        if not any(_takes(entry, setting) for entry in entries.values()):
            raise InputError(f"--set: got {setting}, expected key=value of a schedule here; see 'pipesched list'")
    loaded = []
    for name in names:
        if name not in entries:
            loaded.append(ScheduleOptions(schedule_file=Path(name)).load())
            continue
        entry = entries[name]
        mine = [setting for setting in settings if _takes(entry, setting)]
        own = replace(options, chunks=options.chunks if entry.takes_chunks else None, settings=mine)
        loaded.append(own.build(name))
    return loaded


def _takes(entry: Entry, setting: str) -> bool:
    return setting.partition("=")[0].strip() in [parameter.name for parameter in entry.parameters]
