"""``pipesched verify``: profile, simulate, run, and compare the prediction with the measurement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipesched.cli.errors import NEGATIVE, InputError
from pipesched.cli.options.common_options import Json
from pipesched.cli.options.cost_options import CostOptions
from pipesched.cli.options.option_groups import grouped
from pipesched.cli.options.run_options import RunOptions
from pipesched.cli.options.schedule_list import schedule_names
from pipesched.cli.options.schedule_options import ScheduleOptions
from pipesched.cli.options.torch_options import ModelName, ModelOption, load_model, model_of
from pipesched.cli.output.comparison_table import print_comparisons, print_parts
from pipesched.cli.output.doubts import doubts_of_machine
from pipesched.cli.output.memory_lines import device_limit_lines, require_fits
from pipesched.cli.output.output_files import PAGE, check_outputs, write_timeline
from pipesched.cli.terminal import complain, print_json, print_lines, print_result, progress_bar
from pipesched.profiles.processes import LoadMeter
from pipesched.schedules.formats import require_folder, suffix_of

if TYPE_CHECKING:
    from pipesched.profiles.costs import Profile
    from pipesched.profiles.models import Model
    from pipesched.schedules import Schedule
    from pipesched.workflows.verifying import VerifiedSchedule

_LONGEST_STEM = 100
"""Characters of the schedule's name in a file name."""


@grouped
def verify(
    schedule: ScheduleOptions,
    costs: CostOptions,
    options: RunOptions,
    given: ModelName = None,
    model: ModelOption = None,
    rounds: Annotated[
        int | None,
        typer.Option(help="Rounds of a short profile and runs, for median errors with intervals.", min=2),
    ] = None,
    precision: Annotated[
        float | None,
        typer.Option(help="Largest drift of the machine for a verdict, with --rounds (default: 0.05).", min=0.0),
    ] = None,
    json: Json = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for Timelines, Gantt chart, page and trace; or a page alone, .html."),
    ] = None,
) -> None:
    """Profile MODEL (unless --profile), simulate, run, compare. --schedule takes several, as gpipe,1f1b.

    With --rounds it is profiled and run several times in turn; --out then has the round of median error. Exits with 1
    if the loss of the run differs from the un-pipelined model, or --memory-limit is exceeded. If one of several
    schedules fails, the results of the schedules before it are still printed.
    """
    from pipesched.simulator.analysis import metrics
    from pipesched.workflows.arguments import ScheduleSource
    from pipesched.workflows.simulating import Setup
    from pipesched.workflows.verifying import Verification, profile_for_runs, verify_source

    model = model_of(given, model)
    if model is None:
        raise InputError("verify: got no MODEL, expected one; try 'pipesched verify mlp -p 2 -m 4'")
    if rounds is not None and costs.profile is not None:
        raise InputError("--rounds: got --profile too, expected none: each round measures its own; leave one out")
    if rounds is None and precision is not None:
        raise InputError("--precision: got it without --rounds, expected both; add --rounds 5")
    meter, schedules = LoadMeter(), _schedules(schedule)
    size = costs.microbatch_size or 1
    built = _require_possible(schedules, model, costs, options, out)
    num_busy = max(lists.num_ranks for lists in schedules)
    notes = doubts_of_machine(num_busy, options, meter)
    if rounds is not None:
        _verify_rounds(schedules, model, built, costs, options, rounds, precision, out, notes, json=json)
        return
    with progress_bar(f"profiling {built.name}") as tick:
        profile = profile_for_runs(built, size, num_busy, costs.profile, options, tick)
    limit = device_limit_lines(costs.machines, costs.load_cluster(schedules[0]), schedules[0].rank_to_device)
    verified: list[VerifiedSchedule] = []
    try:
        for lists in schedules:
            setup = Setup(
                costs=profile, cluster=costs.load_cluster(lists), microbatch_size=size, partition=costs.partition_text
            )
            with _named(lists.name), progress_bar(f"running {lists.name}") as tick:
                source = ScheduleSource(lists)
                verified.append(verify_source(source, model, setup, options, tick, **options.counts()))
    finally:
        if verified:
            notes += Verification(tuple(verified), profile).notes
            _tell(verified, out, costs, limit, notes, json=json)
    for timeline in (timeline for schedule in verified for timeline in (schedule.predicted, schedule.measured)):
        require_fits(metrics(timeline), costs.machines.limit_bytes())
    if not all(schedule.agrees for schedule in verified):
        raise typer.Exit(NEGATIVE)


def _verify_rounds(
    schedules: Sequence[Schedule],
    name: str,
    model: Model,
    costs: CostOptions,
    options: RunOptions,
    rounds: int,
    precision: float | None,
    out: Path | None,
    notes: Sequence[str],
    *,
    json: bool,
) -> None:
    """Do the same as `verify`, in rounds."""
    from pipesched.simulator.analysis import metrics
    from pipesched.workflows.arguments import ScheduleSource
    from pipesched.workflows.simulating import Setup
    from pipesched.workflows.verifying import PRECISION, verify_in_rounds

    size = costs.microbatch_size or 1

    def setup(profile: Profile, source: ScheduleSource) -> Setup:
        cluster = costs.load_cluster(source.schedule)
        return Setup(costs=profile, cluster=cluster, microbatch_size=size, partition=costs.partition_text)

    with progress_bar(f"{rounds} rounds of {model.name}") as tick:
        verification = verify_in_rounds(
            [ScheduleSource(schedule) for schedule in schedules], model, name, size, setup, options,
            rounds, tick, precision=PRECISION if precision is None else precision, **options.counts(),
        )  # fmt: skip
    notes = [*notes, *verification.notes]
    middle = [several.middle for several in verification.schedules]
    limit = device_limit_lines(costs.machines, costs.load_cluster(schedules[0]), schedules[0].rank_to_device)
    said = verification.table().noted(notes)
    if json:
        print_json("verify", verification.to_dict(), notes)
    else:
        print_result(said)
        print("\nThe round of median error of each schedule:")
        print_comparisons([verified.comparison for verified in middle])
        for several in verification.schedules:
            difference = max(verified.loss_difference for verified in several.rounds)
            print_lines(
                [f"{several.name}: losses are those of the un-pipelined model, but for a relative {difference:.2g}"]
            )
        print_lines(limit)
    if out is not None:
        _write(middle, out, costs, [*said.lines(()), *limit])
    for verified in middle:
        for timeline in (verified.predicted, verified.measured):
            require_fits(metrics(timeline), costs.machines.limit_bytes())
    if not verification.agrees:
        raise typer.Exit(NEGATIVE)


