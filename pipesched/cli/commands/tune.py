"""``pipesched tune``: the best setting for a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipesched.cli.byte_sizes import enough
from pipesched.cli.errors import NEGATIVE
from pipesched.cli.options.common_options import Json, out_option
from pipesched.cli.options.machine_options import MachineOptions
from pipesched.cli.options.option_groups import grouped
from pipesched.cli.options.run_options import RunOptions
from pipesched.cli.options.torch_options import TrustModel
from pipesched.cli.options.tune_options import Method, ProblemOptions, SpaceOptions
from pipesched.cli.output.command_lines import CommandLines
from pipesched.cli.output.doubts import doubts_of_machine
from pipesched.cli.output.memory_lines import device_limit_lines
from pipesched.cli.output.output_files import PAGE, TABLE, check_outputs, emit, table_text
from pipesched.cli.output.tune_print import (
    page_of_settings,
    print_race,
    print_settings,
    print_verdict,
    result_to_dict,
)
from pipesched.cli.terminal import complain, num_bytes, print_json, progress_bar
from pipesched.profiles.processes import LoadMeter
from pipesched.schedules.formats import suffix_of
from pipesched.workflows import (
    MAX_PROCESSES,
    AccountingChoice,
    EvaluatorChoice,
    given_stages,
    other_device,
    unknown_bytes,
    unknown_to_equations,
)

if TYPE_CHECKING:
    from pipesched.simulator.tuner import Problem
    from pipesched.workflows.tuning import Measurement, TuneResult, Verdict


@grouped
def tune(
    problem: ProblemOptions,
    space: SpaceOptions = SpaceOptions(),  # noqa: B008 -- frozen
    machines: MachineOptions = MachineOptions(),  # noqa: B008
    runs: RunOptions = RunOptions(),  # noqa: B008
    evaluator: Annotated[
        EvaluatorChoice,
        typer.Option(
            help="Evaluator of the settings: our simulator, AvgPipe's equations, a run of each setting here, or a "
            "guideline (most or largest micro-batches)."
        ),
    ] = "simulate",
    accounting: Annotated[
        AccountingChoice, typer.Option(help="AvgPipe's equations as printed, or all terms per iteration.")
    ] = "paper",
    workers: Annotated[
        int | None, typer.Option(help="Processes (default: one per core).", min=1, max=MAX_PROCESSES)
    ] = None,
    ray: Annotated[
        str | None, typer.Option(help="Ray cluster to search on, in place of --workers: its address, or local.")
    ] = None,
    verify: Annotated[
        int | None,
        typer.Option(
            help="Run the best N settings and plain 1F1B here, and compare the times with the prediction.", min=1
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            help="Seconds of a race on this machine: the best settings (--verify of them, or 4) and plain 1F1B run in "
            "turn until one is clearly the fastest."
        ),
    ] = None,
    trust_model: TrustModel = False,
    resume: Annotated[
        Path | None, typer.Option(help="Journal of the search; a stopped search continues from it.")
    ] = None,
    top: Annotated[int, typer.Option(help="Settings to print that fit, and that do not.", min=1)] = 10,
    plot: Annotated[Path | None, typer.Option(help="Draw time and memory over M and N: .png, .svg or .pdf.")] = None,
    json: Json = False,
    out: Annotated[
        list[Path] | None, out_option("Write every setting: .md, .csv, .json, or .html; repeatable.")
    ] = None,
) -> None:
    """Choose micro-batches M, pipelines N and more for a model, a batch and a memory limit (--out: a table or page).

    A model is profiled here first, at the sizes of its possible micro-batches: the medians of three short profiles.
    Batch, micro-batches M and times are per pipeline; N pipelines run at once. Several pipelines are averaged
    elastically, which is another training. The answer has plain training unless --pipelines is given; the best setting
    with elastic averaging stands beside it. Exits with 1 if nothing fits.
    """
    from pipesched.simulator.views import FIGURE_SUFFIXES
    from pipesched.workflows.tuning import CONTENDERS, raced, search_problem, with_trust

    check_outputs((plot, FIGURE_SUFFIXES), *((path, (*TABLE, PAGE)) for path in out or ()), journal=resume)
    method = Method(evaluator, workers, ray, resume)
    method.require_possible(problem)
    measures = evaluator == "measure"
    is_run = measures or verify is not None or budget is not None
    _require_possible(runs, evaluator, budget, is_run=is_run)
    space.schedules()  # before a model is profiled
    meter = LoadMeter()
    loaded = problem.load(machines, space, runs)
    loaded = with_trust(loaded) if trust_model else loaded
    measurement = _measurement(loaded, runs) if is_run else None
    notes = [*other_device(loaded.profile, machines.machine), *unknown_bytes(loaded.profile)]
    notes += given_stages(loaded.profile, problem.devices) if problem.partition is None else []
    notes += unknown_to_equations(loaded.network, evaluator)
    notes += doubts_of_machine(problem.devices, runs, meter) if is_run else []
    settings = space.load(loaded).settings()
    with progress_bar(f"{'running' if measures else 'tuning over'} {len(settings)} settings") as tick:
        result = search_problem(
            loaded,
            settings,
            evaluator,
            averages=space.pipelines is not None,
            accounting=accounting,
            num_workers=workers,
            runner=method.runner(),
            resume=resume,
            judge=measurement if measures else None,
            how=repr(runs) if measures else "simulate",
            num_paced=top,
            num_leading=None if json or any([plot, out, budget]) else max(top, verify or 1),
            progress=tick,
        )
    if budget is not None and measurement is not None:
        with progress_bar("racing the best settings") as tick:
            result = raced(result, measurement, budget, verify or CONTENDERS, tick)
    notes += result.notes
    commands = CommandLines(loaded, problem, runs)
    if plot is not None:
        from pipesched.simulator.views import draw_heat_maps

        draw_heat_maps(result.outcomes, plot, result.title)
    limit = [*device_limit_lines(machines, loaded.cluster, range(problem.devices)), *commands.warnings()]
    for path in out or ():
        if suffix_of(path) == PAGE:
            emit(page_of_settings(result, loaded, commands, [*limit, *notes]), path)
        else:
            rows = _rows_with_plan(result, loaded, path) if suffix_of(path) == ".json" else result.to_rows()
            emit(table_text(rows, suffix_of(path)), path)
    verdict = (
        None if verify is None or budget is not None or measurement is None else _verdict(result, verify, measurement)
    )
    if json:
        data = result_to_dict(result, commands) | ({} if verdict is None else {"verified": verdict.to_dict()})
        print_json("tune", data, notes if verdict is None else [*notes, *verdict.notes])
    else:
        print_settings(result, loaded, top, commands, [*limit, *notes])
        if result.race is not None:
            print_race(result.race, commands)
    if verdict is not None and not json and result.fitting:
        print_verdict(verdict)
    if not result.fitting:
        complain(_nothing_fits(result, machines.memory_limit))
        raise typer.Exit(NEGATIVE)


def _require_possible(runs: RunOptions, evaluator: str, budget_s: float | None, *, is_run: bool) -> None:
    """Refuse runs that this machine cannot do, before a model is profiled."""
    from pipesched.workflows.tuning import require_budget

    if budget_s is not None:
        require_budget("budget_s", budget_s, evaluator)
    if is_run:
        from pipesched.workflows.arguments import require_epsilon  # loads torch, which a prediction does without

        runs.require_possible()
        require_epsilon((), runs)


def _measurement(problem: Problem, runs: RunOptions) -> Measurement:
    """Return the judge that runs settings with the given options."""
    from pipesched.workflows.measuring import modelled_spec
    from pipesched.workflows.tuning import Measurement, require_same_layers

    require_same_layers(problem)
    once = runs.counts() | {"warmup": 0, "iterations": 1}
    return Measurement(
        problem,
        iterations=runs.iterations,
        warmup=runs.warmup,
        spec=lambda lists, model, bounds, size: modelled_spec(lists, model, bounds, size, runs, **once),
    )


def _rows_with_plan(result: TuneResult, problem: Problem, out: Path) -> list[dict[str, Any]]:
    """Return the rows of all settings; the row of the answer has its plan, which `run --plan` reads."""
    from json import loads

    from pipesched.profiles.io.plan_json import plan_text
    from pipesched.simulator.tuner import plan_of_setting

    rows, chosen = result.to_rows(), result.chosen
    if chosen is not None:
        rows[result.outcomes.index(chosen)]["plan"] = loads(plan_text(plan_of_setting(chosen, problem), str(out)))
    return rows


def _verdict(result: TuneResult, count: int, measurement: Measurement) -> Verdict:
    """Run the best settings, and plain 1F1B."""
    from pipesched.workflows.tuning import to_verify, verified_settings

    best = to_verify(result.candidates, result.plain, count)
    with progress_bar(f"running {len(best)} settings") as tick:
        profiled = measurement.problem.profile.provenance.yardstick
        return verified_settings(best, measurement, tick, profiled=profiled)


def _nothing_fits(result: TuneResult, limit: str | None) -> str:
    from pipesched.simulator.search import least

    nearest = least(result.outcomes)
    assert nearest is not None, "some setting has a time, and so a memory"
    assert nearest.held_bytes is not None
    needed = f"{nearest.held_bytes} bytes ({num_bytes(nearest.held_bytes)})"
    return (
        f"nothing fits into {limit or 'what the devices have'}: {nearest.setting} needs least, {needed}; "
        f"try --memory-limit {enough(nearest.held_bytes)}, --recompute both, more --ranks"
    )
