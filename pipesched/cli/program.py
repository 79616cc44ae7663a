"""The program: its commands, each loaded on demand."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Annotated

import typer

from pipesched.cli.errors import FINE
from pipesched.cli.help_pages import CommandPage, ProgramPage

COMMANDS = {
    "list": "list:list_schedules",
    "show": "show:show",
    "check": "check:check",
    "versions": "versions:versions",
    "simulate": "simulate:simulate",
    "compare": "compare:compare",
    "replay": "replay:replay",
    "gantt": "gantt:gantt",
    "trace": "trace:trace",
    "import": "import_traces:import_run",
    "profile": "profile:profile",
    "partition": "partition:partition",
    "plan": "plan:plan",
    "export": "export:export",
    "profile-links": "profile_links:profile_links",
    "run": "run:run",
    "train": "train:train",
    "optimize": "optimize:optimize",
    "tune": "tune:tune",
    "sweep": "sweep:sweep",
    "verify": "verify:verify",
    "what-if": "what_if:what_if",
    "schema": "schema:schema",
}
"""The module in `commands` and the function of every command, loaded on demand so that no command waits for another."""


def make_app(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Return the command line with the commands of these names."""
    app = typer.Typer(
        cls=ProgramPage,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_program)
    for name in names:
        module, function = COMMANDS[name].split(":")
        app.command(name, cls=CommandPage)(getattr(import_module(f"pipesched.cli.commands.{module}"), function))
    return app


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        print(version("pipesched"))
        raise typer.Exit(FINE)


def _program(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Pipeline-parallel schedules: describe once, simulate, run, compare."""
