"""Help pages: the options of a command in groups, each with its values and its default, and examples."""

from __future__ import annotations

from enum import Enum
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperOption

from pipesched.cli.errors import InputError
from pipesched.cli.options.plain_reading import plain_value, with_plain_readers
from pipesched.cli.options.settings_file import with_settings

COLUMN = 26
"""Widest left column; a wider entry has a line of its own."""
_VALUES = {"int": "N", "float": "X", "str": "TEXT", "path": "FILE", "file": "FILE"}
"""Placeholders for values of a type."""
_ARGUMENTS, OPTIONS = "Arguments", "Options"
_GROUPS = (
    _ARGUMENTS, "Schedule", "Search", "Costs", "Machines", "Network", "Failures", "Estimate", "Run", OPTIONS, "Output",
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
            args = with_settings(args, self.get_params(ctx), values, ctx)
            for option in given:
                is_file = isinstance(option, TyperOption) and not option.multiple and _value(option, ctx) == "FILE"
                if is_file and given.count(option) > 1:
                    raise InputError(
                        f"{option.opts[0]}: got this option {given.count(option)} times, expected it once; leave out "
                        "the others"
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
                row = (parameter.display_name_raw.upper(), option_help(parameter, ctx))
                groups.setdefault(_ARGUMENTS, []).append(row)
            elif isinstance(parameter, TyperOption) and not parameter.hidden:
                group = parameter.rich_help_panel or OPTIONS
                groups.setdefault(group, []).append((option_flags(parameter, ctx), option_help(parameter, ctx)))
        for group in sorted(groups, key=_GROUPS.index):
            with formatter.section(group):
                formatter.write_dl(groups[group], col_max=COLUMN)


def option_flags(option: TyperOption, ctx: Any) -> str:
    """Return the flags and the kind of value of an option, such as ``-s, --schedule TEXT``."""
    short = next((name for name in option.opts if not name.startswith("--")), None)
    long = next((name for name in option.opts if name.startswith("--")), "")
    value = "" if option.is_flag else f" {_value(option, ctx)}"
    return f"{'    ' if short is None else f'{short}, '}{long}{value}"


def _value(option: TyperOption, ctx: Any) -> str:
    if option.metavar is not None:
        return option.metavar
    name = option.display_type(ctx).strip("<>").removesuffix(" range").removeprefix("list[").removesuffix("]")
    return _VALUES.get(name.lower(), "WORD" if "|" in name else name)


def option_help(parameter: TyperOption | TyperArgument, ctx: Any) -> str:
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


EXAMPLES: dict[str, tuple[str, ...]] = {
    "list": ("list", "list --wide", "list --json"),
    "show": (
        "show -s 1f1b -p 4 -m 8",
        "show -s zbv -p 4 -m 8 --format csv-comms --out zbv.csv",
        "show -f mine.csv --out mine.json",
    ),
    "check": ("check -f mine.csv", "check -s dualpipe -p 4 -m 8 --backend nccl"),
    "versions": (
        "versions -s pipedream -p 4 -m 16",
        "versions -s spectrain -p 4 -m 64 --plot staleness.png",
    ),
    "simulate": (
        "simulate -s 1f1b -p 4 -m 16 --uniform f=10ms,b=20ms",
        "simulate -f mine.csv --stage-costs stages.csv --link latency_s=10us",
        "simulate -s zbv -p 4 -m 16 --profile gpt.json --out zbv.html",
        "simulate -s 1f1b -p 4 -m 16 --uniform f=1,b=2 --fail-every 3h \\\n"
        "      --restart 120s --checkpoint 20s --steps 10000",
    ),
    "compare": (
        "compare --all -p 4 -m 16 --uniform f=10ms,i=10ms,w=10ms",
        "compare gpipe,1f1b,zb_h1 -p 8 -m 32 --layer-costs layers.csv",
        "compare predicted.json measured.json",
    ),
    "replay": ("replay run.json", "replay run.json --profile gpt.json --gantt both.png"),
    "gantt": (
        "gantt -s 1f1b -p 4 -m 8 --uniform f=10ms,b=20ms",
        "gantt predicted.json measured.json --out both.html",
        "gantt run.json --memory --idle --from 10ms --to 50ms --out part.svg",
    ),
    "trace": (
        "trace -s 1f1b -p 4 -m 8 --uniform f=10ms,b=20ms --out 1f1b.json",
        "trace run.json --out trace.json",
    ),
    "import": (
        "import rank0.json rank1.json --out run.json",
        "import rank*.json -s interleaved -p 4 -m 8 -v 2",
    ),
    "profile": (
        "profile gpt:layers=8 --microbatch-sizes 1,2,4 --out gpt.json",
        "profile gpt:layers=96,width=12288 --gpu h100 --dtype bfloat16",
        "profile --from run.json --profile gpt.json --out fitted.json",
        "profile --layer-costs layers.csv --microbatch-size 2 --out p.json",
    ),
    "partition": (
        "partition gpt.json -p 4",
        "partition gpt.json -p 4 --by time --memory-limit 16GB",
    ),
    "plan": (
        "plan gpt.json -b 64 --nodes 2 --machine dgx-a100 --out plan.json",
        "plan gpt:layers=8 -b 32 --devices 4 -s 1f1b,zb_h1 --explain",
        "plan layers.csv -b 32 --devices 4 --microbatch-sizes 2 --out x.html",
    ),
    "export": (
        "export megatron --plan plan.json",
        "export torchtitan -s zb_h1 -p 2 -m 8 --partition 5,5 \\\n      --microbatch-size 2",
    ),
    "profile-links": ("profile-links --out cluster.json", "profile-links -p 4 --sizes 1KiB,1MiB --out cluster.json"),
    "run": (
        "run -f mine.csv --stage-costs stages.csv --out run.json",
        "run -s 1f1b -p 2 -m 8 --model gpt:layers=4",
        "run --plan plan.json --out measured.json",
    ),
    "train": (
        "train digits -s 1f1b -p 2 --steps 200",
        "train digits -p 2 --compare gpipe,pipedream --plot losses.png",
    ),
    "sweep": (
        "sweep -s 1f1b,zb_h1 -p 4,8 -m 8:64:x2 --uniform f=1ms,i=1ms,w=1ms",
        "sweep -s interleaved -p 8 -m 8:512:x2 -v 1,2,4 --profile gpt.json \\\n"
        "      --where 'm % p == 0' --out sweep.png",
        "sweep -s zbv -p 4 -m 16 --layer-costs layers.csv \\\n      --link bandwidth=1GB/s:64GB/s:x2 --out sweep.csv",
    ),
    "optimize": (
        "optimize -s zb_h1 -p 4 -m 8 --uniform f=1,i=1,w=1",
        "optimize -s 1f1b -p 4 -m 8 --layer-costs layers.csv --split \\\n"
        "      --in-flight 4 --seconds 60 --out best.csv",
    ),
    "tune": (
        "tune gpt.json -p 2 -b 32 --memory-limit 8GB",
        "tune gpt:layers=4 -p 2 -b 32 -s avgpipe,zb_h1 --verify 3",
    ),
    "verify": (
        "verify gpt -s gpipe,1f1b -p 2 -m 8 --microbatch-size 2",
        "verify gpt -p 2 -m 8 --rounds 5 --out both.html",
    ),
    "schema": ("schema", "schema profile --out profile.schema.json", "schema --all --out ."),
    "what-if": (
        "what-if run.json -s zbv -m 32",
        "what-if run.json --slow device=1,factor=1.2 --link bandwidth=x2",
    ),
}
