"""The program: its commands, each loaded on demand, and its complaints about a command line."""

from __future__ import annotations

import re
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup, TyperOption

from pipesched.cli.errors import FINE, with_file
from pipesched.cli.help_pages import COLUMN, OPTIONS, CommandPage, option_flags, option_help
from pipesched.cli.options.plain_reading import number_with_unit, with_plain_readers
from pipesched.profiles import io

_TITLES: dict[str, dict[str, str]] = {
    "Schedules": {
        "list": "show:list_schedules",
        "show": "show:show",
        "check": "check:check",
        "versions": "versions:versions",
    },
    "Predict": {
        "simulate": "simulate:simulate",
        "compare": "compare:compare",
        "gantt": "gantt:gantt",
        "trace": "gantt:trace",
        "what-if": "what_if:what_if",
    },
    "Measure": {
        "profile": "profile:profile",
        "profile-links": "profile:profile_links",
        "import": "replay:import_run",
        "run": "run:run",
        "replay": "replay:replay",
        "verify": "verify:verify",
    },
    "Choose": {
        "partition": "partition:partition",
        "plan": "plan:plan",
        "tune": "tune:tune",
        "sweep": "sweep:sweep",
        "optimize": "optimize:optimize",
        "export": "partition:export",
    },
    "More": {"train": "train:train", "schema": "schema:schema"},
}
"""The module in `commands` and the function of every command, by the title of its group in the help."""
COMMANDS = {name: place for group in _TITLES.values() for name, place in group.items()}
"""The same without titles."""


class ProgramPage(TyperGroup):
    """The program with its help page; a command is loaded on demand, so that no command waits for another."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 -- typer's
        """Return the names of the commands."""
        return [*COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Return a command, or None for another name."""
        if cmd_name not in COMMANDS:
            return None
        module, function = COMMANDS[cmd_name].split(":")
        app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
        app.command(cmd_name, cls=CommandPage)(getattr(import_module(f"pipesched.cli.commands.{module}"), function))
        return typer.main.get_command(app)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, with readers for plain values."""
        return with_plain_readers(super().get_params(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, group by group, each with its first sentence, then the options."""
        for title, names in _TITLES.items():
            with formatter.section(title):
                rows = [(name, _first_sentence(self.get_command(ctx, name).help)) for name in names]
                formatter.write_dl(rows, col_max=COLUMN)
        with formatter.section(OPTIONS):
            options = [parameter for parameter in self.get_params(ctx) if isinstance(parameter, TyperOption)]
            formatter.write_dl(
                [(option_flags(option, ctx), option_help(option, ctx)) for option in options], col_max=COLUMN
            )


def _first_sentence(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split()).partition(". ")[0].rstrip(".") + "."


def make_program() -> Any:
    """Return the command line, for typer."""
    app = typer.Typer(
        cls=ProgramPage,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_program)
    return typer.main.get_command(app)


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


def complaint(error: typer.TyperException, command: str) -> str:
    """Return the value, the expectation, and the help page: of `command`, unless the error names a subcommand."""
    text = error.format_message().replace("Value error, ", "got ").replace(" is not one of ", ", expected one of ")
    cause: Any = error.__cause__  # pydantic's, where a value does not fit its option; it knows the value
    if hasattr(cause, "errors"):
        got = cause.errors()[0]["input"]
        # a limit as a power of ten
        text = re.sub(r"\b1(0{15,})(\.0)?\b", lambda limit: f"1e{len(limit[1])}", text)
        text = io.in_our_words(text.replace("Input should be ", f"got {got!r}, expected "))
        if str(got).lower().endswith("nan"):  # it is not above any limit either
            text = f"{text.partition(', expected ')[0]}, expected a number"
    named = re.search(r"'(--[a-z-]+)'", text)
    text = text if named is None else with_file(text, named[1])
    context = getattr(error, "ctx", None)
    command = command if context is None else context.command_path
    return f"{text.rstrip('.')}{_advice(text, context)}; see '{command} --help'"


def _advice(text: str, context: Any) -> str:
    """Return advice on the intended option or value, if it is clear."""
    options = () if context is None else {name for option in context.command.params for name in option.opts}
    extra = re.search(r"unexpected extra argument.* \((?:(\S+\.(?:csv|json))|(\w+))\)", text)
    if extra is not None and extra[1] and "--schedule-file" in options:
        return f"; if it is a schedule, try -f {extra[1]}"
    if extra is not None and extra[2] and "--schedule" in options:
        return f"; if it is a schedule, try -s {extra[2]}"
    number = re.search(r"'(--[a-z-]+)'.*, expected a number$", text)
    if number is not None:
        return "".join(number_with_unit(name.name) for name in context.command.params if number[1] in name.opts)
    choice = re.search(r": (?:got )?'([^']*)', expected one of (.+)$", text)
    if choice is not None:
        near = get_close_matches(choice[1].lower(), re.findall(r"'([^']+)'", choice[2]), n=1, cutoff=0.7)
        return f"; try {near[0]}" if near else ""
    if re.match(r"No such option: --profile\b", text) and context.command.name in ("tune", "plan", "partition"):
        return f"; try 'pipesched {context.command.name} P.json', without --profile"
    if re.match(r"No such option: --gpu\b", text):
        return "; try 'pipesched profile MODEL --gpu h100 --out P.json', and P.json here"
    if text == "No such option: --step-barrier" and context.command.name == "tune":
        return ": tune has no step barrier; try sweep"
    if text.startswith("No such option: --html") and "--out" in options:
        return "; try --out x.html"
    return ""
