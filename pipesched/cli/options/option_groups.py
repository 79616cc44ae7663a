"""Dataclasses of options: a subcommand takes one as a parameter, and typer sees its fields."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints


def grouped(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return `command` with each dataclass parameter, and each in it, spread out into one option per field."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            parameters += _spread(groups[name])
        else:
            parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def wrapper(**values: Any) -> Any:
        for name, group in groups.items():
            values[name] = _gathered(group, values)
        return command(**values)

    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapper


def _spread(group: Any) -> Iterator[inspect.Parameter]:
    types = get_type_hints(group, include_extras=True)
    for field in fields(group):
        if is_dataclass(types[field.name]):
            yield from _spread(types[field.name])
        else:
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            yield inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=types[field.name]
            )


def _gathered(group: Any, values: dict[str, Any]) -> Any:
    """Return `group` made of its fields in `values`, which are taken out."""
    types = get_type_hints(group, include_extras=True)
    made = {
        field.name: _gathered(types[field.name], values) if is_dataclass(types[field.name]) else values.pop(field.name)
        for field in fields(group)
    }
    return group(**made)
