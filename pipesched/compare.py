"""``pipesched compare``: several schedules in one table, or two Timelines side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipesched.comparison import print_comparisons
from pipesched.errors import InputError
from pipesched.options import CostOptions, Json, Out, ScheduleOptions, grouped, uniform_costs
from pipesched.output import emit, num_bytes, percent, print_json, print_table, seconds
from pipesched.predict import predict

if TYPE_CHECKING:
    from schedules.schedule import Schedule
    from schedules.timeline import Timeline


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
    names = [name for argument in what or [] for name in argument.split(",") if name]
    if all_schedules:
        from schedules.catalogue import CATALOGUE

        names += [name for name in CATALOGUE if name not in names]
    if len(names) == 2 and all(_is_timeline(name) for name in names):
        _two_timelines(names, json)
        return
    if not names:
        raise InputError("compare: got no schedules, expected names; try compare gpipe,1f1b or --all")
    from simulator.compare import schedules_table, to_csv, to_markdown
    from simulator.metrics import metrics

    timelines = [_predicted(name, schedule, costs) for name in names]
    rows = schedules_table((timeline.name, metrics(timeline)) for timeline in timelines)
    if gantt is not None:
        from simulator.gantt import draw_gantt

        draw_gantt(timelines, gantt)
    if out is not None:
        writers = {".md": to_markdown, ".csv": to_csv}
        if out.suffix not in writers:
            raise InputError(f"{out}: got suffix {out.suffix!r}, expected .md or .csv; use --json for JSON")
        emit(writers[out.suffix](rows), out)
    if json:
        print_json(rows)
    elif out is None:
        print_table(
            "Schedules, predicted",
            [{key.removesuffix("_s").removesuffix("_bytes"): _cell(key, row[key]) for key in row} for row in rows],
            "bubble_fraction: idle / (devices x makespan); "
            "bubble_overhead: (makespan - busiest device) / busiest device; throughput in micro-batches per second",
        )


def _cell(key: str, value: str | int | float | None) -> str:
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
    return path.suffix == ".json" and path.is_file() and '"pipesched.timeline"' in path.read_text()[:200]


def _two_timelines(names: list[str], json: bool) -> None:
    from schedules.formats.timeline_json import read_timeline
    from simulator.compare import compare as compare_timelines

    found = compare_timelines(*(read_timeline(name) for name in names))
    if json:
        print_json(found.to_dict())
    else:
        print_comparisons([found])


def _predicted(name: str, options: ScheduleOptions, costs: CostOptions) -> Timeline:
    loaded = _load(name, options)
    if costs.uniform is None:
        return predict(loaded, *costs.load(loaded))
    share = loaded.num_ranks / loaded.num_stages
    return predict(loaded, uniform_costs(costs.uniform, loaded.num_stages, share), costs.load_cluster(loaded))


def _load(name: str, options: ScheduleOptions) -> Schedule:
    from dataclasses import replace

    if Path(name).suffix in (".csv", ".json"):
        return ScheduleOptions(schedule_file=Path(name)).load()
    from schedules.catalogue import find

    entry = find(name)
    accepted = [parameter.name for parameter in entry.parameters]
    mine = [setting for setting in options.settings or [] if setting.partition("=")[0].strip() in accepted]
    return replace(options, chunks=options.chunks if entry.takes_chunks else None, settings=mine).build(name)
