"""Options for facts about runs that their Timelines lack."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipesched.cli.errors import InputError
from pipesched.questions import MessageFacts
from pipesched.schedules.common import values_of
from pipesched.schedules.formats import suffix_of

if TYPE_CHECKING:
    from pipesched.profiles.costs import Profile
    from pipesched.workflows.measuring import RunsArgument


@dataclass(frozen=True, kw_only=True)
class RunCostOptions(MessageFacts):
    """Options for facts about runs that their Timelines lack."""

    profile: Annotated[
        Path | None, typer.Option(help="Profile of the runs' model: bytes, and I and W as shares of B.")
    ] = None
    layer_costs: Annotated[
        Path | None, typer.Option(help="Table of the layers' costs (CSV), in place of --profile.")
    ] = None

    def keywords(self) -> dict[str, Any]:
        """Return the options as keywords of `costs_from_runs`.

        Raises:
            InputError: There are a profile and a table.
            ProfileError: The table is bad, or a profile cannot express it.
        """
        return {"profile": self._layers(), **values_of(self)}

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
