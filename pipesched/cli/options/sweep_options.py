"""Options of ``pipesched sweep``: the values to combine."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import typer

from pipesched.cli.errors import InputError
from pipesched.cli.options.cost_options import CostOptions
from pipesched.cli.options.count_list import amounts, counts
from pipesched.cli.options.key_values import integers, long_key, read_integer, unknown_key
from pipesched.cli.options.machine_options import MachineOptions
from pipesched.simulator import NetworkOptions

if TYPE_CHECKING:
    from pipesched.schedules.builders import Parameter
    from pipesched.workflows.simulating import Setup
    from pipesched.workflows.sweeping import ParameterNumber, SweepSpace


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """The values to combine: lists and ranges, as ``1,2,4``, ``8:512:x2`` and ``4:16:4``."""

    panel: ClassVar[str] = "Schedule"
    schedule: Annotated[str, typer.Option("--schedule", "-s", help="Names, or builders of yours, as 1f1b,zbv.")]
    ranks: Annotated[
        str, typer.Option("--ranks", "-p", metavar="N,N", help="Ranks of the pipeline, as 4,8 or 4:64:x2.")
    ]
    microbatches: Annotated[
        str, typer.Option("--microbatches", "-m", metavar="N,N", help="Micro-batches, as 8:512:x2 or 8:64:8.")
    ]
    chunks: Annotated[
        str | None,
        typer.Option("--chunks", "-v", metavar="N,N", help="Stages per rank, of the schedules that take them."),
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Values of a parameter, key=1,2,4, of the schedules that have it; repeatable."),
    ] = None
    recompute: Annotated[
        Literal["no", "yes", "both"], typer.Option(help="Recompute activations from the input of each stage.")
    ] = "no"
    microbatch_sizes: Annotated[
        str | None, typer.Option(help="Samples of a micro-batch, with --profile, as 1,2,4.")
    ] = None
    where: Annotated[str | None, typer.Option(help="Condition on settings: 'm % p == 0 and p * v in (8, 16)'.")] = None

    def space(self, costs: CostOptions, setup: Setup) -> SweepSpace:
        """Return the space of all settings.

        Raises:
            InputError: A value cannot be read.
            ArgumentError: A value makes no sense, or no schedule takes it.
            ScheduleError: A schedule does not exist.
        """
        from pipesched.workflows.sweeping import make_sweep_space

        if self.microbatch_sizes is not None and costs.microbatch_size is not None:
            raise InputError("--microbatch-sizes: got --microbatch-size too, expected one of them; leave one out")
        sizes = counts(self.microbatch_sizes, "--microbatch-sizes", 1) if self.microbatch_sizes is not None else None
        names = [name.strip() for name in self.schedule.split(",") if name.strip()]
        if not names:
            raise InputError(f"--schedule: got {self.schedule!r}, expected names; try 1f1b,zbv")
        return make_sweep_space(
            names,
            setup.loaded_costs,
            num_ranks=counts(self.ranks, "--ranks", 1),
            num_microbatches=counts(self.microbatches, "--microbatches", 1),
            num_chunks=None if self.chunks is None else counts(self.chunks, "--chunks", 1),
            parameters=self._parameters(names),
            recomputes={"no": (False,), "yes": (True,), "both": (False, True)}[self.recompute],
            microbatch_sizes=sizes or _given(costs.microbatch_size),
            link=link_values(costs.machines),
            where=self.where,
        )

    def _parameters(self, names: Sequence[str]) -> dict[str, tuple[ParameterNumber, ...]]:
        from pipesched.workflows.arguments import entry_of

        known = {parameter.name: parameter for name in names for parameter in entry_of(name).parameters}
        texts = dict[str, str]()
        for line in self.settings or ():
            texts |= value_lists(line, "--set", known, "advance=1,2")
        return {name: _values(known[name], text) for name, text in texts.items()}


def _given(size: int | None) -> tuple[int] | None:
    return None if size is None else (size,)


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


def sweep_setup(costs: CostOptions, network: NetworkOptions, jitter: float, seed: int) -> Setup:
    """Return the common setup of all settings of a sweep.

    Raises:
        InputError: The options do not name exactly one source of costs, or one cluster.
        ProfileError: A file is bad.
    """
    from pipesched.workflows.simulating import Setup

    machines = replace(costs.machines, link=None, memory_limit=None)
    return Setup(
        costs=costs.source(None),
        cluster=machines.load(1, "a sweep") if machines.are_given else None,
        partition=costs.partition,
        input_share=costs.input_share,
        network=network,
        limit_bytes=costs.machines.limit_bytes(),
        jitter=jitter,
        seed=seed,
    )
