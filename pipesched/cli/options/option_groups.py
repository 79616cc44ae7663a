"""Dataclasses of options: a subcommand takes one as a parameter, and typer sees its fields.

A field with a `Description` becomes the option that it declares. ``panel`` of a group is the heading of its options in
the help, ``prefix`` begins the names of its parameters.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer
from typer.models import OptionInfo

from pipesched.cli.errors import InputError, in_flags, name_options
from pipesched.cli.options.schedule_options import schedule_names
from pipesched.cli.options.values import counts, parse_bytes
from pipesched.cli.terminal import all_columns
from pipesched.schedules.common import MAX_NUMBER, Declared, declaration, declared, option_name, tuple_of

_WIDE, _SETTINGS = "wide", "settings_file"


def grouped(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return `command` with each dataclass parameter, also a nested one, replaced by one option per field."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    options = _options_by_name(groups.values())
    name_options(options)  # for the help
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            parameters += _spread(groups[name])
        else:
            declared_here = declaration(name, hints[name], parameter.default)
            options |= {} if declared_here is None else {name: declared_here.option}
            annotation = hints[name] if declared_here is None else setting_option(declared_here)[0]
            annotation = _in_panel(annotation, None)
            parameters.append(parameter.replace(annotation=annotation, kind=inspect.Parameter.KEYWORD_ONLY))
    parameters.append(inspect.Parameter(_SETTINGS, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Settings))
    if any(parameter.name == "json" for parameter in parameters):  # commands that print data print tables too
        parameters.append(inspect.Parameter(_WIDE, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Wide))

    @functools.wraps(command)
    def wrapper(**values: Any) -> Any:
        name_options(options)
        values.pop(_SETTINGS, None)  # its options are among the others
        with all_columns(values.pop(_WIDE, False)):
            for name, group in groups.items():
                values[name] = _gathered(group, values)
            return command(**values)

    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapper


def _parameter(group: Any, name: str) -> str:
    """Return the name of the parameter for field `name`: a ``prefix`` keeps equal field names of two groups apart."""
    return getattr(group, "prefix", "") + name


def _shown(group: Any) -> list[str]:
    """Return the fields with an option; the fields of the group itself come before the fields of its bases."""
    hidden = {name for name, setting in declared(group).items() if not setting.description.has_option}
    names = {field.name for field in fields(group)} - hidden
    return [*dict.fromkeys(name for base in group.__mro__ for name in inspect.get_annotations(base) if name in names)]


def _spread(group: Any) -> Iterator[inspect.Parameter]:
    types, settings = get_type_hints(group, include_extras=True), declared(group)
    defaults = {field.name: field.default for field in fields(group)}
    for name in _shown(group):
        if is_dataclass(types[name]):
            yield from _spread(types[name])
        else:
            default, annotation = defaults[name], types[name]
            if name in settings:
                annotation, default = setting_option(settings[name])
            default = inspect.Parameter.empty if default is MISSING else default
            annotation = _in_panel(annotation, getattr(group, "panel", None))
            parameter = _parameter(group, name)
            yield inspect.Parameter(parameter, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _options_by_name(groups: Iterable[Any]) -> dict[str, str]:
    """Return the options of settings by name, for messages; a name without a prefix means the field of that name."""
    shown = [option for group in groups for option in _options(group)]
    plain = {parameter for parameter, _, _ in shown}
    return {
        name: option
        for parameter, name, option in shown
        if option is not None and (parameter == name or name not in plain)
    }


def _options(group: Any) -> Iterator[tuple[str, str, str | None]]:
    """Yield (parameter, name, option) for each field of a group and of its subgroups; option None for no setting."""
    types, settings = get_type_hints(group, include_extras=True), declared(group)
    for name in _shown(group):
        if is_dataclass(types[name]):
            yield from _options(types[name])
        else:
            yield _parameter(group, name), name, settings[name].option if name in settings else None


def _in_panel(annotation: Any, panel: str | None) -> Any:
    """Return the annotation of an option, in this group of the help page unless it names another."""
    for detail in get_args(annotation)[1:]:
        if isinstance(detail, OptionInfo):
            detail.rich_help_panel = detail.rich_help_panel or panel
    return annotation


def _gathered(group: Any, values: dict[str, Any]) -> Any:
    """Return an instance of `group` from its fields in `values`, and remove these fields from `values`."""
    types, settings = get_type_hints(group, include_extras=True), declared(group)
    made = {}
    for name in _shown(group):
        if is_dataclass(types[name]):
            made[name] = _gathered(types[name], values)
        else:
            value = values.pop(_parameter(group, name))
            made[name] = read_setting(settings[name], value) if name in settings else value
    return group(**made)


def setting_option(setting: Declared) -> tuple[Any, object]:
    """Return the type of a setting, annotated as typer takes it, and the default of its option, or `MISSING`."""
    description, default = setting.description, setting.default
    names = [setting.option, *([] if description.short is None else [description.short])]
    if description.turned_off is not None:
        flag = typer.Option(*names, help=description.turned_off, callback=_is_on, rich_help_panel=description.panel)
        return Annotated[bool, flag], False
    is_text = is_size(setting) or setting.is_list or setting.is_names
    text = f"{description.text.rstrip('.')}; repeatable." if setting.is_repeatable else description.text
    if default not in (None, MISSING) and (setting.is_list or setting.is_names):
        default = ",".join(map(str, tuple_of(default) if setting.is_list else default))
    elif is_size(setting) and isinstance(default, int):
        default = str(default)
    option = typer.Option(
        *names,
        help=in_flags(" ".join(filter(None, (text, description.more)))),
        metavar="N,N" if setting.is_list else description.metavar,
        min=None if is_text else description.least,
        max=None if is_text else description.most,
        rich_help_panel=description.panel,
    )
    if setting.is_repeatable:
        return Annotated[list[str] | None, option], None
    return Annotated[_option_kind(setting), option], default


def is_size(setting: Declared) -> bool:
    """Whether the option of a setting takes a size in bytes with a unit, as ``64KiB``."""
    return setting.name.endswith("_bytes")


def read_setting(setting: Declared, value: Any) -> Any:
    """Return the value of a setting from the value of its option.

    Raises:
        InputError: The text is no size, no list of numbers, or no list of names.
        ScheduleError: A schedule does not exist.
    """
    if setting.is_names and isinstance(value, str):
        names = schedule_names(value)
        if not names:
            raise InputError(f"{setting.option}: got {value!r}, expected names; try 1f1b,zb_h1")
        return names
    if setting.is_list and isinstance(value, str):
        least, most = setting.description.least, setting.description.most
        return counts(value, setting.option, int(least or 0), int(most or MAX_NUMBER))
    if setting.is_repeatable:
        return tuple(value or ())
    return parse_bytes(value, setting.option) if is_size(setting) and isinstance(value, str) else value


def given_options(record: Any, allowed: Collection[str] = ()) -> list[str]:
    """Return the options of a group that differ from their defaults, without the allowed ones."""
    settings, usual = declared(record.__class__), {field.name: field.default for field in fields(record)}
    given = []
    for name in usual:
        value = getattr(record, name)
        if is_dataclass(value):
            given += given_options(value)
        elif name not in allowed and value != usual[name]:
            given.append(settings[name].option if name in settings else option_name(name))
    return given


def _option_kind(setting: Declared) -> Any:
    """Return the type for typer: a path or text if the setting takes one, text for sizes and lists."""
    kinds = get_args(setting.kind) if get_origin(setting.kind) in (Union, UnionType) else (setting.kind,)
    is_text = is_size(setting) or setting.is_list or setting.is_names or str in kinds
    kind: Any = Path if Path in kinds else str if is_text else next(kind for kind in kinds if kind is not NoneType)
    if any(get_origin(other) is Literal for other in kinds):
        return setting.kind
    return kind | None if NoneType in kinds else kind


def _is_on(is_turned_off: bool) -> bool:
    return not is_turned_off


OUTPUT = "Output"
"""The heading of these options in the help."""
Json = Annotated[
    bool,
    typer.Option("--json", rich_help_panel=OUTPUT, help="Print only the answer, as JSON (docs/commands.md)."),
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


def file_option(text: str, suffixes: Sequence[str] = (), *names: str, is_repeatable: bool = False) -> Any:
    """Return an option for an output file; `text` names the content, and also the suffixes if `suffixes` is empty."""
    *others, last = suffixes or [""]
    colon = "," if ":" in text else ":"
    listed = f"{colon} {', '.join(others)} or {last}" if others else f"{colon} {last}" if last else ""
    return typer.Option(*names, rich_help_panel=OUTPUT, help=f"{text}{listed}{'; repeatable' * is_repeatable}.")


def out_option(text: str, suffixes: Sequence[str] = (), *, is_repeatable: bool = False) -> Any:
    """Return the option --out, as `file_option` does."""
    return file_option(text, suffixes, "--out", "-o", is_repeatable=is_repeatable)
