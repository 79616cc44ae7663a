"""Options for facts about runs that their Timelines lack."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from pipesched.cli.byte_sizes import parse_bytes
from pipesched.cli.errors import InputError
from pipesched.schedules.formats import suffix_of

if TYPE_CHECKING:
    from pipesched.profiles.costs import Profile
    from pipesched.workflows.measuring import RunsArgument


@dataclass(frozen=True, slots=True)
class RunCostOptions:
    """Options for facts about runs that their Timelines lack."""

    panel: ClassVar[str] = "Costs"
    profile: Annotated[
        Path | None, typer.Option(help="Profile of the runs' model: bytes, and I and W as shares of B.")
    ] = None
    layer_costs: Annotated[
        Path | None, typer.Option(help="Table of the layers' costs (CSV), in place of --profile.")
    ] = None
    run_partition: Annotated[
        str | None, typer.Option(help="Partition of the runs' layers, with either: balanced, uniform, or 3,3,4.")
    ] = None
    microbatch_size: Annotated[
        int | None, typer.Option(help="Samples per micro-batch of the runs.", min=1, max=2**31 - 1)
    ] = None
    output_bytes: Annotated[str | None, typer.Option(help="Size of a message, without a profile: 1e6 or 4MiB.")] = None
    warmup: Annotated[
        int, typer.Option(help="First ops of each kind and stage to ignore, if others remain.", min=0)
    ] = 1

    def keywords(self) -> dict[str, Any]:
        """Return the options as keywords of `costs_from_runs`.

        Raises:
            InputError: One is no size, or there are a profile and a table.
            ProfileError: The table is bad, or a profile cannot express it.
        """
        num_bytes = None if self.output_bytes is None else parse_bytes(self.output_bytes, "--output-bytes")
        return {
            "profile": self._layers(),
            "run_partition": self.run_partition,
            "microbatch_size": self.microbatch_size,
            "output_bytes": num_bytes,
            "warmup": self.warmup,
        }

    def _layers(self) -> Path | Profile | None:
        if self.layer_costs is None:
            return self.profile
        if self.profile is not None:
            raise InputError("--layer-costs: got --profile too, expected one of them; leave one out")
        from pipesched.workflows.measuring import profile_of_layers

        return profile_of_layers(self.layer_costs, self.microbatch_size or 1).profile


def run_files(text: str, option: str) -> RunsArgument:
    """Return the files of Timelines in a list as ``a.json,b.json``.

    Raises:
        InputError: A name is empty, or of no JSON file.
    """
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name.lower().endswith(".json.gz"):
            raise InputError(
                f"{option}: got {name!r}, a trace, expected a Timeline; try 'pipesched import {name} --out run.json'"
            )
        if suffix_of(name) != ".json":
            raise InputError(
                f"{option}: got {name!r}, expected a Timeline (.json), or several as a.json,b.json; "
                "try 'pipesched run ... --out run.json'"
            )
    return [Path(name) for name in names]
