"""Reading of plain values without typer's validators, whose library takes longer to load than most commands.

The validators read all other values, and word the errors.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from typer.models import ParameterInfo

from pipesched.cli.options.values import in_si, units_of

_NUMBERS = {int: r"-?[0-9]{1,15}", float: r"-?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?"}
"""Unambiguous spellings of numbers."""
_DEMANDS = ("parser", "clamp", "exists", "dir_okay", "file_okay", "writable", "resolve_path", "allow_dash", "path_type")
"""Demands of a parameter on its values besides a type and limits."""
_USUAL = ParameterInfo()


class _NotPlainError(Exception):
    """A value is wrong, or written in an unusual way."""


def with_plain_readers(parameters: Sequence[Any]) -> list[Any]:
    """Return parameters of typer that read plain values without its validators."""
    for parameter in parameters:
        if "get_runtime_param" not in vars(parameter):
            parameter.get_runtime_param = partial(_PlainReader, parameter.get_runtime_param)
    return [*parameters]


class _PlainReader:
    """Reads the plain values of a parameter, and leaves others to typer's reader."""

    def __init__(self, others: Callable[[], Any]) -> None:
        self._others = others

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value of a parameter for its function."""
        is_several = param.multiple or param.nargs == -1
        if value is None:
            return () if is_several else None
        try:
            if is_several != isinstance(value, (list, tuple)):
                raise _NotPlainError
            return _read(value, param.type_descriptor.annotation, param.type_descriptor.parameter_info)
        except _NotPlainError:
            return self._others().coerce(value, param=param, ctx=ctx)


def _read(value: Any, kind: Any, info: ParameterInfo) -> Any:
    if any(getattr(info, name) != getattr(_USUAL, name) for name in _DEMANDS):
        raise _NotPlainError
    if get_origin(kind) is list:
        return [_read(item, get_args(kind)[0], info) for item in value]
    if isinstance(value, str) and not value.isascii():
        raise _NotPlainError
    if get_origin(kind) is Literal and value in get_args(kind):
        return value
    if kind in _NUMBERS:
        return _read_number(value, kind, info)
    if kind is str and isinstance(value, str):
        return value
    if kind is Path and isinstance(value, str) and (os.access(value, os.R_OK) or not os.access(value, os.F_OK)):
        return Path(value)
    raise _NotPlainError


def _read_number(value: Any, kind: type[int] | type[float], info: ParameterInfo) -> int | float:
    if isinstance(value, str) and re.fullmatch(_NUMBERS[kind], value):
        value = kind(value)
    least = -math.inf if info.min is None else info.min
    most = math.inf if info.max is None else info.max
    if type(value) is not kind or not math.isfinite(value) or not least <= value <= most:
        raise _NotPlainError
    return value


_ALSO_CALLED = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "fp64": "float64"}
"""Synonyms of choices."""
_KEYS = dict.fromkeys(("bound_seconds", "seconds"), "_s")
"""Units that the names of options lack."""


def number_with_unit(name: str) -> str:
    """Return text with the units of an option and an example, for a value that is no number; empty without units.

    Args:
        name: The option's parameter name.
    """
    _, units, example = units_of(_KEYS.get(name, name))
    return "" if units == "%" else f", with a unit or without: {units}; try {example}"


def plain_value(value: Any, name: str, kind: str) -> Any:
    """Return a value as its option takes it; an unreadable value stays as it is, and its option refuses it.

    Args:
        value: The written value; the values of a repeatable option are left alone.
        name: The option's parameter name.
        kind: Its type, as typer shows it: ``<float>``, ``<float range>``, ``<sgd|adam>``.
    """
    if not isinstance(value, str):
        return value
    if kind.startswith(("<float>", "<float ")):
        number = in_si(value, _KEYS.get(name, name))
        return value if math.isnan(number) else f"{number:.17g}"
    words = kind.strip("<>").split("|")
    meant = _ALSO_CALLED.get(value.lower(), value)
    return meant if value not in words and meant in words else value
