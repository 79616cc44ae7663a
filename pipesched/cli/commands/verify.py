"""``pipesched verify``: profile, simulate, run, and compare the prediction with the measurement."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import pipesched
from pipesched.cli.errors import NEGATIVE, InputError
from pipesched.cli.options.cost_options import CostOptions
from pipesched.cli.options.option_groups import Json, grouped
from pipesched.cli.options.schedule_options import ScheduleOptions, schedule_names
from pipesched.cli.options.torch_options import ModelChoice
from pipesched.cli.output.notes import device_limit_lines, doubts_of_machine, require_fits
from pipesched.cli.output.output_files import PAGE, check_outputs, print_answer, write_timeline
from pipesched.cli.terminal import complain, progress_bar
from pipesched.profiles.processes import LoadMeter
from pipesched.questions import CutSettings, MeasureSettings, NumRounds, RoundPrecision
from pipesched.schedules import formats
from pipesched.schedules.common import values_of
from pipesched.schedules.formats import require_folder, suffix_of
from pipesched.simulator import analysis, views
from pipesched.workflows import Table

if TYPE_CHECKING:
    from pipesched.schedules import Schedule
    from pipesched.workflows.verifying import RoundsVerification, Verification, VerifiedSchedule

_LONGEST_STEM = 100
"""Characters of the schedule's name in a file name."""


@grouped
def verify(
    *,
    schedule: ScheduleOptions,
    costs: CostOptions,
    options: MeasureSettings,
    model: ModelChoice,
    rounds: NumRounds = None,
    precision: RoundPrecision = None,
    json: Json = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for Timelines, Gantt chart, page and trace; or a page (.html)."),
    ] = None,
) -> None:
    """Profile MODEL (unless --profile), simulate, run, compare. --schedule takes several, as gpipe,1f1b.

    With --rounds it is profiled and run several times in turn; --out then has the round of median error. Exits with 1
    if the loss of the run differs from the un-pipelined model, or --memory-limit is exceeded. If one of several
    schedules fails, the results of the schedules before it are still printed.
    """
    name = model.name
    if name is None:
        raise InputError("verify: got no MODEL, expected a model; try 'pipesched verify mlp -p 2 -m 4'")
    if rounds is not None and costs.profile is not None:
        raise InputError(
            "--rounds: got --profile too, expected only one of them: each round measures its own profile; leave one out"
        )
    if rounds is None and precision is not None:
        raise InputError("--precision: got this option without --rounds, expected both; add --rounds 5")
    _check_options(costs, out)
    meter, schedules = LoadMeter(), _schedules(schedule)
    cluster = costs.load_cluster(max(schedules, key=lambda lists: max(lists.rank_to_device)))
    notes = doubts_of_machine(max(lists.num_ranks for lists in schedules), options, meter)
    asked = {"cluster": cluster, **values_of(options), **values_of(costs, CutSettings)}
    limits = device_limit_lines(costs.machines, cluster, schedules[0].rank_to_device)
    verified: list[Verification | RoundsVerification] = []
    try:
        if rounds is None:
            with progress_bar(f"verifying {name}") as tick:
                pipesched.verify(
                    name, schedules, **asked, profile=costs.profile, progress=tick, on_verified=verified.append
                )
        else:
            with progress_bar(f"{rounds} rounds of {name}") as tick:
                several = pipesched.verify_rounds(name, schedules, rounds, **asked, precision=precision, progress=tick)
            verified.append(several)
    finally:
        if verified:
            result = verified[-1]
            notes += result.notes
            said = [*limits, *notes]
            print_answer(
                "verify", result.to_dict(), notes, [*result.tables(), Table("", (), "\n".join(said))], is_json=json
            )
            if out is not None:
                _write(result.representative, out, costs, [*result.verdicts, *said])
    for timeline in (timeline for run in result.representative for timeline in (run.predicted, run.measured)):
        require_fits(analysis.metrics(timeline), costs.machines.limit_bytes())
    if not result.agrees:
        raise typer.Exit(NEGATIVE)


def _schedules(options: ScheduleOptions) -> list[Schedule]:
    if options.schedule_file is not None:
        return [options.load()]
    names = schedule_names(options.schedule or "gpipe,1f1b")
    if not names:
        raise InputError(f"--schedule: got {options.schedule!r}, expected names; try gpipe,1f1b")
    return [options.built(name).schedule for name in names]


def _check_options(costs: CostOptions, out: Path | None) -> None:
    """Refuse, before any measurement, options that would fail after it."""
    if costs.sources.keys() - {"--profile"}:
        raise InputError(
            "verify: got --uniform, --stage-costs or --layer-costs, expected --profile, or no costs (verify then "
            "measures a profile); leave it out"
        )
    if costs.input_share is not None:
        raise InputError(
            "--input-share: got this option with verify, expected none: verify measures I and W of the model; leave it "
            "out"
        )
    if out is not None:
        if suffix_of(out) == PAGE:
            check_outputs((out, (PAGE,)))
        elif out.exists() and not out.is_dir():
            raise InputError(f"{out}: got a file, expected a folder, or the name of a new folder; try another name")
        require_folder(next(folder for folder in (out, *out.parents) if folder.exists()), out)


def _write(verified: Sequence[VerifiedSchedule], out: Path, costs: CostOptions, notes: Sequence[str]) -> None:
    """Write one page of all schedules with notes, or a folder.

    For each schedule, the folder gets both Timelines, a picture of them, a page and a trace.
    """
    from pipesched.workflows.timelines import comparison_table

    limit = costs.machines.limit_bytes()

    def draw_page(runs: Sequence[VerifiedSchedule], path: Path) -> None:
        timelines = [timeline for run in runs for timeline in (run.predicted, run.measured)]
        details = [views.RunDetails({} if limit is None else dict.fromkeys(line.devices, limit)) for line in timelines]
        sentences = "\n".join(run.explanation.sentence for run in runs)
        lines = comparison_table([run.comparison for run in runs]).lines(())
        lines += [*(run.losses for run in runs), *notes]
        views.draw_gantt(timelines, path, caption=sentences, details=details, notes=lines)

    if suffix_of(out) == PAGE:
        draw_page(verified, out)
        return
    out.mkdir(parents=True, exist_ok=True)
    for run in verified:
        stem = run.name.replace("/", "_")[:_LONGEST_STEM]
        both = (run.predicted, run.measured)
        for timeline in both:
            write_timeline(timeline, out / f"{stem}-{timeline.source}.json")
        views.save_figure(run.plot, out / f"{stem}.png")
        draw_page([run], out / f"{stem}.html")
        formats.write_text(out / f"{stem}-trace.json", views.to_trace(*both))
        ends = ("-predicted.json", "-measured.json", ".png", ".html", "-trace.json")
        complain(f"wrote {out}/{', '.join(stem + end for end in ends)}")
