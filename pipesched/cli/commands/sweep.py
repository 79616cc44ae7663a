"""``pipesched sweep``: a table of many settings at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import pipesched
from pipesched.cli.errors import NEGATIVE, InputError, in_flags
from pipesched.cli.options.cost_options import EstimatedCostOptions
from pipesched.cli.options.machine_options import MachineOptions
from pipesched.cli.options.option_groups import OUTPUT, Json, grouped, out_option
from pipesched.cli.options.values import amounts, integers, long_key, read_integer, unknown_key
from pipesched.cli.output.notes import doubts_of_own_machine
from pipesched.cli.output.output_files import PAGE, TABLE, check_outputs, emit, print_answer
from pipesched.cli.terminal import complain, json_answer, progress_bar
from pipesched.profiles import clusters
from pipesched.questions import Jitter, JitterSeed, SweepSettings
from pipesched.schedules.common import tuple_of, values_of
from pipesched.schedules.formats import suffix_of
from pipesched.simulator import NetworkOptions
from pipesched.simulator.analysis import TABLE_FORMATS
from pipesched.simulator.views import FIGURE_SUFFIXES, save_figure, write_parquet
from pipesched.workflows import arguments, simulating

if TYPE_CHECKING:
    from pipesched.schedules.builders import Parameter
    from pipesched.simulator.search import ParameterNumber
    from pipesched.workflows.sweeping import SweepResult

_SUFFIXES = (*TABLE, ".parquet", *FIGURE_SUFFIXES, PAGE)
"""Suffixes of the files of a sweep."""


@grouped
def sweep(
    schedule: Annotated[
        str,
        typer.Option(
            "--schedule", "-s", rich_help_panel="Schedule", help="Schedules by name, or your own builders, as 1f1b,zbv."
        ),
    ],
    asked: SweepSettings,
    parameters: Annotated[
        list[str] | None,
        typer.Option("--set", rich_help_panel="Schedule", help="Values of a parameter, as key=1,2,4; repeatable."),
    ] = None,
    costs: EstimatedCostOptions = EstimatedCostOptions(),  # noqa: B008 -- frozen
    network: NetworkOptions = NetworkOptions(),  # noqa: B008
    jitter: Jitter = 0.0,
    seed: JitterSeed = 0,
    top: Annotated[int, typer.Option(rich_help_panel=OUTPUT, help="Rows to show.", min=1)] = 10,
    json: Json = False,
    out: Annotated[
        list[Path] | None,
        out_option("Write all settings: a table, a picture or a page", _SUFFIXES, is_repeatable=True),
    ] = None,
) -> None:
    """Predict every combination of schedules, counts and links in one table, each as 'simulate' does.

    Values are lists and ranges: 1,2,4 or 8:512:x2 or 4:16:4; also in --set and --link (--link bandwidth=1GB/s,10GB/s).
    An invalid setting has a row with the reason. Exits with 1 if nothing fits.
    """
    outputs = out or []
    check_outputs(
        *((path, _SUFFIXES) for path in outputs), journal=None if asked.resume is None else Path(asked.resume)
    )
    names = [name.strip() for name in schedule.split(",") if name.strip()]
    if not names:
        raise InputError(f"--schedule: got {schedule!r}, expected names; try 1f1b,zbv")
    setup = _setup(costs, asked, network, jitter, seed)
    with progress_bar("predicting settings") as tick:
        result = pipesched.sweep(
            names,
            setup,
            **values_of(asked),
            parameters=_parameter_values(parameters or (), names),
            link=_link_values(costs.machines),
            say=in_flags,
            progress=tick,
        )
    limits = _conditions(asked, costs.machines.limit_text(), jitter)
    doubts = doubts_of_own_machine(setup.loaded_costs, costs.machines.machine)
    for path in outputs:
        _write(result, path, [*limits, *doubts])
    said = result.table(top, [*limits, *doubts])
    print_answer("sweep", result.to_dict(), [*doubts, *result.notes], [said], is_json=json)
    if not result.fitting:
        can_recompute = asked.recompute == "no" and not setup.loaded_costs.is_recomputed
        advice = "--recompute both" if can_recompute else "more ranks (-p)"
        complain(f"nothing fits into {costs.machines.limit_text() or 'the memory of the devices'}; try {advice}")
        raise typer.Exit(NEGATIVE)


def _conditions(asked: SweepSettings, limit: str | None, jitter: float) -> list[str]:
    """Return lines on the memory limit, on jitter and on the step, for all settings."""
    lines = [] if limit is None else [f"memory limit {limit} of every device"]
    if asked.num_runs > 1:
        lines.append(
            f"each setting shows the run with the median makespan of {asked.num_runs} runs with jitter {jitter:g}"
        )
    if asked.step_barrier:
        lines.append("every setting steps after the backwards of all stages")
    return lines


def _write(result: SweepResult, path: Path, notes: Sequence[str]) -> None:
    """Write every setting to `path`, which has one of the suffixes of `_SUFFIXES`; a page with notes."""
    match suffix_of(path):
        case ".parquet":
            write_parquet(result.to_frame(), path)
        case ".html":
            emit(result.page(notes), path)
        case suffix if suffix in FIGURE_SUFFIXES:
            save_figure(result.plot, path)
        case ".json":
            emit(json_answer("sweep", result.to_dict()), path)
        case suffix:
            emit(TABLE_FORMATS[suffix](result.to_rows()), path)


def _parameter_values(texts: Sequence[str], names: Sequence[str]) -> dict[str, tuple[ParameterNumber, ...]]:
    """Return the values of each parameter in ``--set key=1,2,other=3``.

    Args:
        texts: The texts of the option.
        names: Names of the schedules.

    Raises:
        InputError: A value cannot be read, or no schedule has the parameter.
        ScheduleError: A schedule does not exist.
    """
    known = {parameter.name: parameter for name in names for parameter in arguments.entry_of(name).parameters}
    values = dict[str, str]()
    for text in texts:
        values |= _value_lists(text, "--set", known, "advance=1,2")
    return {name: _values(known[name], text) for name, text in values.items()}


def _values(parameter: Parameter, text: str) -> tuple[ParameterNumber, ...]:
    place = f"--set: {parameter.name}"
    if parameter.takes == "integers":  # whose colons are a list, not a range
        return tuple(integers(part, place) for part in text.split(","))
    values = amounts(text, place)
    return values if parameter.takes == "number" else tuple(read_integer(f"{value:.17g}", place) for value in values)


def _value_lists(text: str, option: str, keys: Collection[str], example: str) -> dict[str, str]:
    """Split ``key=1,2,other=3`` into the values of each key, as they are written; a key may lack its unit.

    Raises:
        InputError: A key is unknown, comes twice, or has no value.
    """
    texts: dict[str, str] = {}
    key = ""
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.rpartition("="))
        if equals:
            key = long_key(name, keys)
            if key not in keys:
                raise unknown_key(option, name, keys)
            if key in texts:
                raise InputError(f"{option}: got {name} twice, expected it once; remove one")
        if not key or not value:
            raise InputError(f"{option}: got {part!r}, expected key=value,value; try {option} {example}")
        texts[key] = f"{texts[key]},{value}" if key in texts else value
    return texts


def _link_values(machines: MachineOptions) -> dict[str, tuple[float, ...]] | None:
    """Return the values that ``--link bandwidth=1e9,1e10`` varies, or None without --link.

    Raises:
        InputError: The option has no values.
    """
    if machines.link is None:
        return None
    if replace(machines, link=None).are_given:
        raise InputError("--link: got other machines too, expected only one of them; leave one out")
    keys = [part.name for part in fields(clusters.Link)]
    texts = _value_lists(machines.link, "--link", keys, "bandwidth=1GB/s,10GB/s")
    return {key: amounts(text, f"--link: {key}") for key, text in texts.items()}


def _setup(
    costs: EstimatedCostOptions, asked: SweepSettings, network: NetworkOptions, jitter: float, seed: int
) -> simulating.Setup:
    """Return the common setup of all settings of a sweep.

    Raises:
        InputError: The options do not name exactly one source of costs, or one cluster.
        ProfileError: A file is bad.
    """
    sizes = None if asked.microbatch_sizes is None else tuple_of(asked.microbatch_sizes)
    known = replace(costs, machines=replace(costs.machines, link=None, memory_limit=None))
    source, cluster = costs.source(sizes=sizes), None
    if known.machines.are_given or (costs.estimate.gpu is not None and costs.machines.link is None):
        is_open = known.machines.nodes is None and known.machines.cluster is None
        num_devices = max(tuple_of(asked.num_ranks)) if is_open else 1
        cluster = known.load_devices(num_devices, "a sweep", gpus_per_device=source.gpus_per_device)
    return simulating.Setup(
        source,
        cluster,
        network,
        costs.machines.limit_bytes(),
        **values_of(costs),
        jitter=jitter,
        seed=seed,
    )
