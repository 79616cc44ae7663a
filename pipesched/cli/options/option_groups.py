"""Dataclasses of options: a subcommand takes one as a parameter, and typer sees its fields.

A field with a `Description` becomes the option that it declares. A group may list its options in ``shown``, in
the order of the help, with its own help texts; any other group shows all of its fields. ``panel`` is their heading in
the help.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_args, get_type_hints

from typer.models import OptionInfo

from pipesched.cli.errors import name_options
from pipesched.cli.options.common_options import OUTPUT, Settings, Wide
from pipesched.cli.options.setting_options import read_setting, setting_option
from pipesched.cli.terminal import all_columns
from pipesched.schedules.common import declaration, declared

_WIDE, _SETTINGS = "wide", "settings_file"
_OUTPUTS = {"plot", "gantt", "timeline", "memory", "log", "job", "form", "format", "top", "columns", "title", "first"}
"""Options of commands for printed and written output."""


def grouped(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return `command` with each dataclass parameter, and each in it, spread out into one option per field."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    options = {name: option for group in groups.values() for name, option in _options(group)}
    name_options(options)  # for the help
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            parameters += _spread(groups[name])
        else:
            declared_here = declaration(name, hints[name], parameter.default)
            options |= {} if declared_here is None else {name: declared_here.option}
            annotation = hints[name] if declared_here is None else setting_option(declared_here)[0]
            annotation = _in_panel(annotation, OUTPUT if name in _OUTPUTS else None)
            parameters.append(parameter.replace(annotation=annotation, kind=inspect.Parameter.KEYWORD_ONLY))
    parameters.append(inspect.Parameter(_SETTINGS, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Settings))
    if "json" in hints:  # commands that print data print tables too
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


def _shown(group: Any) -> Mapping[str, str | None]:
    """Return the fields that are options, with their help if the group has its own; its own fields come first."""
    hidden = {name for name, setting in declared(group).items() if not setting.description.has_option}
    names = {field.name for field in fields(group)} - hidden
    ordered = [name for base in group.__mro__ for name in inspect.get_annotations(base) if name in names]
    shown: Mapping[str, str | None] = getattr(group, "shown", dict.fromkeys(ordered))
    return shown


def _spread(group: Any) -> Iterator[inspect.Parameter]:
    types, settings = get_type_hints(group, include_extras=True), declared(group)
    defaults = {field.name: field.default for field in fields(group)}
    for name, help_text in _shown(group).items():
        if is_dataclass(types[name]):
            yield from _spread(types[name])
        else:
            default, annotation = defaults[name], types[name]
            if name in settings:
                annotation, default = setting_option(settings[name], help_text)
            default = inspect.Parameter.empty if default is MISSING else default
            annotation = _in_panel(annotation, getattr(group, "panel", None))
            yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _options(group: Any) -> Iterator[tuple[str, str]]:
    """Yield the settings of a group, and of each in it, with their options."""
    types, settings = get_type_hints(group, include_extras=True), declared(group)
    for name in _shown(group):
        if is_dataclass(types[name]):
            yield from _options(types[name])
        elif name in settings:
            yield name, settings[name].option


def _in_panel(annotation: Any, panel: str | None) -> Any:
    """Return the annotation of an option, in this group of the help page unless it names another."""
    for detail in get_args(annotation)[1:]:
        if isinstance(detail, OptionInfo):
            detail.rich_help_panel = detail.rich_help_panel or panel
    return annotation


def _gathered(group: Any, values: dict[str, Any]) -> Any:
    """Return `group` made of its fields in `values`, which are taken out."""
    types, settings = get_type_hints(group, include_extras=True), declared(group)
    made = {}
    for name in _shown(group):
        if is_dataclass(types[name]):
            made[name] = _gathered(types[name], values)
        else:
            value = values.pop(name)
            made[name] = read_setting(settings[name], value) if name in settings else value
    return group(**made)
