"""``pipesched compare``: several schedules in one table, or two Timelines side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pipesched.cli.commands.gantt import require_no_simulation
from pipesched.cli.errors import InputError, in_flags
from pipesched.cli.options.cost_options import EstimatedCostOptions
from pipesched.cli.options.machine_options import SimulationOptions
from pipesched.cli.options.option_groups import OUTPUT, Json, file_option, grouped, out_option
from pipesched.cli.options.schedule_options import ScheduleOptions, options_of_each
from pipesched.cli.output.notes import doubts_of_prediction, limit_lines
from pipesched.cli.output.output_files import PAGE, TABLE, check_outputs, emit
from pipesched.cli.terminal import comparing, json_answer, print_results, progress_bar
from pipesched.questions import RunCount
from pipesched.schedules import builders, formats
from pipesched.schedules.formats import suffix_of
from pipesched.simulator import views
from pipesched.simulator.analysis import FORMATS_FOR_PEOPLE, TABLE_FORMATS
from pipesched.simulator.views import GANTT_SUFFIXES
from pipesched.workflows import arguments, estimate_data, merged_notes, simulating

if TYPE_CHECKING:
    from pipesched.schedules import Schedule, Timeline
    from pipesched.simulator.analysis import CellValue
    from pipesched.simulator.views import RunDetails
    from pipesched.workflows import Table
    from pipesched.workflows.simulating import ScheduleComparison

CompareFormat = Literal["table", "markdown", "csv", "json"]


@grouped
def compare(
    *,
    what: Annotated[
        list[str] | None,
        typer.Argument(help="Schedules by name, builder or file; or two Timelines (JSON)."),
    ] = None,
    all_schedules: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Add every schedule that can be run; a schedule that cannot be built has a row with the reason.",
        ),
    ] = False,
    schedule: ScheduleOptions,
    costs: EstimatedCostOptions,
    simulation: SimulationOptions,
    runs: RunCount,
    gantt: Annotated[
        Path | None,
        file_option("Draw the Timelines one under another on one time axis", GANTT_SUFFIXES),
    ] = None,
    form: Annotated[
        CompareFormat, typer.Option("--format", rich_help_panel=OUTPUT, help="Format of the printed table.")
    ] = "table",
    json: Json = False,
    out: Annotated[
        list[Path] | None,
        out_option("Write the table, or a page to zoom in", (*TABLE, PAGE), is_repeatable=True),
    ] = None,
) -> None:
    """Compare schedules of one model in one table (--out), or two Timelines of one schedule."""
    check_outputs((gantt, GANTT_SUFFIXES), *((path, (*TABLE, PAGE)) for path in out or ()))
    if schedule.schedule_file is not None:
        raise InputError(
            "--schedule-file: got this option with compare, expected the file as an argument; try compare "
            f"{schedule.schedule_file}"
        )
    names = _names(what or [], schedule, all_schedules)
    timelines = [name for name in names if formats.format_of(name) == formats.TIMELINE_FORMAT]
    if timelines:
        _require_two(timelines, names)
        require_no_simulation(Path(names[0]), schedule, costs, simulation)
        answer = _compared_timelines([Path(name) for name in names])
    else:
        num_runs = simulating.require_runs(runs.num_runs, simulation.jitter)
        compared = _compared(names, schedule, costs, simulation, num_runs, keep_going=all_schedules)
        answer = _compared_schedules(compared, costs)
    answer.write(gantt, out or ())
    form = "json" if json else form
    if form == "table":
        print_results(answer.tables)
    else:
        emit(answer.text(".md" if form == "markdown" else f".{form}"), None)


@dataclass(frozen=True, slots=True)
class Answer:
    """The comparison of several schedules, or of two Timelines.

    Attributes:
        data: The answer as plain data.
        rows: The same, a row per schedule or quantity.
        notes: Cautions about the numbers, a line each.
        tables: The comparison, formatted for people, with notes, and further tables.
        timelines: The Timelines of a picture.
        details: Further facts on each Timeline; empty: none.
        caption: Caption of a picture.
    """

    data: dict[str, Any]
    rows: list[dict[str, CellValue]]
    notes: Sequence[str]
    tables: Sequence[Table]
    timelines: Sequence[Timeline]
    details: Sequence[RunDetails] = ()
    caption: str = ""

    def text(self, suffix: str) -> str:
        """Return the answer in a format of files."""
        if suffix == ".json":
            return json_answer("compare", self.data, self.notes)
        is_for_people = suffix in FORMATS_FOR_PEOPLE
        return TABLE_FORMATS[suffix]([_for_people(row) for row in self.rows] if is_for_people else self.rows)

    def write(self, gantt: Path | None, out: Sequence[Path]) -> None:
        """Draw the Timelines, and write the table, into the given files."""
        drawn = [path for path in out if suffix_of(path) == PAGE]
        for path in drawn if gantt is None else [gantt, *drawn]:
            views.draw_gantt(
                self.timelines, path, caption=self.caption, details=self.details, notes=self.tables[0].lines(())
            )
        for path in out:
            if path not in drawn:
                emit(self.text(suffix_of(path)), path)


def _compared_schedules(compared: ScheduleComparison, costs: EstimatedCostOptions) -> Answer:
    predictions, rows = compared.predictions, compared.to_rows()
    notes = merged_notes(
        (prediction.schedule.name, note)
        for prediction in predictions
        for note in doubts_of_prediction(prediction, costs.machines)
    )
    limits = dict.fromkeys(line for prediction in predictions for line in limit_lines(costs.machines, prediction))
    shares = costs.shares(*(prediction.schedule for prediction in predictions), named=True)
    families = (prediction.setup.loaded_costs.gpu_family for prediction in predictions)
    errors = next(filter(None, map(estimate_data, families)), None)
    return Answer(
        {"schedules": rows, "estimate_errors": errors},
        rows,
        notes,
        [compared.table([*limits, *shares, *notes])],
        [prediction.timeline for prediction in predictions],
        [prediction.details for prediction in predictions],
    )


def _compared_timelines(paths: Sequence[Path]) -> Answer:
    from pipesched.workflows.timelines import compare_runs

    with comparing(paths):
        compared = compare_runs(paths[0], paths[1])
    notes, (first, *others) = compared.notes, compared.tables()
    return Answer(
        compared.to_dict(),
        compared.to_rows(),
        notes,
        [first.noted(notes), *others],
        compared.timelines,
        caption=compared.caption,
    )


def _names(what: Sequence[str], schedule: ScheduleOptions, all_schedules: bool) -> list[str]:
    """Return the requested names and files, each once."""
    given = [*what, schedule.schedule or ""]
    if all_schedules:
        given += builders.CATALOGUE
    names = list(dict.fromkeys(_own_name(name) for argument in given for name in argument.split(",") if name))
    if not names:
        raise InputError("compare: got no schedules, expected names; try compare gpipe,1f1b or --all")
    return names


def _own_name(name: str) -> str:
    """Return the catalogue's name of a schedule; a file is left as it is."""
    entry = builders.lookup(name)
    return name if entry is None else entry.name


