"""Timelines as JSON, without loss: every float reads back to the same bits.

    {"format": "pipesched.timeline", "version": 1, "name": "gpipe", "source": "predicted", "rank_to_device": [0, 1],
     "spans": [[0, "0F0", 0.0, 0.0, 1.5], ...], "memory": [[0, 0.0, {"weights": 1024}], ...]}

A span is rank, op, posted_s, start_s, end_s [s]; a sample of memory is device, time_s [s], bytes by kind. Three fields
are optional: ``"hand_overs": [[0, "0SEND_F0>1", 1.5, 1.6], ...]`` has rank, op, start_s, end_s [s]; ``"yardstick":
{"device": "cpu", "num_busy": 2, "kernel_s": 0.0003}`` has the time of a fixed kernel beside the run; ``"launch_s":
1.2`` is the time in which one thread launched all ops [s].
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from pipesched.schedules import HandOver, MemorySample, ScheduleError, Span, Timeline, Yardstick
from pipesched.schedules.common import shown
from pipesched.schedules.formats.attribute_docs import attribute_docs
from pipesched.schedules.formats.files import MAX_BYTES, Faults, read_text
from pipesched.schedules.formats.json_document import (
    DEVICES_SCHEMA,
    LONGEST_NAME,
    MAX_DEVICES,
    check_devices,
    check_name,
    check_number,
    document_schema,
    document_text,
    load_document,
)
from pipesched.schedules.formats.op_text import OP_PATTERN, op_text, parse_op_with_peer
from pipesched.schedules.ops import Recv, Send

TIMELINE_FORMAT = "pipesched.timeline"
_FIELDS = {"name": str, "source": str, "rank_to_device": list, "spans": list, "memory": list}
_OPTIONAL_FIELDS = {"hand_overs": list, "yardstick": dict, "launch_s": float}
_MAX_TIMELINE_BYTES = 8 * MAX_BYTES
_MAX_HELD_BYTES = 2**62
_DEVICES = ("cpu", "cuda")
_Timed = TypeVar("_Timed", Span, HandOver)
_EXAMPLES: Mapping[type[Span | HandOver], list[object]] = {
    Span: [0, "0F0", 0.0, 0.0, 1.5],
    HandOver: [0, "0F0", 1.5, 1.6],
}


def read_timeline(path: Path | str) -> Timeline:
    """Return the timeline in a JSON file.

    Raises:
        ScheduleError: The file is not such a timeline.
    """
    return timeline_from_json(read_text(path, _MAX_TIMELINE_BYTES), str(path))


def timeline_from_json(text: str, origin: str) -> Timeline:
    """Return the timeline in a JSON text; `origin` is the name of the text in messages.

    Raises:
        ScheduleError: The text is not such a timeline.
    """
    document = load_document(text, origin, TIMELINE_FORMAT, _FIELDS, _OPTIONAL_FIELDS)
    faults = Faults(origin)
    spans = [_parse_row(row, Span, f"spans[{index}]", faults) for index, row in enumerate(document["spans"])]
    memory = [_parse_sample(row, f"memory[{index}]", faults) for index, row in enumerate(document["memory"])]
    rows = document.get("hand_overs", [])
    hand_overs = [_parse_row(row, HandOver, f"hand_overs[{index}]", faults) for index, row in enumerate(rows)]
    yardstick = _parse_yardstick(document["yardstick"], faults) if "yardstick" in document else None
    launch_s = float(document["launch_s"]) if "launch_s" in document else None
    faults.settle()
    timeline = Timeline(
        document["name"],
        document["source"],
        tuple(span for span in spans if span is not None),
        tuple(document["rank_to_device"]),
        tuple(sample for sample in memory if sample is not None),
        tuple(hand_over for hand_over in hand_overs if hand_over is not None),
        yardstick,
        launch_s,
    )
    _check(timeline, faults)
    faults.settle()
    return timeline


def timeline_to_json(timeline: Timeline) -> str:
    """Return the JSON text of `timeline`, a line per span and per memory sample.

    Raises:
        ScheduleError: A value is out of its bounds, so that the text could not be read again.
    """
    faults = Faults(f"timeline {shown(timeline.name)}")
    _check(timeline, faults)
    faults.settle()
    head: dict[str, object] = {"name": timeline.name, "source": timeline.source}
    head["rank_to_device"] = list(timeline.rank_to_device)
    if timeline.yardstick is not None:
        head["yardstick"] = asdict(timeline.yardstick)
    if timeline.launch_s is not None:
        head["launch_s"] = float(timeline.launch_s)
    spans = [[s.rank, op_text(s.op), float(s.posted_s), float(s.start_s), float(s.end_s)] for s in timeline.spans]
    memory = [[m.device, float(m.time_s), dict(m.bytes_by_kind)] for m in timeline.memory]
    lists = {"spans": spans, "memory": memory}
    if timeline.hand_overs:
        lists["hand_overs"] = [[h.rank, op_text(h.op), float(h.start_s), float(h.end_s)] for h in timeline.hand_overs]
    return document_text(TIMELINE_FORMAT, head, lists)


def timeline_schema() -> dict[str, Any]:
    """Return the JSON Schema of the files for `read_timeline`; relations between rows are not in it."""
    rank = {"type": "integer", "minimum": 0, "description": "The rank."}
    op = {"type": "string", "pattern": OP_PATTERN, "description": "The op."}
    span, hand_over, yardstick = map(attribute_docs, (Span, HandOver, Yardstick))
    held = {
        "type": "object",
        "additionalProperties": {"type": "integer", "minimum": 0, "exclusiveMaximum": _MAX_HELD_BYTES},
        "description": "Bytes by kind, as weights and activations.",
    }
    said = attribute_docs(Timeline)
    return document_schema(
        TIMELINE_FORMAT,
        _FIELDS,
        _OPTIONAL_FIELDS,
        {
            "name": {"description": said["name"], "maxLength": LONGEST_NAME},
            "source": {"description": said["source"], "maxLength": LONGEST_NAME},
            "rank_to_device": DEVICES_SCHEMA,
            "spans": {
                "description": said["spans"],
                "items": _row(rank, op, *(_number(span[name]) for name in ("posted_s", "start_s", "end_s"))),
            },
            "memory": {
                "description": said["memory"],
                "items": _row({**rank, "description": "The device."}, _number("Held from then on [s]."), held),
            },
            "hand_overs": {
                "description": said["hand_overs"],
                "items": _row(
                    rank,
                    {**op, "description": hand_over["op"]},
                    *(_number(hand_over[name]) for name in ("start_s", "end_s")),
                ),
            },
            "yardstick": {
                "description": said["yardstick"],
                "properties": {
                    "device": {"enum": list(_DEVICES), "description": yardstick["device"]},
                    "num_busy": {
                        "type": "integer",
                        "minimum": 0,
                        "exclusiveMaximum": MAX_DEVICES,
                        "description": yardstick["num_busy"],
                    },
                    "kernel_s": {**_number(yardstick["kernel_s"]), "exclusiveMinimum": 0},
                },
                "required": list(yardstick),
                "additionalProperties": False,
            },
            "launch_s": {"description": said["launch_s"], "minimum": 0},
        },
    )


def _row(*cells: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "prefixItems": list(cells), "minItems": len(cells), "items": False}


def _number(description: str) -> dict[str, Any]:
    return {"type": "number", "description": description}


def _parse_row(row: Any, kind: type[_Timed], place: str, faults: Faults) -> _Timed | None:
    """Return the span or the hand-over in a row: rank, op, and its times."""
    example = _EXAMPLES[kind]
    match row:
        case [int() as rank, str() as text, *times] if len(row) == len(example) and _are_numbers(rank, *times):
            try:
                return kind(rank, parse_op_with_peer(text), *map(float, times))
            except ScheduleError as error:
                faults.add(place, str(error))
        case _:
            faults.add(place, f"got {shown(row)}, expected a row like {json.dumps(example)}; try correcting it")
    return None


def _parse_yardstick(value: dict[str, object], faults: Faults) -> Yardstick | None:
    match value:
        case {"device": str() as device, "num_busy": int() as num_busy, "kernel_s": int() | float() as kernel_s}:
            if len(value) == 3 and _are_numbers(num_busy, kernel_s):
                return Yardstick(device, num_busy, float(kernel_s))  # type: ignore[arg-type]  # checked with the others
    expected = 'expected {"device": "cpu", "num_busy": 2, "kernel_s": 0.0003}'
    faults.add("yardstick", f"got {shown(value)}, {expected}; try correcting it")
    return None


def _parse_sample(row: Any, place: str, faults: Faults) -> MemorySample | None:
    match row:
        case [int() as device, time_s, dict() as held] if _are_numbers(device, time_s):
            return MemorySample(device, float(time_s), tuple(held.items()))
        case _:
            faults.add(place, f'got {shown(row)}, expected a row like [0, 0.0, {{"weights": 1024}}]; try correcting it')
    return None


def _are_numbers(*values: object) -> bool:
    return all(type(value) in (int, float) for value in values)


def _check(timeline: Timeline, faults: Faults) -> None:
    check_name(timeline.name, "name", faults)
    check_name(timeline.source, "source", faults)
    check_devices(timeline.rank_to_device, faults)
    if faults:
        return
    last_rank, devices = 0, frozenset(timeline.rank_to_device)
    for index, span in enumerate(timeline.spans):
        place = f"spans[{index}]"
        _check_row(span, (span.posted_s, span.start_s, span.end_s), len(timeline.rank_to_device), place, faults)
        if span.rank < last_rank:
            got = f"got rank {span.rank} after {last_rank}"
            faults.add(place, f"{got}, expected spans in order of rank; try sorting them")
        last_rank = span.rank
    for index, hand_over in enumerate(timeline.hand_overs):
        times = hand_over.start_s, hand_over.end_s
        _check_row(hand_over, times, len(timeline.rank_to_device), f"hand_overs[{index}]", faults)
    if timeline.yardstick is not None:
        _check_yardstick(timeline.yardstick, faults)
    if timeline.launch_s is not None and not (math.isfinite(timeline.launch_s) and timeline.launch_s >= 0):
        faults.add("launch_s", f"got {timeline.launch_s} s, expected finite seconds, 0 or more; try correcting them")
    last = (-1, 0.0)
    for index, sample in enumerate(timeline.memory):
        place = f"memory[{index}]"
        _check_sample(sample, devices, place, faults)
        if (sample.device, sample.time_s) < last:
            got = f"got device {sample.device} at {sample.time_s} s"
            faults.add(place, f"{got}, expected samples in order of device, then time; try sorting them")
        last = (sample.device, sample.time_s)


def _check_yardstick(yardstick: Yardstick, faults: Faults) -> None:
    if yardstick.device not in _DEVICES:
        faults.add("yardstick", f"got device {shown(yardstick.device)}, expected cpu or cuda; try correcting it")
    check_number(yardstick.num_busy, MAX_DEVICES, "yardstick", faults, "num_busy")
    if not (math.isfinite(yardstick.kernel_s) and yardstick.kernel_s > 0):
        faults.add("yardstick", f"got {yardstick.kernel_s} s, expected finite seconds above 0; try correcting them")


def _check_row(row: Span | HandOver, times: tuple[float, ...], num_ranks: int, place: str, faults: Faults) -> None:
    """Refuse a span or a hand-over with an unknown rank or peer, or with impossible times."""
    check_number(row.rank, num_ranks, place, faults, "rank")
    if isinstance(row.op, Send | Recv):
        check_number(row.op.peer, num_ranks, place, faults, "peer")
    if not all(map(math.isfinite, times)):
        faults.add(place, f"got times {times}, expected finite seconds; try correcting them")
    elif row.end_s < row.start_s:
        faults.add(
            place,
            f"got end {row.end_s} s before start {row.start_s} s, expected an end after the start; try correcting it",
        )


def _check_sample(sample: MemorySample, devices: frozenset[int], place: str, faults: Faults) -> None:
    if sample.device not in devices:
        faults.add(place, f"got device {shown(sample.device)}, expected one of rank_to_device; try correcting it")
    if not math.isfinite(sample.time_s):
        faults.add(place, f"got time {sample.time_s}, expected finite seconds; try correcting it")
    kinds = [kind for kind, _ in sample.bytes_by_kind]
    if len(set(kinds)) < len(kinds):
        faults.add(place, f"got a kind of memory twice in {shown(kinds)}, expected each once; try adding them up")
    for kind, num_bytes in sample.bytes_by_kind:
        check_name(kind, place, faults)
        check_number(num_bytes, _MAX_HELD_BYTES, place, faults, f"bytes of {shown(kind)}")
