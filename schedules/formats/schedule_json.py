"""Schedules as JSON, with all properties, replicas, versions, steps and shared devices included.

    {"format": "pipesched.schedule", "version": 1, "name": "gpipe", "num_stages": 2, "num_microbatches": 1,
     "rank_to_device": [0, 1],
     "ops": [["0F0", "0SEND_F0>1", "0RECV_B0<1", "0B0", "0STEP"],
             ["1RECV_F0<0", "1F0", "1B0", "1SEND_B0>0", "1STEP"]]}

An op is a text (`schedules.formats.op_text`); a Send or Recv names its peer's rank. Optional fields:

    "width": 2                  copies of a pipeline (`schedules.transforms.replication`); default 1
    "is_lowered": true          the lists need no further Sends and Recvs; default: true if they have any
    "origin": "spectrain"       the catalogue's entry that made the lists; default: unknown
    "traits": {"is_asynchronous": true, "prediction": "momentum"}    properties of the lists (`schedules.traits`)
    "parameters": {"accumulate": 4}    parameters of the catalogue's entry; other parameters have their defaults
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, assert_never

from pipesched.schedules import Parameters, PredictionRule, Schedule, ScheduleError, ScheduleTraits
from pipesched.schedules.columns import shows_messages
from pipesched.schedules.common import MAX_CELLS, MAX_NUMBER, shown
from pipesched.schedules.formats.attribute_docs import attribute_docs
from pipesched.schedules.formats.files import Faults, read_text, suffix_of
from pipesched.schedules.formats.json_document import (
    DEVICES_SCHEMA,
    LONGEST_NAME,
    check_devices,
    check_name,
    check_number,
    document_schema,
    document_text,
    load_document,
)
from pipesched.schedules.formats.op_text import OP_PATTERN, op_text, parse_op_with_peer
from pipesched.schedules.formats.torch_csv import read_csv_text
from pipesched.schedules.ops import Compute, Op, Overlap, Recv, Send, StageOp

SCHEDULE_FORMAT = "pipesched.schedule"
_FIELDS = {"name": str, "num_stages": int, "num_microbatches": int, "rank_to_device": list, "ops": list}
_OPTIONAL = {"width": int, "is_lowered": bool, "origin": str, "traits": dict, "parameters": dict}


def read_schedule(path: Path | str) -> Schedule:
    """Return the schedule in a file: CSV or JSON by its suffix, else by its first character.

    Raises:
        ScheduleError: The file is neither a valid CSV nor a valid JSON schedule.
    """
    text = read_text(path)
    suffix = suffix_of(path)
    is_json = suffix == ".json" or (suffix != ".csv" and text.lstrip().startswith("{"))
    return from_json(text, str(path)) if is_json else read_csv_text(text, str(path))


def from_json(text: str, origin: str) -> Schedule:
    """Return the schedule in a JSON text; `origin` is the name of the text in messages.

    Raises:
        ScheduleError: The text is not such a schedule.
    """
    document = load_document(text, origin, SCHEDULE_FORMAT, _FIELDS, _OPTIONAL)
    faults = Faults(origin)
    rows = _parse(document["ops"], faults)
    traits = _parse_traits(document.get("traits", {}), faults)
    parameters = _parse_parameters(document.get("parameters", {}), faults)
    faults.settle()
    schedule = Schedule(
        document["name"],
        document["num_stages"],
        document["num_microbatches"],
        tuple(rows),
        tuple(document["rank_to_device"]),
        document.get("width", 1),
        document.get("is_lowered", False),
        document.get("origin"),
        traits,
        parameters=parameters,
    )
    _check(schedule, faults)
    faults.settle()
    return schedule


def to_json(schedule: Schedule) -> str:
    """Return the JSON text of `schedule`, a line per rank.

    Raises:
        ScheduleError: A value is out of its bounds, so that the text could not be read again.
    """
    faults = Faults(f"schedule {shown(schedule.name)}")
    _check(schedule, faults)
    faults.settle()
    head = {
        "name": schedule.name,
        "num_stages": schedule.num_stages,
        "num_microbatches": schedule.num_microbatches,
        "rank_to_device": list(schedule.rank_to_device),
        **({} if schedule.width == 1 else {"width": schedule.width}),
        **({"is_lowered": True} if schedule.is_lowered and not shows_messages(schedule.ops) else {}),
        **({} if schedule.origin is None else {"origin": schedule.origin}),
        **({} if schedule.traits == ScheduleTraits() else {"traits": _traits(schedule.traits)}),
        **({"parameters": dict(schedule.parameters)} if schedule.parameters else {}),
    }
    return document_text(SCHEDULE_FORMAT, head, {"ops": [[op_text(op) for op in row] for row in schedule.ops]})


def schedule_schema() -> dict[str, Any]:
    """Return the JSON Schema of the files for `read_schedule`; relations between fields are not in it."""
    said, traits = attribute_docs(Schedule), attribute_docs(ScheduleTraits)
    count = {"minimum": 1, "maximum": MAX_CELLS}
    kinds: dict[str, dict[str, Any]] = {
        trait.name: {"enum": list(PredictionRule)} if trait.name == "prediction" else {"type": "boolean"}
        for trait in fields(ScheduleTraits)
    }
    return document_schema(
        SCHEDULE_FORMAT,
        _FIELDS,
        _OPTIONAL,
        {
            "name": {"description": said["name"], "maxLength": LONGEST_NAME},
            "num_stages": {"description": said["num_stages"], **count},
            "num_microbatches": {"description": said["num_microbatches"], **count},
            "rank_to_device": DEVICES_SCHEMA,
            "ops": {
                "description": "The list of every rank.",
                "items": {"type": "array", "items": {"type": "string", "pattern": OP_PATTERN}},
            },
            "width": {"description": said["width"], "minimum": 1},
            "is_lowered": {"description": said["is_lowered"]},
            "origin": {"description": said["origin"], "maxLength": LONGEST_NAME},
            "traits": {
                "description": said["traits"],
                "properties": {name: {**kind, "description": traits[name]} for name, kind in kinds.items()},
                "additionalProperties": False,
            },
            "parameters": {
                "description": said["parameters"],
                "additionalProperties": {"type": ["number", "array"], "items": {"type": "integer"}},
            },
        },
    )


def _parse(value: list[Any], faults: Faults) -> list[tuple[Op, ...]]:
    rows: list[tuple[Op, ...]] = []
    for rank, texts in enumerate(value):
        row: list[Op] = []
        if type(texts) is not list:
            faults.add(f"ops[{rank}]", f'got {shown(texts)}, expected a list of ops; try ["0F0", ...]')
            continue
        for index, text in enumerate(texts):
            if type(text) is not str:
                faults.add(f"ops[{rank}][{index}]", f'got {shown(text)}, expected the text of an op; try "0F0"')
                continue
            try:
                row.append(parse_op_with_peer(text))
            except ScheduleError as error:
                faults.add(f"ops[{rank}][{index}]", str(error))
        rows.append(tuple(row))
    return rows


def _traits(traits: ScheduleTraits) -> dict[str, bool | str]:
    """Return the traits that differ from the defaults."""
    return {key: value for key, value in asdict(traits).items() if value != getattr(ScheduleTraits(), key)}


def _parse_traits(value: dict[str, Any], faults: Faults) -> ScheduleTraits:
    known = {trait.name for trait in fields(ScheduleTraits)}
    traits: dict[str, Any] = {}
    for key, trait in value.items():
        place = f"traits.{key}" if key in known else "traits"
        if key not in known:
            faults.add(place, f"got {shown(key)}, expected only {', '.join(sorted(known))}; try removing it")
        elif key != "prediction" and type(trait) is not bool:
            faults.add(place, f"got {shown(trait)}, expected true or false; try correcting it")
        elif key == "prediction" and trait not in tuple(PredictionRule):
            faults.add(place, f"got {shown(trait)}, expected one of {', '.join(PredictionRule)}; try correcting it")
        else:
            traits[key] = PredictionRule(trait) if key == "prediction" else trait
    return ScheduleTraits() if faults else ScheduleTraits(**traits)


def _parse_parameters(value: dict[str, Any], faults: Faults) -> Parameters:
    for key, given in value.items():
        numbers = given if type(given) is list else [given]
        if any(type(number) not in ((int,) if numbers is given else (int, float)) for number in numbers):
            faults.add(f"parameters.{key}", f"got {shown(given)}, expected a number or a list of integers; try 4")
    return tuple((key, tuple(given) if type(given) is list else given) for key, given in value.items())


def _check(schedule: Schedule, faults: Faults) -> None:
    check_name(schedule.name, "name", faults)
    check_name(schedule.origin or "", "origin", faults)
    check_devices(schedule.rank_to_device, faults)
    if len(schedule.rank_to_device) != schedule.num_ranks:
        got = f"got {len(schedule.rank_to_device)} devices for {schedule.num_ranks} ranks"
        faults.add("rank_to_device", f"{got}, expected one device for each rank; try a device per row of ops")
    _check_counts(schedule, faults)
    if faults:
        return
    if schedule.num_stages * schedule.num_microbatches > MAX_CELLS:
        got = f"got {schedule.num_stages} * {schedule.num_microbatches}"
        faults.add("num_stages * num_microbatches", f"{got}, expected at most {MAX_CELLS}; try fewer micro-batches")
    for rank, row in enumerate(schedule.ops):
        for index, op in enumerate(row):
            for name, value, limit in _numbers(op, schedule):
                if type(value) is not int or not 0 <= value < limit:  # so that the place is named for faults only
                    check_number(value, limit, f"ops[{rank}][{index}]", faults, name)


def _check_counts(schedule: Schedule, faults: Faults) -> None:
    counts = {"num_stages": schedule.num_stages, "num_microbatches": schedule.num_microbatches}
    for name, count in counts.items():
        if type(count) is not int or not 1 <= count <= MAX_CELLS:
            faults.add(name, f"got {shown(count)}, expected an integer from 1 to {MAX_CELLS}; try correcting it")
    if not faults and (schedule.width < 1 or schedule.num_devices % schedule.width):
        got = f"got {schedule.width} copies on {schedule.num_devices} devices"
        faults.add("width", f"{got}, expected a number of copies that divides the number of devices; try 1")


def _numbers(op: Op, schedule: Schedule) -> Iterator[tuple[str, object, int]]:
    """Yield the numbers in `op`: name, value, and exclusive upper limit."""
    match op:
        case Compute():
            yield "stage", op.stage, schedule.num_stages
            yield "micro-batch", op.microbatch, schedule.num_microbatches
            yield "version", op.version, MAX_NUMBER + 1
            yield "lookahead", op.lookahead, MAX_NUMBER + 1
        case Overlap():
            yield from _numbers(op.first, schedule)
            yield from _numbers(op.second, schedule)
        case Send() | Recv():
            yield "sending stage", op.message.stage, schedule.num_stages
            yield "receiving stage", op.message.receiver, schedule.num_stages
            yield "micro-batch", op.message.microbatch, schedule.num_microbatches
            yield "peer", op.peer, schedule.num_ranks
        case StageOp():
            yield "stage", op.stage, schedule.num_stages
        case _:
            assert_never(op)
