"""Options of ``pipesched sweep`` with lists of values: ``--set`` and ``--link``; and its setup."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from pipesched.cli.errors import InputError
from pipesched.cli.options.cost_options import EstimatedCostOptions
from pipesched.cli.options.machine_options import MachineOptions
from pipesched.cli.options.values import amounts, integers, long_key, read_integer, unknown_key
from pipesched.questions import SweepSettings
from pipesched.schedules.common import tuple_of, values_of
from pipesched.simulator import NetworkOptions

if TYPE_CHECKING:
    from pipesched.schedules.builders import Parameter
    from pipesched.simulator.search import ParameterNumber
    from pipesched.workflows.simulating import Setup


def parameter_values(texts: Sequence[str], names: Sequence[str]) -> dict[str, tuple[ParameterNumber, ...]]:
    """Return the values of each parameter in ``--set key=1,2,other=3``.

    Args:
        texts: The texts of the option.
        names: Names of the schedules.

    Raises:
        InputError: A value cannot be read, or no schedule has the parameter.
        ScheduleError: A schedule does not exist.
    """
    from pipesched.workflows.arguments import entry_of

    known = {parameter.name: parameter for name in names for parameter in entry_of(name).parameters}
    values = dict[str, str]()
    for text in texts:
        values |= value_lists(text, "--set", known, "advance=1,2")
    return {name: _values(known[name], text) for name, text in values.items()}


def _values(parameter: Parameter, text: str) -> tuple[ParameterNumber, ...]:
    place = f"--set: {parameter.name}"
    if parameter.takes == "integers":  # whose colons are a list, not a range
        return tuple(integers(part, place) for part in text.split(","))
    values = amounts(text, place)
    return values if parameter.takes == "number" else tuple(read_integer(f"{value:.17g}", place) for value in values)


def value_lists(text: str, option: str, keys: Collection[str], example: str) -> dict[str, str]:
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


def link_values(machines: MachineOptions) -> dict[str, tuple[float, ...]] | None:
    """Return the values that ``--link bandwidth=1e9,1e10`` varies, or None without --link.

    Raises:
        InputError: The option has no values.
    """
    if machines.link is None:
        return None
    from pipesched.profiles.clusters import Link

    if replace(machines, link=None).are_given:
        raise InputError("--link: got other machines too, expected one of them; leave one out")
    keys = [part.name for part in fields(Link)]
    texts = value_lists(machines.link, "--link", keys, "bandwidth=1GB/s,10GB/s")
    return {key: amounts(text, f"--link: {key}") for key, text in texts.items()}


def sweep_setup(
    costs: EstimatedCostOptions, asked: SweepSettings, network: NetworkOptions, jitter: float, seed: int
) -> Setup:
    """Return the common setup of all settings of a sweep.

    Raises:
        InputError: The options do not name exactly one source of costs, or one cluster.
        ProfileError: A file is bad.
    """
    from pipesched.workflows.simulating import Setup

    sizes = None if asked.microbatch_sizes is None else tuple_of(asked.microbatch_sizes)
    known = replace(costs, machines=replace(costs.machines, link=None, memory_limit=None))
    source, cluster = costs.source(None, sizes=sizes), None
    if known.machines.are_given or (costs.estimate.gpu is not None and costs.machines.link is None):
        is_open = known.machines.nodes is None and known.machines.cluster is None
        num_devices = max(tuple_of(asked.num_ranks)) if is_open else 1
        cluster = known.load_devices(num_devices, "a sweep", gpus_per_device=source.gpus_per_device)
    return Setup(
        source,
        cluster,
        network,
        costs.machines.limit_bytes(),
        **values_of(costs),
        jitter=jitter,
        seed=seed,
    )
