"""Read the events of a Chrome trace one at a time: a file of any length, plain or gzip, in little memory.

A trace is an object with a long list ``traceEvents``, or only such a list. The standard decoder reads an event at a
time from a window of the text: 70 MB/s. ijson reads 48 MB/s and would need a second pass for the fields after the
events.

    {"ph": "X", "ts": 0, "dur": 9}                        a complete slice
    {"ph": "B", "ts": 0}  {"ph": "E", "ts": 9}            a stack for each thread; an end needs no name
    {"ph": "b", "ts": 0, "id": 3}  {"ph": "e", "ts": 9}   a stack for each category and id; stacks may overlap

A file may have its events in any order. Begins and ends are sorted by time before they are matched, as in Perfetto.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import re
import sys
import zlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn, final

from pipesched.profiles import ProfileError
from pipesched.schedules.common import shown
from pipesched.schedules.formats import open_to_read

_WINDOW = 1 << 20
_LONGEST_VALUE = 1 << 24
"""Longest event or field of a trace [characters]."""

_GZIP = b"\x1f\x8b"
LONGEST_US = 4e15
"""Largest time: microseconds since 1970 are 1.8e15, and two of them fit into 64 bits of nanoseconds."""

_SPACE = re.compile(r"[ \t\r\n]*")
_EVERY = 4096
"""Number of events between two reports of the progress."""

TraceFields = dict[str, Any]
TraceEvent = dict[str, Any]


def read_events(
    path: Path,
    fields: TraceFields,
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
) -> Iterator[TraceEvent]:
    """Yield the events of a trace; at the end all other fields are in `fields`.

    Args:
        path: Path of the file, plain or gzip; its suffix does not matter.
        fields: Receives every other field of the object.
        progress: Called with the fraction of the file that has been read.

    Raises:
        ProfileError: The file cannot be read, is cut off, or is no trace.
    """
    try:
        size = max(1, path.stat().st_size)
        with open_to_read(path) as raw, ExitStack() as unpacking:
            is_packed = raw.read(2) == _GZIP
            raw.seek(0)
            binary = unpacking.enter_context(gzip.open(raw)) if is_packed else raw
            with io.TextIOWrapper(binary, encoding="utf-8-sig", errors="replace") as text:
                for number, event in enumerate(_TraceText(text, str(path)).events(fields)):
                    if number % _EVERY == 0:
                        progress(raw.tell() / size)
                    yield event
        progress(1.0)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ProfileError(f"{path}: got broken gzip ({error}), expected a whole file; try copying it again") from error
    except OSError as error:
        raise ProfileError(f"{path}: got {error.strerror}, expected a trace; try another path") from error


def event_arguments(event: TraceEvent) -> TraceEvent:
    """Return the ``args`` of an event, or an empty object without any."""
    arguments = event.get("args")
    return arguments if isinstance(arguments, dict) else {}


def event_ns(file: str, event: TraceEvent, key: str) -> int:
    """Return a time of an event in whole nanoseconds.

    Raises:
        ProfileError: The time is no number, or out of range.
    """
    value = event.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not -LONGEST_US < value < LONGEST_US:
        raise event_fault(file, event, key, "microseconds")
    whole_us = math.floor(value)
    return whole_us * 1000 + round((value - whole_us) * 1000)  # as a float, 1.8e15 us times 1000 would lose digits


def event_fault(file: str, event: TraceEvent, key: str, expected: str) -> ProfileError:
    """Return the error for an invalid field of an event."""
    place = "" if key == "ts" else f" at {shown(event.get('ts'))}"
    return ProfileError(
        f"{file}: event {shown(event.get('name'))}{place}: {key}: got {shown(event.get(key))}, expected {expected}; "
        "try writing the trace again"
    )


@final
class _TraceText:
    """A window of the text, and its position in the file."""

    def __init__(self, text: io.TextIOBase, file: str) -> None:
        self._text, self._file = text, file
        self._window, self._at, self._before = "", 0, 0
        self._decoder = json.JSONDecoder(parse_constant=self._refuse_constant)

    def events(self, fields: TraceFields) -> Iterator[dict[str, Any]]:
        match self._next():
            case "[":
                yield from self._list(are_alone=True)
            case "{":
                yield from self._object(fields)
            case other:
                self._fail(other, "a trace: an object with traceEvents")

    def _object(self, fields: TraceFields) -> Iterator[dict[str, Any]]:
        has_events, separator = False, self._take("{")
        while separator != "}":
            if not has_events and self._next() == "}":
                break
            key = self._value()
            self._take(":")
            if key == "traceEvents" and self._next() == "[":
                has_events = True
                yield from self._list()
            else:
                fields[str(key)] = self._value()
            separator = self._take(",}")
        if not has_events and {"format", "spans"} <= fields.keys():
            raise ProfileError(
                f"{self._file}: got a Timeline, expected a trace of a profiler; a Timeline needs no import: use the "
                "file as it is"
            )
        if not has_events:
            raise ProfileError(
                f"{self._file}: got {shown(sorted(fields)[:5])}, expected traceEvents, as the profiler of PyTorch "
                "writes them; try another file"
            )

    def _list(self, *, are_alone: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the events of a list; the closing bracket is optional if the list is the whole file."""
        separator = self._take("[")
        if self._next() == "]":
            separator = self._take("]")
        while separator != "]":
            event = self._value()
            if not isinstance(event, dict):
                self._fail(shown(event), "an event, as an object")
            yield event
            if are_alone and self._is_over():
                return
            separator = self._take(",]")
            if are_alone and separator == "," and self._is_over():
                return

    def _value(self) -> Any:
        """Return the next value; read more text until the value is complete."""
        self._next()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._window, self._at)
            except RecursionError:
                self._fail("lists nested too deep", "a trace")
            except json.JSONDecodeError as error:
                got, place = self._window[error.pos : error.pos + 20], self._before + error.pos
                if len(self._window) - self._at > _LONGEST_VALUE or not self._more():
                    self._fail(got, f"JSON ({error.msg})", place)
                continue
            except ProfileError:  # an invalid constant, such as NaN
                raise
            except ValueError:  # Python limits the digits of an integer
                self._fail(f"an integer of more than {sys.get_int_max_str_digits()} digits", "a trace")
            if end == len(self._window) and isinstance(value, int | float) and self._more():
                continue  # the number may have more digits
            self._at = end
            return value

    def _take(self, expected: str) -> str:
        """Advance past the next character, which must be one of `expected`, and return it."""
        got = self._next()
        if got not in expected:
            self._fail(got, " or ".join(map(repr, expected)))
        self._at += 1
        return got

    def _next(self) -> str:
        """Return the next character other than space."""
        if self._is_over():
            self._fail("", "more of it")
        return self._window[self._at]

    def _is_over(self) -> bool:
        """Skip spaces, and return whether the text ends there."""
        begun = self._before + self._at
        while True:
            spaces = _SPACE.match(self._window, self._at)
            assert spaces is not None
            self._at = spaces.end()
            if self._at < len(self._window):
                return False
            if self._before + self._at - begun > _LONGEST_VALUE:
                self._fail(f"{_LONGEST_VALUE} blanks", "a trace")
            if not self._more():
                return True

    def _more(self) -> bool:
        """Drop the text before the position, and read more; return whether the file had more."""
        text = self._text.read(_WINDOW)
        self._before += self._at
        self._window, self._at = self._window[self._at :] + text, 0
        return bool(text)

    def _refuse_constant(self, name: str) -> NoReturn:
        raise ProfileError(f"{self._file}: got {name}, expected finite numbers; try writing the trace again")

    def _fail(self, got: str, expected: str, place: int | None = None) -> NoReturn:
        place = self._before + self._at if place is None else place
        if place and not self._text.read(1):
            raise ProfileError(
                f"{self._file}: character {place}: got {shown(got) if got else 'the end'}, expected {expected}; the "
                "file may be cut off; try writing it again"
            )
        seen = shown(got) if got else "the end"
        raise ProfileError(f"{self._file}: character {place}: got {seen}, expected {expected}; try another file")


