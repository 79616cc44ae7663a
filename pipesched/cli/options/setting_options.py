"""Options made of declared settings, with their names, types, limits, defaults and descriptions."""

from __future__ import annotations

from dataclasses import MISSING
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from pipesched.cli.byte_sizes import parse_bytes
from pipesched.cli.errors import InputError, in_flags
from pipesched.cli.options.count_list import counts
from pipesched.cli.options.schedule_list import schedule_names
from pipesched.questions import MeasureSettings
from pipesched.schedules.common import MAX_NUMBER, Declared, declared, tuple_of


def setting_option(setting: Declared, help_text: str | None = None) -> tuple[Any, object]:
    """Return the type of a setting, annotated as typer takes it, and the default of its option, or `MISSING`.

    Args:
        setting: The setting.
        help_text: Help of the option, in place of the description of the setting.
    """
    description, default = setting.description, setting.default
    names = [setting.option, *([] if description.short is None else [description.short])]
    if description.turned_off is not None:
        flag = typer.Option(*names, help=description.turned_off, callback=_is_on, rich_help_panel=description.panel)
        return Annotated[bool, flag], False
    is_text = is_size(setting) or setting.is_list or setting.is_names
    if default not in (None, MISSING) and (setting.is_list or setting.is_names):
        default = ",".join(map(str, tuple_of(default) if setting.is_list else default))
    option = typer.Option(
        *names,
        help=in_flags(help_text or description.text),
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


def setting_words(name: str, value: object) -> list[str]:
    """Return the words of a command line for a setting of a measured run that is not the default."""
    option = declared(MeasureSettings)[name].option
    return [option] if isinstance(value, bool) else [option, str(value)]


def _option_kind(setting: Declared) -> Any:
    """Return the type that typer reads: a path or text of several types, and a text for sizes and lists."""
    kinds = get_args(setting.kind) if get_origin(setting.kind) in (Union, UnionType) else (setting.kind,)
    is_text = is_size(setting) or setting.is_list or setting.is_names or str in kinds
    kind: Any = Path if Path in kinds else str if is_text else next(kind for kind in kinds if kind is not NoneType)
    if any(get_origin(other) is Literal for other in kinds):
        return setting.kind
    return kind | None if NoneType in kinds else kind


def _is_on(is_turned_off: bool) -> bool:
    return not is_turned_off
