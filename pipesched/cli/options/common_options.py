"""Options of many subcommands: output and seed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

OUTPUT = "Output"
"""The heading of these options in the help."""
Json = Annotated[
    bool,
    typer.Option(
        "--json", rich_help_panel=OUTPUT, help="Print the answer as JSON, and nothing else (docs/commands.md)."
    ),
]
Wide = Annotated[
    bool, typer.Option("--wide", rich_help_panel=OUTPUT, help="Print tables with all their columns, however wide.")
]
Settings = Annotated[
    Path | None,
    typer.Option(
        "--settings",
        rich_help_panel=OUTPUT,
        help='Options of this command as JSON, {"ranks": 4}; the command line wins.',
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of the draws.", min=0, max=2**63 - 1)]


def out_option(text: str) -> Any:
    """Return the option --out; `text` names its content and its suffixes."""
    return typer.Option("--out", "-o", rich_help_panel=OUTPUT, help=text)
