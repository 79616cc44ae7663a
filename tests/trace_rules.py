"""What a Chrome trace must keep to so that Perfetto shows all of it, where it is: a validator that knows no Timeline.

Perfetto reads the events in order of time, and those of one time in the order of the file. Each lane keeps a stack: a
slice first takes off what has ended by its start (of two slices of no length at one instant the first stays), and a
flow event binds to whatever lies on top.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from typing import Any

Event = dict[str, Any]
ONE_NAME = ("forward", "backward", "backward_input", "backward_weight", "recompute", "step", "reduce", "average")


def check_trace(text: str) -> list[str]:
    """Return every violation found in the JSON text of a trace, none if it is right."""
    try:
        trace = json.loads(text, parse_constant=_refuse)
    except ValueError as error:
        return [f"not JSON: {error}"]
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        return ["no list of traceEvents"]
    faults = [f"character {c!r} escaped: write ASCII or plain UTF-8" for c in sorted(_escaped(text))]
    for number, event in enumerate(trace["traceEvents"]):
        faults += [f"event {number}: {fault}" for fault in _event_faults(event)]
    if faults:  # what follows may rely on fields and numbers
        return faults
    read = sorted((e for e in trace["traceEvents"] if e["ph"] != "M"), key=lambda event: event["ts"])
    metadata = [e for e in trace["traceEvents"] if e["ph"] == "M"]
    return _name_faults(metadata, read) + _lane_faults(read) + _flow_faults(read) + _counter_faults(read)


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


def _escaped(text: str) -> set[str]:
    parts = text.replace("\\\\", "").split("\\u")[1:]
    return {chr(int(part[:4], 16)) for part in parts}


def _is_int(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_time(value: object) -> bool:
    """Whether `value` is a number of microseconds, not below 0, that is a whole number of nanoseconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        return False
    return value == round(value * 1000) / 1000


def _event_faults(event: Event) -> list[str]:
    faults = []
    kind = event.get("ph")
    if kind not in {"M", "X", "s", "t", "f", "C"}:
        return [f"unknown ph {kind!r}"]
    if not _is_int(event.get("pid"), 1):
        faults.append(f"pid is {event.get('pid')!r}, expected rank + 1 (0 is the idle process)")
    of_process = kind == "M" and str(event.get("name")).startswith("process_")
    if not _is_int(event.get("tid"), 0 if of_process else 1):
        faults.append(f"tid is {event.get('tid')!r}, expected at least 1")
    if not isinstance(event.get("name"), str) or not event["name"]:
        faults.append("no name")
    for key in ("ts",) if kind != "M" else ():
        if not _is_time(event.get(key)):
            faults.append(f"{key} is {event.get(key)!r}, expected whole nanoseconds / 1000")
    if kind == "X" and not _is_time(event.get("dur")):
        faults.append(f"dur is {event.get('dur')!r}, expected whole nanoseconds / 1000")
    if kind in {"s", "t", "f"} and not ("id" in event and "cat" in event):
        faults.append("a flow event without id or cat")
    return faults


def _ns(microseconds: float) -> int:
    return round(microseconds * 1000)


