"""JSON documents with a format and a version: read more strictly than in `json`, written with one line per item."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from pipesched.schedules import ScheduleError
from pipesched.schedules.common import shown
from pipesched.schedules.formats.files import Faults, fault

_MAX_DEPTH = 100
"""Largest depth of nested lists and objects in a JSON text."""

_FORMAT = re.compile(rb'"format"\s*:\s*"(pipesched[\w.-]*)"')
_HEAD_BYTES = 2**16
_MAX_INTEGER_DIGITS = 19


def format_of(path: Path | str) -> str | None:
    """Return the format of a JSON file, such as ``"pipesched.timeline"``; the file may still be invalid.

    None if the first 64 KiB contain no format, or the file is a pipe or cannot be read.
    """
    try:
        if not Path(path).is_file():
            return None
        with Path(path).open("rb") as file:
            match = _FORMAT.search(file.read(_HEAD_BYTES))
    except (OSError, TypeError, ValueError):
        return None
    return None if match is None else match[1].decode()


def load_json(text: str, origin: str) -> object:
    """Return the value of a JSON text, more strictly than `json` reads it.

    Raises:
        ScheduleError: The text is not JSON, contains NaN, an infinity, a repeated key or a number that is too large, or
            is nested too deep.
    """
    try:
        value: object = json.loads(
            text, parse_constant=_constant, parse_int=_integer, parse_float=_real, object_pairs_hook=_unique
        )
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise fault(origin, f"{place}: got no JSON ({error.msg}), expected JSON; try a JSON checker") from error
    except RecursionError as error:
        raise _too_deep(origin) from error
    except ScheduleError as error:
        raise fault(origin, str(error)) from error
    if not _is_shallow(value):  # or whoever quotes it would run out of stack
        raise _too_deep(origin)
    return value


def _is_shallow(value: object) -> bool:
    level: list[Any] = [value]
    for _ in range(_MAX_DEPTH + 1):
        level = [node for node in level if type(node) in (dict, list)]
        if not level:
            return True
        level = [node for outer in level for node in (outer.values() if type(outer) is dict else outer)]
    return False


def _too_deep(origin: str) -> ScheduleError:
    return fault(origin, f"got lists nested too deep, expected at most {_MAX_DEPTH} levels; try another file")


def _constant(name: str) -> NoReturn:
    raise ScheduleError(f"got {name}, expected finite numbers; try leaving that entry out")


def _integer(digits: str) -> int:
    if len(digits) > _MAX_INTEGER_DIGITS:
        raise ScheduleError(f"got the integer {shown(digits)}, expected at most 19 digits; try a smaller one")
    return int(digits)


def _real(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ScheduleError(f"got the number {shown(digits)}, expected a finite one; try a smaller one")
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ScheduleError(f"got the key {shown(twice)} twice, expected it once; try removing one")
    return fields


def load_document(
    text: str, origin: str, form: str, types: Mapping[str, type], optional: Mapping[str, type] | None = None
) -> dict[str, Any]:
    """Return the fields of a JSON object with ``"format": form, "version": 1`` and the fields `types`.

    All fields but the `optional` ones are required, no other fields are allowed, and each field has exactly its type: a
    bool is not an int, but an int is a float.

    Raises:
        ScheduleError: The text is not such an object.
    """
    document = load_json(text, origin)
    if not isinstance(document, dict):
        raise fault(origin, f'got {shown(document)}, expected a JSON object; try {{"format": "{form}", ...}}')
    if document.get("format") != form:
        advice = "'pipesched import' with the traces of all ranks" if "traceEvents" in document else "another file"
        raise fault(origin, f"format: got {shown(document.get('format'))}, expected {form!r}; try {advice}")
    version = document.get("version")
    if type(version) is not int or version != 1:
        raise fault(origin, f"version: got {shown(version)}, expected 1; try a newer release, or write the file again")
    faults, known = Faults(origin), {**types, **(optional or {})}
    for key in document:
        if key not in known and key not in ("format", "version"):
            faults.add(shown(key), f"got an unknown field, expected only {', '.join(known)}; try removing it")
    for key, kind in known.items():
        if key not in document:
            if key not in types:
                continue
            faults.add(key, f"got no such field, expected one of type {kind.__name__}; try adding it")
        elif type(document[key]) not in ((int, float) if kind is float else (kind,)):
            faults.add(key, f"got {shown(document[key])}, expected type {kind.__name__}; try correcting it")
    faults.settle()
    return document


def document_text(form: str, fields: Mapping[str, object], lists: Mapping[str, Sequence[object]]) -> str:
    """Return the text for `load_document`: a JSON object with a line per field, and a line per item of each list."""
    head = {"format": form, "version": 1, **fields}
    lines = [f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items()]
    for key, items in lists.items():
        rows = ",\n".join(f"    {json.dumps(item, ensure_ascii=False)}" for item in items)
        lines.append(f"  {json.dumps(key)}: " + (f"[\n{rows}\n  ]" if items else "[]"))
    return "{\n" + ",\n".join(lines) + "\n}\n"


_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}


def document_schema(
    form: str, types: Mapping[str, type], optional: Mapping[str, type], said: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the JSON Schema of the files for `load_document`, with the same arguments.

    Args:
        said: Further keywords of each field in the schema, at least its description.
    """
    fields = {name: {"type": _JSON_TYPES[kind], **said[name]} for name, kind in {**types, **optional}.items()}
    head = {
        "format": {"const": form, "description": "Format of the file."},
        "version": {"const": 1, "description": "Version of the format."},
    }
    return {
        "type": "object",
        "properties": head | fields,
        "required": [*head, *types],
        "additionalProperties": False,
    }


def check_name(value: str, place: str, faults: Faults) -> None:
    """Refuse a name that does not fit in one line of text."""
    if len(value) > LONGEST_NAME:
        faults.add(place, f"got {len(value)} characters, expected at most {LONGEST_NAME}; try a shorter name")
    elif not value.isprintable():
        faults.add(place, f"got {shown(value)}, expected printable characters; try letters and digits")


def check_number(value: object, limit: int, place: str, faults: Faults, name: str) -> None:
    """Refuse a value that is not an integer from 0 to ``limit - 1``; `name` labels the number at `place`."""
    if type(value) is not int or not 0 <= value < limit:
        expected = f"expected an integer from 0 to {limit - 1}"
        faults.add(place, f"got {name} {shown(value)}, {expected}; try correcting it")


LONGEST_NAME = 500
"""Most characters of a name."""

MAX_DEVICES = 100_000
"""Most devices in a file."""

DEVICES_SCHEMA = {
    "description": "The device of every rank.",
    "items": {"type": "integer", "minimum": 0, "exclusiveMaximum": MAX_DEVICES},
    "minItems": 1,
}
"""The input of `check_devices`, as JSON Schema."""


def check_devices(devices: tuple[object, ...], faults: Faults) -> None:
    """Refuse a `rank_to_device` that is not a list of device numbers, one for each rank."""
    if not devices:
        faults.add("rank_to_device", "got no rank, expected at least one; try [0]")
    for rank, device in enumerate(devices):
        check_number(device, MAX_DEVICES, f"rank_to_device[{rank}]", faults, "device")
