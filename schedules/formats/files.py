"""Read and write files: within a limit, the whole file or nothing, and with faults told in one line."""

from __future__ import annotations

import codecs
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from pipesched.schedules import ScheduleError, shown

MAX_BYTES = 64 * 2**20
"""Largest schedule file that is read [bytes]."""

_MAX_DEPTH = 100
"""Lists and objects of a JSON text in one another."""

_SHOWN_FAULTS = 3
_FORMAT = re.compile(rb'"format"\s*:\s*"(pipesched[\w.-]*)"')
_HEAD_BYTES = 2**16
_MAX_INTEGER_DIGITS = 19


class Faults:
    """What is wrong with one file: collected, then raised once."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._shown: list[str] = []
        self._count = 0

    def __bool__(self) -> bool:
        return self._count > 0

    def add(self, place: str, problem: str) -> None:
        """Note `problem` ("got x, expected y; try z") at `place`; an empty place means the whole file."""
        self._count += 1
        if self._count <= _SHOWN_FAULTS:
            self._shown.append(f"{place}: {problem}" if place else problem)

    def settle(self) -> None:
        """Return if nothing is wrong.

        Raises:
            ScheduleError: Something is; the first faults in one line, and how many more there are.
        """
        if not self._count:
            return
        more = [f"and {self._count - _SHOWN_FAULTS} more"] if self._count > _SHOWN_FAULTS else []
        raise ScheduleError(_one_line(f"{self._origin}: " + "; ".join(self._shown + more)))


def fault(origin: str, problem: str) -> ScheduleError:
    """Return the error for a file that has but one fault."""
    return ScheduleError(_one_line(f"{origin}: {problem}"))


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())


def suffix_of(path: Path | str) -> str:
    """Return the suffix of a file's name, such as ``.json``, in small letters; empty where it has none."""
    return Path(str(path)).suffix.lower()  # what is no path at all is refused where it is read


def read_text(path: Path | str, limit: int = MAX_BYTES, *, may_be_empty: bool = False) -> str:
    """Return the text of a UTF-8 file of at most `limit` bytes, its line ends as they are, without byte order mark.

    All that comes from outside as text is read here, so that what one reader takes the next does too.

    Raises:
        ScheduleError: It cannot be read, is larger, is not text, or is empty and may not be.
    """
    data = read_bytes(path, limit).removeprefix(codecs.BOM_UTF8)
    if not may_be_empty and not data.strip():
        raise fault(str(path), "got an empty file, expected something in it; try writing it again")
    if b"\0" in data:
        place = _place_of(data, data.index(b"\0"))
        raise fault(str(path), f"{place}: got NUL, expected text; try saving the file as UTF-8")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        got = f"{_place_of(data, error.start)}: got 0x{data[error.start]:02x}"
        raise fault(str(path), f"{got}, expected UTF-8; try saving the file as UTF-8") from error


def read_bytes(path: Path | str, limit: int = MAX_BYTES) -> bytes:
    """Return what a file of at most `limit` bytes holds.

    Raises:
        ScheduleError: It cannot be read, or is larger.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(limit + 1)
    except (OSError, TypeError, ValueError) as error:  # TypeError: it is no path
        problem = f"got {_reason(error)}, expected a file that can be read; try another path"
        raise fault(_name_of(path), problem) from error
    if len(data) > limit:
        raise fault(str(path), f"got more than {limit} bytes, expected at most {limit}; try a smaller file")
    return data


def _place_of(data: bytes, index: int) -> str:
    before = data[:index]
    return f"line {before.count(10) + 1}, byte {index - before.rfind(10)}"


def write_text(path: Path | str, text: str) -> None:
    """Write `text` to `path` as UTF-8: the whole of it, or nothing.

    Raises:
        ScheduleError: There is no such folder, or it cannot be written.
    """
    with whole_file(path) as temporary:
        temporary.write_bytes(text.encode("utf-8"))


def require_folder(folder: Path, path: Path | str) -> None:
    """Refuse to write `path`, which belongs into `folder`, where that is none or may not be written to.

    Raises:
        ScheduleError: It is none, or may not be.
    """
    if not folder.is_dir():
        raise fault(str(path), f"got no folder {str(folder)!r}, expected one; try creating it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        got = f"got a folder {str(folder)!r} without permission to write"
        raise fault(str(path), f"{got}, expected it; try another")


@contextmanager
def whole_file(path: Path | str, *, makes_folder: bool = False) -> Iterator[Path]:
    """Yield a name to write to: in the end that file takes the place of `path`, or of the file that `path` links to.

    Every file that is written as a whole is written through here, so that all are refused in the same words.

    Args:
        path: Where the file belongs; it is as it was if anything goes wrong.
        makes_folder: Whether its folder is made, if there is none; the folder around that must be there.

    Raises:
        ScheduleError: There is no such folder, or it cannot be written.
    """
    try:
        target = Path(path).resolve()
        if makes_folder:
            require_folder(target.parent.parent, path)
            target.parent.mkdir(exist_ok=True)
        if target.exists() and not target.is_file():
            problem = "got something that is not a regular file, expected a file's name; try another path"
            raise fault(_name_of(path), problem)
        require_folder(target.parent, path)
        temporary = target.with_name(f".{target.name}.{os.urandom(4).hex()}.tmp")
        try:
            yield temporary
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except ScheduleError:
        raise
    except (OSError, TypeError, ValueError, RuntimeError) as error:  # RuntimeError: a loop of symbolic links
        raise _not_written(path, error) from error


def append_text(path: Path | str, text: str) -> None:
    """Add `text` to a file as UTF-8; it is with the system when this returns.

    Raises:
        ScheduleError: It cannot be written.
    """
    try:
        with Path(path).open("ab") as file:
            file.write(text.encode("utf-8"))
    except OSError as error:
        raise _not_written(path, error) from error


def _not_written(path: Path | str, error: Exception) -> ScheduleError:
    return fault(_name_of(path), f"got {_reason(error)}, expected a file that can be written; try another path")


def _name_of(path: Path | str) -> str:
    return str(path) or "''"


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def format_of(path: Path | str) -> str | None:
    """Return what a JSON file says that it is, such as ``"pipesched.timeline"``, though it may still be a bad one.

    None where it says nothing of that kind in its first 64 KiB, or cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            match = _FORMAT.search(file.read(_HEAD_BYTES))
    except (OSError, TypeError, ValueError):
        return None
    return None if match is None else match[1].decode()


