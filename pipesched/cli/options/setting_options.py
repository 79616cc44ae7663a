"""Options for the settings of a run, with the name, type, default and help of the fields of `RunSettings`."""

from __future__ import annotations

from typing import Annotated, Any, get_args, get_type_hints

import typer

from pipesched.executor import RunSettings
from pipesched.schedules import LONGEST_S

SETTINGS = get_type_hints(RunSettings, include_extras=True)
_NAMES = {"timeout_s": "--timeout", "has_green_contexts": "--green-contexts"}
_LIMITS = {"lr": (0.0, 1e6), "seed": (0, 2**32 - 1), "threads": (1, 1024), "timeout_s": (0.1, LONGEST_S)}
_OFF = {"is_pinned": ("--no-pin", "Let the operating system choose the cores of every rank.")}
"""Flags, with their help, that turn off settings."""


def setting_option(name: str, help_text: str | None = None) -> tuple[Any, object]:
    """Return the type of a setting, annotated as typer takes it, and the option's default.

    Args:
        name: Name of the setting.
        help_text: The option's help, in place of the setting's own sentence.
    """
    hint, meaning = get_args(SETTINGS[name])
    if name in _OFF:
        flag, flag_help = _OFF[name]
        return Annotated[hint, typer.Option(flag, help=flag_help, callback=_is_on)], False
    least, most = _LIMITS.get(name, (None, None))
    names = [_NAMES[name]] if name in _NAMES else []
    option = typer.Option(*names, help=help_text or meaning, min=least, max=most)
    return Annotated[hint, option], getattr(RunSettings(), name)


def setting_words(name: str, value: object) -> list[str]:
    """Return the words of a command line for a setting, or another option, whose value is not the default."""
    if name in _OFF:
        return [_OFF[name][0]]
    flag = _NAMES.get(name, "--" + name.replace("_", "-"))
    return [flag] if value is True else [flag, str(value)]


def _is_on(is_turned_off: bool) -> bool:
    return not is_turned_off
