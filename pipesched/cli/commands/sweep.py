"""``pipesched sweep``: a table of many settings at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipesched.cli.errors import NEGATIVE, InputError, in_flags
from pipesched.cli.options.common_options import OUTPUT, Json
from pipesched.cli.options.cost_options import CostOptions
from pipesched.cli.options.option_groups import grouped
from pipesched.cli.options.sweep_options import SweepOptions, sweep_setup
from pipesched.cli.options.tune_options import ray_runner
from pipesched.cli.output.doubts import doubts_of_costs
from pipesched.cli.output.output_files import check_outputs
from pipesched.cli.output.sweep_output import SWEEP, write_sweep
from pipesched.cli.terminal import complain, print_json, print_result, progress_bar
from pipesched.questions import Jitter, JitterSeed, RunCount
from pipesched.simulator import NetworkOptions
from pipesched.workflows import MAX_PROCESSES, given_stages


@grouped
def sweep(
    options: SweepOptions,
    costs: CostOptions = CostOptions(),  # noqa: B008 -- frozen
    network: NetworkOptions = NetworkOptions(),  # noqa: B008
    jitter: Jitter = 0.0,
    seed: JitterSeed = 0,
    runs: RunCount = RunCount(),  # noqa: B008
    by: Annotated[
        str | None,
        typer.Option(help="Column for the order (default: s_per_sample with a profile, else s_per_microbatch)."),
    ] = None,
    no_steady: Annotated[
        bool,
        typer.Option(
            "--no-steady", help="Skip the longer runs for the steady-state time if one batch does not show it."
        ),
    ] = False,
    workers: Annotated[
        int | None, typer.Option(help="Processes (default: one per core).", min=1, max=MAX_PROCESSES)
    ] = None,
    ray: Annotated[
        str | None, typer.Option(help="Ray cluster to sweep on, in place of --workers: its address, or local.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Journal of the sweep; a stopped sweep continues from it.")
    ] = None,
    top: Annotated[int, typer.Option(help="Rows to show.", min=1)] = 10,
    json: Json = False,
    out: Annotated[
        list[Path] | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            rich_help_panel=OUTPUT,
            help="Write all settings, .csv, .json, .parquet, .md, or a picture, .png, .svg, .pdf, .html; repeatable.",
        ),
    ] = None,
) -> None:
    """Predict every combination of schedules, counts and links in one table, each as 'simulate' does.

    Values are lists and ranges: 1,2,4 or 8:512:x2 or 4:16:4; also in --set and --link (--link bandwidth=1GB/s,10GB/s).
    An invalid setting has a row with the reason. Exits with 1 if nothing fits.
    """
    from pipesched.workflows.simulating import require_runs
    from pipesched.workflows.sweeping import SweepJudge, sweep_settings

    outputs = out or []
    check_outputs(*((path, SWEEP) for path in outputs), journal=resume)
    if workers is not None and ray is not None:
        raise InputError("--ray: got --workers too, expected one of them: a cluster has its own; leave one out")
    setup = sweep_setup(costs, network, jitter, seed)
    settings = options.space(costs, setup).settings()
    num_runs = require_runs(runs.num_runs, jitter)
    judge = SweepJudge(setup, not no_steady, in_flags, num_runs)
    with progress_bar(f"predicting {len(settings)} settings") as tick:
        result = sweep_settings(
            settings, judge, by=by, num_workers=workers, runner=ray_runner(ray), resume=resume, progress=tick
        )
    notes = doubts_of_costs(setup.loaded_costs, costs.machines)
    notes += given_stages(setup.loaded_costs) if setup.partition is None else []
    limit = costs.machines.limit_text()
    limits = [] if limit is None else [f"memory limit {limit} of every device"]
    if num_runs > 1:
        limits.append(f"each setting is the run of median makespan of {num_runs} with jitter {jitter:g}")
    said = [*judge.uneven_cuts(result.fitting[:top]), *limits, *notes]
    for path in outputs:
        write_sweep(result, path, said)
    if json:
        print_json("sweep", result.to_dict(), notes)
    else:
        print_result(result.table(top, said))
    if not result.fitting:
        complain(f"nothing fits into {costs.machines.limit_text() or 'what the devices have'}; try --recompute both")
        raise typer.Exit(NEGATIVE)