def load_json(text: str, origin: str) -> object:
    """Return the value of a JSON text, more strictly than `json` reads it.

    Raises:
        ScheduleError: Not JSON; or NaN, an infinity, a key given twice, a number too large, nested too deep.
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
    """Return the fields of a JSON object that says ``"format": form, "version": 1`` and has the fields `types`.

    Every field but the `optional` ones must be there, be of exactly its type (a bool is no int), and no other may be.

    Raises:
        ScheduleError: Not such an object.
    """
    document = load_json(text, origin)
    if not isinstance(document, dict):
        raise fault(origin, f'got {shown(document)}, expected a JSON object; try {{"format": "{form}", ...}}')
    if document.get("format") != form:
        raise fault(origin, f"format: got {shown(document.get('format'))}, expected {form!r}; try another file")
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
            faults.add(key, f"got nothing, expected a field of type {kind.__name__}; try adding it")
        elif type(document[key]) is not kind:
            faults.add(key, f"got {shown(document[key])}, expected type {kind.__name__}; try correcting it")
    faults.settle()
    return document


def document_text(form: str, fields: Mapping[str, object], lists: Mapping[str, Sequence[object]]) -> str:
    """Return what `load_document` reads: a JSON object with a line per field, and a line per item of each list."""
    head = {"format": form, "version": 1, **fields}
    lines = [f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items()]
    for key, items in lists.items():
        rows = ",\n".join(f"    {json.dumps(item, ensure_ascii=False)}" for item in items)
        lines.append(f"  {json.dumps(key)}: " + (f"[\n{rows}\n  ]" if items else "[]"))
    return "{\n" + ",\n".join(lines) + "\n}\n"


_JSON_TYPES = {str: "string", int: "integer", bool: "boolean", list: "array", dict: "object"}


def document_schema(
    form: str, types: Mapping[str, type], optional: Mapping[str, type], said: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the JSON Schema of what `load_document` reads; arguments as there.

    Args:
        said: What else the schema says of each field, its description at least.
    """
    fields = {name: {"type": _JSON_TYPES[kind], **said[name]} for name, kind in {**types, **optional}.items()}
    head = {
        "format": {"const": form, "description": "What the file is."},
        "version": {"const": 1, "description": "The version of its form."},
    }
    return {
        "type": "object",
        "properties": head | fields,
        "required": [*head, *types],
        "additionalProperties": False,
    }


def check_name(value: str, place: str, faults: Faults) -> None:
    """Refuse a name that would not stand in one line of text."""
    if not value.isprintable():
        faults.add(place, f"got {shown(value)}, expected printable characters; try letters and digits")


def check_number(value: object, limit: int, place: str, faults: Faults, name: str) -> None:
    """Refuse what is not an integer from 0 to ``limit - 1``; `name` says which of several numbers at `place` it is."""
    if type(value) is not int or not 0 <= value < limit:
        expected = f"expected an integer from 0 to {limit - 1}"
        faults.add(place, f"got {name} {shown(value)}, {expected}; try correcting it")


MAX_DEVICES = 100_000
"""Devices that a file may name; a cluster of that many is still quickly made."""

DEVICES_SCHEMA = {
    "description": "The device of every rank.",
    "items": {"type": "integer", "minimum": 0, "exclusiveMaximum": MAX_DEVICES},
    "minItems": 1,
}
"""What `check_devices` takes, as JSON Schema says it."""


def check_devices(devices: tuple[object, ...], faults: Faults) -> None:
    """Refuse a `rank_to_device` that is not a list of device numbers, one for each rank."""
    if not devices:
        faults.add("rank_to_device", "got no rank, expected at least one; try [0]")
    for rank, device in enumerate(devices):
        check_number(device, MAX_DEVICES, f"rank_to_device[{rank}]", faults, "device")
