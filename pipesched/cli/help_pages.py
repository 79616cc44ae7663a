"""Help pages: the options of a command in groups, each with its values and its default, and examples."""

from __future__ import annotations

from enum import Enum
from typing import Any, ClassVar

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from pipesched.cli.errors import InputError
from pipesched.cli.examples import EXAMPLES
from pipesched.cli.options import plain_value, with_plain_readers, with_settings

_COLUMN = 26
"""Widest left column; a wider entry has a line of its own."""
_VALUES = {"int": "N", "float": "X", "str": "TEXT", "path": "FILE", "file": "FILE"}
"""Placeholders for values of a type."""
_ARGUMENTS, _OPTIONS = "Arguments", "Options"
_GROUPS = (
    _ARGUMENTS, "Schedule", "Search", "Costs", "Machines", "Network", "Failures", "Estimate", "Run", _OPTIONS, "Output",
)  # fmt: skip
"""The groups of options, in the order of the page."""


class CommandPage(TyperCommand):
    """A command with its help page."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, with readers for plain values."""
        return with_plain_readers(super().get_params(ctx))

    def make_parser(self, ctx: Any) -> Any:
        """Return the parser of the command line, which prepares each value for its option."""
        parser = super().make_parser(ctx)
        split = parser.parse_args
        options: dict[str, Any] = {option.name or "": option for option in self.get_params(ctx)}

        def parse_args(args: list[str]) -> Any:
            values, rest, given = split(args)
            plain = {name: plain_value(value, name, options[name].display_type(ctx)) for name, value in values.items()}
            return plain, rest, given

        parser.parse_args = parse_args  # type: ignore[method-assign]
        return parser

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line; refuse a repeated option for one file, because only the last file would count.

        Raises:
            InputError: Such an option is repeated, or the file of settings is bad.
        """
        if not ctx.resilient_parsing:
            values, _, given = self.make_parser(ctx).parse_args(args=[*args])
            args = with_settings(args, self.get_params(ctx), values)
            for option in given:
                is_file = isinstance(option, TyperOption) and not option.multiple and _value(option, ctx) == "FILE"
                if is_file and given.count(option) > 1:
                    raise InputError(
                        f"{option.opts[0]}: got it {given.count(option)} times, expected it once; leave out the others"
                    )
        return super().parse_args(ctx, args)

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the purpose of the command, then its examples, which are not folded."""
        super().format_help_text(ctx, formatter)
        with formatter.section("Examples"):
            for line in EXAMPLES[self.name or ""]:
                formatter.write(f"{'':>{formatter.current_indent}}pipesched {line}\n")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options group by group."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, TyperArgument):
                row = (parameter.display_name_raw.upper(), _described(parameter, ctx))
                groups.setdefault(_ARGUMENTS, []).append(row)
            elif isinstance(parameter, TyperOption) and not parameter.hidden:
                group = parameter.rich_help_panel or _OPTIONS
                groups.setdefault(group, []).append((_flags(parameter, ctx), _described(parameter, ctx)))
        for group in sorted(groups, key=_GROUPS.index):
            with formatter.section(group):
                formatter.write_dl(groups[group], col_max=_COLUMN)


class ProgramPage(TyperGroup):
    """The program with its help page."""

    titles: ClassVar[dict[str, tuple[str, ...]]] = {
        "Schedules": ("list", "show", "check", "versions"),
        "Predict": ("simulate", "compare", "gantt", "trace", "what-if"),
        "Measure": ("profile", "profile-links", "import", "run", "replay", "verify"),
        "Choose": ("partition", "plan", "tune", "sweep", "optimize", "export"),
    }
    """Groups of commands; all others form the last group."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, with readers for plain values."""
        return with_plain_readers(super().get_params(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, group by group, each with its first sentence, then the options."""
        grouped = {name for names in self.titles.values() for name in names}
        others = tuple(name for name in self.list_commands(ctx) if name not in grouped)
        for title, names in {**self.titles, "More": others}.items():
            rows = [(name, _first_sentence(command.help)) for name in names if (command := self.get_command(ctx, name))]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows, col_max=_COLUMN)
        with formatter.section(_OPTIONS):
            options = [parameter for parameter in self.get_params(ctx) if isinstance(parameter, TyperOption)]
            formatter.write_dl([(_flags(option, ctx), _described(option, ctx)) for option in options], col_max=_COLUMN)


def _flags(option: TyperOption, ctx: Any) -> str:
    """Return ``-s, --schedule TEXT``."""
    short = next((name for name in option.opts if not name.startswith("--")), None)
    long = next((name for name in option.opts if name.startswith("--")), "")
    value = "" if option.is_flag else f" {_value(option, ctx)}"
    return f"{'    ' if short is None else f'{short}, '}{long}{value}"


def _value(option: TyperOption, ctx: Any) -> str:
    if option.metavar is not None:
        return option.metavar
    name = option.display_type(ctx).strip("<>").removesuffix(" range").removeprefix("list[").removesuffix("]")
    return _VALUES.get(name.lower(), "WORD" if "|" in name else name)


def _described(parameter: TyperOption | TyperArgument, ctx: Any) -> str:
    """Return the help of a parameter with its choices and its default."""
    remarks = []
    words = parameter.display_type(ctx).strip("<>")
    if "|" in words and parameter.metavar is None:
        remarks.append(words.replace("|", ", "))
    default = parameter.get_default(ctx, call=False)
    if parameter.required:
        remarks.append("required")
    elif default is not None and default != "" and not isinstance(default, bool):
        remarks.append(f"default: {default.value if isinstance(default, Enum) else default}")
    remark = f" ({'; '.join(remarks)})" if remarks else ""
    return f"{(parameter.help or '').rstrip('.')}{remark}."


def _first_sentence(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split()).partition(". ")[0].rstrip(".") + "."
