"""A file of settings: the options of a command as JSON, read as if they were on its command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

from typer.core import TyperArgument, TyperOption

from pipesched.cli.errors import InputError, read_from
from pipesched.schedules import formats
from pipesched.schedules.common import shown

SETTINGS = "--settings"
"""The option of the file."""


def with_settings(words: Sequence[str], parameters: Sequence[Any], given: Mapping[str, Any], context: Any) -> list[str]:
    """Return the words of a command line, with the words of its file of settings before them.

    Args:
        words: The words.
        parameters: The parameters of the command.
        given: Values that the words give, by parameter; the file's values of these parameters do not count.
        context: The context of the command.

    Raises:
        InputError: The file has a key that is no option of the command, or a value that no option takes.
        ScheduleError: The file cannot be read, or is not JSON.
    """
    file = _file_of(words)
    if file is None:
        return [*words]
    settings = formats.load_json(formats.read_text(file), file)
    if not isinstance(settings, dict):
        raise InputError(f'{file}: got no JSON object, expected options and their values; try {{"schedule": "1f1b"}}')
    known: dict[str, list[Any]] = {}  # MODEL and --model have one key
    for parameter in parameters:
        for name in _names(parameter):
            known.setdefault(name, []).append(parameter)
    known.pop(SETTINGS[2:], None)
    options, arguments = list[str](), list[str]()
    for key, value in settings.items():
        named = known.get(key.replace("_", "-"))
        if named is None:
            near = get_close_matches(key.replace("_", "-"), known, n=1)
            advice = f"; did you mean {near[0]}?" if near else ""
            raise InputError(f"{file}: got {shown(key)}, expected an option of the command, without dashes{advice}")
        if value is not None and all(given.get(parameter.name) is None for parameter in named):
            parameter = named[-1]
            read_from(file, _long(parameter))
            choices = parameter.display_type(context).strip("<>").split("|")
            is_option = not isinstance(parameter, TyperArgument)
            (options if is_option else arguments).extend(_words(parameter, value, f"{file}: {key}", choices))
    return [*options, *words, *arguments]


def _file_of(words: Sequence[str]) -> str | None:
    """Return the file of settings that a command line names last."""
    file = None
    for word, following in pairwise([*words, ""]):
        if word == "--":
            break
        if word == SETTINGS:
            file = following
        elif word.startswith(f"{SETTINGS}="):
            file = word.removeprefix(f"{SETTINGS}=")
    return file


def _names(parameter: Any) -> Iterator[str]:
    """Yield the keys of a parameter: its long options without dashes, or the names of an argument, as PROFILE|MODEL."""
    if parameter.is_eager:  # as --help
        return
    if isinstance(parameter, TyperArgument):
        yield from parameter.display_name_raw.lower().split("|")
    yield from (name[2:] for name in parameter.opts if name.startswith("--"))


def _words(parameter: Any, value: Any, place: str, choices: Sequence[str]) -> list[str]:
    """Return the words of a value: none for false, and a list as several values or as 4,8."""
    is_option = isinstance(parameter, TyperOption)
    is_flag = is_option and parameter.is_flag
    if isinstance(value, bool) and is_flag:
        return [parameter.opts[-1]] if value else []
    values = value if isinstance(value, list) else [value]
    if (
        is_flag
        or not values
        or any(isinstance(part, bool) or not isinstance(part, str | int | float) for part in values)
    ):
        expected = "true or false" if is_flag else "a text, a number or a list of them"
        expected = expected if len(choices) == 1 else f"one of {', '.join(choices)}"
        raise InputError(f"{place}: got {shown(value)}, expected {expected}")
    texts = [*map(str, values)]
    texts = texts if getattr(parameter, "multiple", False) else [",".join(texts)]
    return [word for text in texts for word in ([f"{_long(parameter)}={text}"] if is_option else [text])]


def _long(parameter: Any) -> str:
    """Return the long option, or the name of an argument."""
    return next((str(name) for name in parameter.opts if name.startswith("--")), str(parameter.name))


def settings_schema(command: Any) -> dict[str, Any]:
    """Return the JSON Schema of the file of settings of a command of the program."""
    context = command.make_context(command.name, [], resilient_parsing=True)
    parameters = command.get_params(context)
    kept = {name: parameter for parameter in parameters for name in _names(parameter)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"pipesched {command.name} {SETTINGS}",
        "description": "Options of the command; the command line wins.",
        "type": "object",
        "properties": {
            name: _value_schema(parameter, parameter.display_type(context).strip("<>"))
            for name, parameter in kept.items()
            if f"--{name}" != SETTINGS
        },
        "additionalProperties": False,
    }


def _value_schema(parameter: Any, words: str) -> dict[str, Any]:
    known = {"int": "integer", "float": "number", "str": None, "path": None}
    name = words.removesuffix(" range").removeprefix("list[").removesuffix("]").lower()
    if getattr(parameter, "is_flag", False):
        value: dict[str, Any] = {"type": "boolean"}
    elif name not in known:  # a choice, perhaps of one word
        value = {"enum": words.split("|")}
    else:
        kind = known[name]
        texts: dict[str, Any] = {"type": ["string", "number", "array"], "items": {"type": ["string", "number"]}}
        several = {"type": [kind, "array"], "items": {"type": kind}}
        value = texts if kind is None else several if getattr(parameter, "multiple", False) else {"type": kind}
    limits = {"minimum": getattr(parameter, "min", None), "maximum": getattr(parameter, "max", None)}
    value |= {name: limit for name, limit in limits.items() if limit is not None}
    return {"description": parameter.help or "", **value}