_BEGINS = {"B": "B", "b": "b", "S": "b"}
_ENDS = {"E": "B", "e": "b", "F": "b"}
_MOST_DIGITS = 18


def whole_slices(events: Iterable[TraceEvent], file: str) -> Iterator[TraceEvent]:
    """Yield the other events, and then each pair of a begin and an end as one complete event.

    A begin without an end, and an end without a begin, is dropped.

    Raises:
        ProfileError: The time of a begin or an end is no number.
    """
    stacks: defaultdict[Hashable, list[tuple[int, TraceEvent]]] = defaultdict(list)
    for event in events:
        phase = event.get("ph")
        kind = (_BEGINS.get(phase) or _ENDS.get(phase)) if isinstance(phase, str) else None
        if kind is None:
            yield event
        else:
            stacks[_stack(event, kind)].append((event_ns(file, event, "ts"), event))
    for halves in stacks.values():
        yield from _paired(halves)


def lane_id(value: object) -> str | int | None:
    """Return a pid or a tid as a key: a number and the text of its digits give the same key."""
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdecimal() and len(value) < _MOST_DIGITS else value
    return value if isinstance(value, int) else None


def _stack(event: TraceEvent, kind: str) -> Hashable:
    """Return the stack of an event: an end belongs to a begin on the same stack."""
    if kind == "B":
        return kind, lane_id(event.get("pid")), lane_id(event.get("tid"))
    fields = (event.get(key) for key in ("pid", "cat", "scope", "id", "id2"))
    return kind, *(field if isinstance(field, str | int) else shown(field) for field in fields)


def _paired(halves: list[tuple[int, TraceEvent]]) -> Iterator[TraceEvent]:
    """Yield the slices of one stack; an end belongs to the last open begin, of its name if it has one."""
    halves.sort(key=lambda half: half[0])
    begun: list[tuple[int, TraceEvent]] = []
    for at_ns, event in halves:
        if event["ph"] in _BEGINS:
            begun.append((at_ns, event))
            continue
        name = event.get("name")
        places = range(len(begun) - 1, -1, -1)
        place = next((at for at in places if not name or begun[at][1].get("name") in (name, None, "")), None)
        if place is not None:
            begun_ns, begin = begun.pop(place)
            about = {"name": begin.get("name") or name, "args": event_arguments(begin) | event_arguments(event)}
            yield begin | about | {"ph": "X", "dur": (at_ns - begun_ns) / 1000}
