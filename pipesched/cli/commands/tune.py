"""``pipesched tune``: the best setting for a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import pipesched
from pipesched.cli.errors import NEGATIVE, in_flags
from pipesched.cli.options.machine_options import MachineOptions
from pipesched.cli.options.option_groups import Json, file_option, grouped, out_option
from pipesched.cli.options.torch_options import RunOptions
from pipesched.cli.options.tune_options import TunedModel
from pipesched.cli.options.values import enough
from pipesched.cli.output.command_lines import CommandLines
from pipesched.cli.output.notes import device_limit_lines, doubts_of_machine, doubts_of_own_machine
from pipesched.cli.output.output_files import PAGE, TABLE, check_outputs, emit
from pipesched.cli.terminal import complain, print_json, print_result, print_results, progress_bar
from pipesched.executor import Repetitions
from pipesched.profiles.processes import LoadMeter
from pipesched.questions import TuneSettings
from pipesched.schedules.common import values_of
from pipesched.schedules.formats import suffix_of
from pipesched.simulator.analysis import TABLE_FORMATS, readable_bytes
from pipesched.simulator.views import FIGURE_SUFFIXES, save_figure

if TYPE_CHECKING:
    from pipesched.workflows.simulating import Setup
    from pipesched.workflows.tuning import TuneResult, Verdict


@grouped
def tune(
    tuned: TunedModel,
    asked: TuneSettings,
    machines: MachineOptions = MachineOptions(),  # noqa: B008 -- frozen
    runs: RunOptions = RunOptions(),  # noqa: B008
    verify: Annotated[
        int | None,
        typer.Option(
            help="Run the best N settings and plain 1F1B here, and compare the times with the prediction; with "
            "--budget, the settings in the race (default: 4).",
            min=1,
        ),
    ] = None,
    plot: Annotated[Path | None, file_option("Draw time and memory over M and N", FIGURE_SUFFIXES)] = None,
    json: Json = False,
    out: Annotated[list[Path] | None, out_option("Write every setting", (*TABLE, PAGE), is_repeatable=True)] = None,
) -> None:
    """Choose micro-batches M, pipelines N and more for a model, a batch and a memory limit (--out: a table or page).

    A model is profiled here first, at the sizes of its possible micro-batches: the medians of three short profiles.
    Counts are lists and ranges: 1,2,4 or 8:64:x2. Batch, micro-batches M and times are per pipeline; N pipelines run at
    once. Several pipelines are averaged elastically, which is another training. The answer has plain training unless
    --pipelines is given; the best setting with elastic averaging stands beside it. Exits with 1 if nothing fits.
    """
    from pipesched.workflows.tuning import require_same_layers, require_tuning

    journal = None if asked.resume is None else Path(asked.resume)
    check_outputs((plot, FIGURE_SUFFIXES), *((path, (*TABLE, PAGE)) for path in out or ()), journal=journal)
    require_tuning(asked, runs)
    is_run = asked.evaluator == "measure" or verify is not None or asked.budget_s is not None
    if is_run:
        _require_possible(runs)
    meter = LoadMeter()
    cluster = machines.load_first(asked.num_devices, "--ranks", "tune")
    setup = tuned.setup(machines, cluster, asked, runs)
    profile, num_devices, doubts = setup.profile, len(cluster.devices), list[str]()
    if is_run:
        require_same_layers(profile)
        doubts += doubts_of_machine(num_devices, runs, meter)
    doubts += doubts_of_own_machine(profile, machines.machine)
    result = _searched(setup, asked, runs, verify, is_exact=json or any([plot, out, asked.budget_s]))
    commands = CommandLines(result.problem, tuned, runs)
    if plot is not None:
        save_figure(result.plot, plot)
    limit = [*device_limit_lines(machines, cluster, range(num_devices)), *commands.warnings(), *doubts]
    for path in out or ():
        _write(result, limit, commands, path)
    verdict = None if verify is None or asked.budget_s is not None else _verdict(result, verify, runs)
    if json:
        data = _data(result, commands) | ({} if verdict is None else {"verified": verdict.to_dict()})
        print_json("tune", data, [*doubts, *result.notes, *([] if verdict is None else verdict.notes)])
    else:
        print_results(result.tables(asked.top, limit, commands.lines, in_flags))
        if verdict is not None:
            print_result(verdict.table(), verdict.notes)
    if not result.fitting:
        can_recompute = asked.recompute == "no" and not profile.is_recomputed
        complain(_nothing_fits(result, machines.memory_limit, can_recompute=can_recompute))
        raise typer.Exit(NEGATIVE)


def _searched(setup: Setup, asked: TuneSettings, runs: RunOptions, verify: int | None, *, is_exact: bool) -> TuneResult:
    """Search, and race the best settings if there is a budget."""
    from pipesched.workflows.tuning import CONTENDERS

    first = asked.top if is_exact else max(asked.top, verify or 1)
    searching = "running the settings" if asked.evaluator == "measure" else "tuning"
    with progress_bar(searching if asked.budget_s is None else "tuning, then racing the best settings") as tick:
        return pipesched.tune(
            setup,
            **values_of(asked) | {"top": first},
            **_how(runs),
            num_contenders=verify or CONTENDERS,
            is_exact=is_exact,
            progress=tick,
        )


def _require_possible(runs: RunOptions) -> None:
    """Refuse runs that this machine cannot do."""
    from pipesched.workflows.arguments import require_epsilon  # loads torch, which a prediction does without

    runs.require_possible()
    require_epsilon((), runs)


def _write(result: TuneResult, notes: Sequence[str], commands: CommandLines, out: Path) -> None:
    """Write every setting, as a page or a table."""
    if suffix_of(out) == PAGE:
        emit(result.page(notes, commands.lines, in_flags), out)
    else:
        rows = _rows_with_plan(result, out) if suffix_of(out) == ".json" else result.to_rows()
        emit(TABLE_FORMATS[suffix_of(out)](rows), out)


def _data(result: TuneResult, commands: CommandLines) -> dict[str, Any]:
    """Return plain data, with the command lines of the answer, and of the best setting with elastic averaging."""
    data, best, averaged = result.to_dict(), result.chosen, result.averaged
    if averaged is not None:
        data["with_elastic_averaging"]["commands"] = commands(averaged.setting)
    return data | {"commands": None if best is None else commands(best.setting)}


def _how(runs: RunOptions) -> dict[str, Any]:
    """Return the arguments of the library for runs."""
    return {"run_settings": runs, **values_of(runs, Repetitions)}


def _verdict(result: TuneResult, count: int, runs: RunOptions) -> Verdict | None:
    """Run the best settings, and plain 1F1B; return None if nothing fits."""
    if not result.candidates:
        return None
    with progress_bar("running the best settings") as tick:
        return pipesched.run_settings(result, count, **_how(runs), progress=tick)


def _rows_with_plan(result: TuneResult, out: Path) -> list[dict[str, Any]]:
    """Return the rows of all settings; the row of the answer has its plan, which `run --plan` reads."""
    from json import loads

    from pipesched.profiles.io.plan_json import plan_text

    rows, chosen = result.to_rows(), result.chosen
    if chosen is not None:
        rows[result.outcomes.index(chosen)]["plan"] = loads(plan_text(result.problem.plan_of(chosen), str(out)))
    return rows


def _nothing_fits(result: TuneResult, limit: str | None, *, can_recompute: bool) -> str:
    from pipesched.simulator.search import least

    nearest = least(result.outcomes)
    assert nearest is not None, "some setting has a time, and so a memory"
    assert nearest.held_bytes is not None
    needed = f"{nearest.held_bytes} bytes ({readable_bytes(nearest.held_bytes)})"
    return (
        f"nothing fits into {limit or 'what the devices have'}: {nearest.setting} needs least, {needed}; "
        f"try --memory-limit {enough(nearest.held_bytes)}, {'--recompute both, ' * can_recompute}more --ranks"
    )