def _name_faults(metadata: list[Event], read: list[Event]) -> list[str]:
    faults = []
    processes = {e["pid"]: e["args"]["name"] for e in metadata if e["name"] == "process_name"}
    orders = {e["pid"]: e["args"]["sort_index"] for e in metadata if e["name"] == "process_sort_index"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in metadata if e["name"] == "thread_name"}
    for pid in sorted({e["pid"] for e in read}):
        if pid not in processes:
            faults.append(f"process {pid} has no name")
        elif not processes[pid].startswith(f"rank {pid - 1}"):
            faults.append(f"process {pid} is called {processes[pid]!r}, expected rank {pid - 1}")
    if [pid for pid, _ in sorted(orders.items(), key=lambda item: item[1])] != sorted(orders):
        faults.append("sort indexes are not in the order of the ranks")
    owners: dict[int, set[int]] = defaultdict(set)
    for event in read:
        owners[event["tid"]].add(event["pid"])
    for pid, tid in threads:
        owners[tid].add(pid)
    faults += [f"tid {tid} is in several processes" for tid, pids in owners.items() if len(pids) > 1]
    lanes = {(e["pid"], e["tid"]) for e in read if e["ph"] == "X"}
    faults += [f"lane {tid} of process {pid} has no name" for pid, tid in sorted(lanes - set(threads))]
    named = [(pid, name) for (pid, _), name in threads.items()]
    faults += [
        f"process {pid} has several lanes {name!r}" for pid, name in sorted(set(named)) if named.count((pid, name)) > 1
    ]
    colours: dict[str, set[str]] = defaultdict(set)
    for event in read:
        if event["ph"] == "X" and event.get("cat") in ONE_NAME:
            colours[event["cat"]].add("".join(c for c in event["name"] if not c.isdigit()))
    faults += [
        f"slices of {cat} have several colours: {sorted(names)}" for cat, names in colours.items() if len(names) > 1
    ]
    return faults


def _lane_faults(read: list[Event]) -> list[str]:
    faults = []
    last: dict[int, Event] = {}
    for event in read:
        if event["ph"] != "X":
            continue
        before = last.get(event["tid"])
        if before is not None:
            start, end = _ns(before["ts"]), _ns(before["ts"]) + _ns(before["dur"])
            both_empty = start == end and _ns(event["dur"]) == 0
            if _ns(event["ts"]) < end or (both_empty and _ns(event["ts"]) == end):
                faults.append(f"lane {event['tid']}: {event['name']} at {event['ts']} overlaps {before['name']}")
        last[event["tid"]] = event
    return faults


def _flow_faults(read: list[Event]) -> list[str]:
    faults = []
    top: dict[int, Event] = {}
    arrows: dict[Any, list[Event]] = defaultdict(list)
    for event in read:
        if event["ph"] == "X":
            top[event["tid"]] = event
        elif event["ph"] in {"s", "t", "f"}:
            arrows[event["id"]].append(event)
            bound = top.get(event["tid"])
            start = -1 if bound is None else _ns(bound["ts"])
            end = -1 if bound is None else start + _ns(bound["dur"])
            if not (start <= _ns(event["ts"]) < end or start == _ns(event["ts"]) == end):
                faults.append(
                    f"flow {event['id']}: {event['ph']} at {event['ts']} is in no slice of lane {event['tid']}"
                )
    for flow, hops in arrows.items():
        phases = "".join(hop["ph"] for hop in hops)
        if len(phases) < 2 or phases != "s" + "t" * (len(phases) - 2) + "f":
            faults.append(f"flow {flow}: read as {phases}, expected s, t ..., f")
        if len({(hop["name"], hop["cat"]) for hop in hops}) > 1:
            faults.append(f"flow {flow}: several names or categories")
        if any(hop.get("bp") != "e" for hop in hops if hop["ph"] == "f"):
            faults.append(f'flow {flow}: f without "bp": "e"')
    return faults


def _counter_faults(read: list[Event]) -> list[str]:
    faults = []
    begin = min((_ns(e["ts"]) for e in read if e["ph"] == "X"), default=0)
    tracks: dict[tuple[int, str], list[Event]] = defaultdict(list)
    for event in read:
        if event["ph"] == "C":
            tracks[event["pid"], event["name"]].append(event)
    for (pid, name), events in tracks.items():
        place = f"counter {name!r} of process {pid}"
        values = [value for event in events for value in event.get("args", {}).values()]
        if not values or any(isinstance(v, bool) or not isinstance(v, int | float) for v in values):
            faults.append(f"{place}: values must be numbers")
        if len({tuple(event.get("args", {})) for event in events}) > 1:
            faults.append(f"{place}: the series change")
        if _ns(events[0]["ts"]) > begin:
            faults.append(f"{place}: no initial value")
    return faults