def _require_two(timelines: Sequence[str], names: Sequence[str]) -> None:
    other = next((name for name in names if name not in timelines), None)
    if other is not None:
        missing = "nothing there" if Path(other).suffix and not Path(other).exists() else "no Timeline"
        raise InputError(
            f"{other}: got {missing}, expected a Timeline, as in {timelines[0]}; try a file that 'pipesched simulate "
            "--out' or 'run --out' has written"
        )
    if len(timelines) != 2:
        raise InputError(
            f"{timelines[0]}: got {len(timelines)} Timeline{'s' * (len(timelines) > 1)}, expected two different files; "
            "try predicted.json measured.json"
        )


def _for_people(row: dict[str, CellValue]) -> dict[str, CellValue]:
    """Return a row with both values of two Timelines of a kind under their own names."""
    if "first_name" not in row:
        return row
    headings = {"first": str(row["first_name"]), "second": str(row["second_name"])}
    return {headings.get(key, key): value for key, value in row.items() if not key.endswith("_name")}


def _compared(
    names: Sequence[str],
    options: ScheduleOptions,
    costs: EstimatedCostOptions,
    simulation: SimulationOptions,
    num_runs: int,
    *,
    keep_going: bool,
) -> ScheduleComparison:
    """Predict each schedule; a schedule that does not fit its costs gets a row with the reason.

    With `keep_going`, every refused schedule gets such a row.
    """
    from pipesched.profiles import ProfileError

    by_name = options_of_each([name for name in names if arguments.named_schedule(name) is not None], options)
    if by_name and len(by_name) < len(names) and None in (options.counts.num_ranks, options.counts.num_microbatches):
        file = next(name for name in names if name not in by_name)
        raise _without_counts(_options_of(file, None, options).load(), file, options)
    sources = [(name, _options_of(name, by_name.get(name), options).source) for name in names]
    with progress_bar("comparing") as tick:
        return simulating.compare_sources(
            sources,
            lambda source: costs.setup(source, simulation),
            num_runs=num_runs,
            keep_going=simulating.REFUSED if keep_going else (ProfileError,),
            say=in_flags,
            progress=tick,
        )


def _without_counts(schedule: Schedule, file: str, options: ScheduleOptions) -> InputError:
    """Return the error for missing counts, with the counts of a schedule in a file as advice."""
    given = options.counts
    counts = {"-p": (given.num_ranks, schedule.num_ranks), "-m": (given.num_microbatches, schedule.num_microbatches)}
    missing = " and ".join(option for option, (given, _) in counts.items() if given is None)
    own = " ".join(f"{option} {count}" for option, (_, count) in counts.items())
    return InputError(f"compare: got no {missing}, expected counts for the schedules by name; try {own}, as in {file}")


def _options_of(name: str, own_options: ScheduleOptions | None, options: ScheduleOptions) -> ScheduleOptions:
    """Return the options of one schedule: of a file, or the options that the named schedule takes."""
    return (
        ScheduleOptions(schedule_file=Path(name), recompute=options.recompute, recompute_when=options.recompute_when)
        if own_options is None
        else own_options
    )
