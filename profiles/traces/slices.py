"""The slices of a Chrome trace, whoever wrote it: complete events, and pairs of a begin and an end.

    {"ph": "X", "ts": 0, "dur": 9}                        one event: complete
    {"ph": "B", "ts": 0}  {"ph": "E", "ts": 9}            a stack for each thread; an end needs no name
    {"ph": "b", "ts": 0, "id": 3}  {"ph": "e", "ts": 9}   a stack for each category and id, which may overlap others

Pairs are put in order of time before they are matched, as Perfetto does: a file may have its events in any order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator

from pipesched.profiles.traces.event_stream import TraceEvent, event_arguments, event_ns
from pipesched.schedules.common import shown

_BEGINS = {"B": "B", "b": "b", "S": "b"}
_ENDS = {"E": "B", "e": "b", "F": "b"}
_MOST_DIGITS = 18


def whole_slices(events: Iterable[TraceEvent], file: str) -> Iterator[TraceEvent]:
    """Yield the events, and each pair of a begin and an end as one complete event, at the end of the file.

    A begin without an end, or an end without a begin, is a slice that the trace does not have whole: it is dropped.

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
    """Return a pid or a tid as a key: a number and the text of its digits are one."""
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdecimal() and len(value) < _MOST_DIGITS else value
    return value if isinstance(value, int) else None


def _stack(event: TraceEvent, kind: str) -> Hashable:
    """Return the stack of an event: an end belongs to a begin on the same one."""
    if kind == "B":
        return kind, lane_id(event.get("pid")), lane_id(event.get("tid"))
    fields = (event.get(key) for key in ("pid", "cat", "scope", "id", "id2"))
    return kind, *(field if isinstance(field, str | int) else shown(field) for field in fields)


def _paired(halves: list[tuple[int, TraceEvent]]) -> Iterator[TraceEvent]:
    """Yield the slices of one stack; an end with a name belongs to the last begin of this name."""
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
