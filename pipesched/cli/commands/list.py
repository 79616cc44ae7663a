"""``pipesched list``: every schedule of the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipesched.cli.options.common_options import Json
from pipesched.cli.options.option_groups import grouped
from pipesched.cli.terminal import print_json, print_table

if TYPE_CHECKING:
    from pipesched.schedules.builders import Entry, Parameter


@grouped
def list_schedules(json: Json = False) -> None:
    """List the schedules, their other names and their parameters; names are case-insensitive."""
    from pipesched.schedules.builders import CATALOGUE

    entries = CATALOGUE.values()
    if json:
        print_json(
            "list",
            {
                "schedules": [
                    {
                        "name": entry.name,
                        "text": entry.text,
                        "source": entry.source,
                        "is_asynchronous": entry.traits.is_asynchronous,
                        "averages": entry.traits.averages,
                        "takes_chunks": entry.traits.takes_chunks,
                        "chunks": None if entry.traits.takes_chunks else entry.chunks_with(None, {}),
                        "aliases": list(entry.aliases),
                        "parameters": [
                            {"name": parameter.name, "default": parameter.default, "text": parameter.text}
                            for parameter in entry.parameters
                        ],
                    }
                    for entry in entries
                ]
            },
        )
        return
    print_table(
        "Schedules",
        [
            {
                "name": entry.name,
                "what": entry.text + _options(entry),
                "flush": "no" if entry.traits.is_asynchronous else "yes",
                "source": entry.source,
                "also": ", ".join(entry.aliases),
            }
            for entry in entries
        ],
        "in brackets: options beside -p and -m",
        most_columns=3,
    )


def _options(entry: Entry) -> str:
    """Return the options of a schedule beside its counts, in brackets, or an empty text."""
    options = ["-v"] if entry.traits.takes_chunks else []
    options += [f"--set {parameter.name}={_shown(parameter)}" for parameter in entry.parameters]
    return f" [{' '.join(options)}]" if options else ""


def _shown(parameter: Parameter) -> str:
    """Return the default, or ".." if it depends on the counts."""
    return ".." if parameter.default is None else str(parameter.default)