def _tell(
    verified: Sequence[VerifiedSchedule],
    out: Path | None,
    costs: CostOptions,
    limit: Sequence[str],
    notes: Sequence[str],
    *,
    json: bool,
) -> None:
    """Print the results as data or for people, and write the requested files."""
    from pipesched.workflows.timelines import split_table

    if json:
        print_json("verify", {"schedules": [run.to_dict() for run in verified]}, notes)
    else:
        print_comparisons([run.comparison for run in verified])
        print_parts(split_table([run.explanation for run in verified]))
        print_lines([*map(_losses, verified), *limit, *notes])
    if out is not None:
        _write(verified, out, costs, [*limit, *notes])


def _losses(run: VerifiedSchedule) -> str:
    return (
        f"{run.name}: loss {run.loss:.6f}, that of the un-pipelined model {run.whole_loss:.6f}; "
        f"largest relative difference of a micro-batch {run.loss_difference:.2g}"
    )


@contextmanager
def _named(schedule: str) -> Iterator[None]:
    """Name the schedule in raised errors."""
    from pipesched.executor import ExecutionError
    from pipesched.profiles import ProfileError
    from pipesched.schedules import ScheduleError
    from pipesched.simulator import SimulationError

    try:
        yield
    except (ExecutionError, ProfileError, ScheduleError, SimulationError) as error:
        raise type(error)(f"verify {schedule}: {error}") from error


def _schedules(options: ScheduleOptions) -> list[Schedule]:
    if options.schedule_file is not None:
        return [options.load()]
    names = schedule_names(options.schedule or "gpipe,1f1b")
    if not names:
        raise InputError(f"--schedule: got {options.schedule!r}, expected names; try gpipe,1f1b")
    return [options.build(name) for name in names]


def _require_possible(
    schedules: list[Schedule], model: str, costs: CostOptions, options: RunOptions, out: Path | None
) -> Model:
    """Return the model; refuse, before any measurement, schedules and options that would fail after it."""
    if costs.sources.keys() - {"--profile"}:
        raise InputError("verify: got costs by hand, expected --profile, or nothing: then one is measured")
    if out is not None:
        if suffix_of(out) == PAGE:
            check_outputs((out, (PAGE,)))
        elif out.exists() and not out.is_dir():
            raise InputError(f"{out}: got a file, expected a folder, or the name of a new one; try another")
        require_folder(next(folder for folder in (out, *out.parents) if folder.exists()), out)
    options.require_possible()
    from pipesched.workflows.arguments import require_epsilon
    from pipesched.workflows.verifying import require_verifiable

    require_epsilon([schedule.traits for schedule in schedules], options)
    built = load_model(model)
    for schedule in schedules:
        require_verifiable([schedule], built, costs.partition_text, costs.load_cluster(schedule))
    return built


def _write(verified: Sequence[VerifiedSchedule], out: Path, costs: CostOptions, notes: Sequence[str]) -> None:
    """Write a page of all, with notes; or into a folder, of each, Timelines, one over the other, page and trace."""
    from pipesched.schedules.formats import write_text
    from pipesched.simulator.views import RunDetails, draw_gantt, save_figure, to_trace
    from pipesched.workflows.timelines import comparison_table

    limit = costs.machines.limit_bytes()

    def draw_page(runs: Sequence[VerifiedSchedule], path: Path) -> None:
        timelines = [timeline for run in runs for timeline in (run.predicted, run.measured)]
        details = [RunDetails({} if limit is None else dict.fromkeys(line.devices, limit)) for line in timelines]
        sentences = "\n".join(run.explanation.sentence for run in runs)
        lines = comparison_table([run.comparison for run in runs]).lines(())
        lines += [*map(_losses, runs), *notes]
        draw_gantt(timelines, path, caption=sentences, details=details, notes=lines)

    if suffix_of(out) == PAGE:
        draw_page(verified, out)
        return
    out.mkdir(parents=True, exist_ok=True)
    for run in verified:
        stem = run.name.replace("/", "_")[:_LONGEST_STEM]
        both = (run.predicted, run.measured)
        for timeline in both:
            write_timeline(timeline, out / f"{stem}-{timeline.source}.json")
        save_figure(run.plot, out / f"{stem}.png")
        draw_page([run], out / f"{stem}.html")
        write_text(out / f"{stem}-trace.json", to_trace(*both))
        ends = ("-predicted.json", "-measured.json", ".png", ".html", "-trace.json")
        complain(f"wrote {out}/{', '.join(stem + end for end in ends)}")
