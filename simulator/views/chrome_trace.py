"""Timelines as a Chrome trace, which ui.perfetto.dev opens.

A process per rank and a lane per direction, and one for reductions; an arrow goes from the computation that makes a
message through its Send and its Recv to the computation that needs it; memory is a counter. These rules keep Perfetto
from dropping or moving events:

* Times are rounded to integer nanoseconds first, so two slices that touch still touch.
* No lane overlaps itself. An overlapping slice goes to a further lane of the same name (``recv 2``).
* An arrow binds to the slice that its lane began last, so every flow event stands right behind such a slice.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, groupby
from operator import itemgetter
from typing import Any, assert_never

from pipesched.schedules import Span, Timeline
from pipesched.schedules.ops import (
    Compute,
    Message,
    Overlap,
    PostOp,
    Recv,
    Reduce,
    Send,
    StageOp,
    computes,
    gives,
    needs,
)
from pipesched.schedules.semantics import transfers
from pipesched.simulator import SimulationError
from pipesched.simulator.analysis import label, sources

_Event = dict[str, Any]

_CATEGORY = {
    "F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight", "R": "recompute",
    "LATE_R": "late_recompute",
}  # fmt: skip
_MOST_S = 2**63 / 1e9
"""Perfetto counts nanoseconds in 64 bits: 292 years."""
_MIB = 1 << 20  # the unit of the counters: people read them


@dataclass(frozen=True, slots=True)
class _Slice:
    """A span on its lane, in integer nanoseconds."""

    span: Span
    tid: int
    start_ns: int
    end_ns: int

    @property
    def last_ns(self) -> int:
        """The last instant inside: an end belongs to the next slice."""
        return max(self.start_ns, self.end_ns - 1)


def to_trace(*timelines: Timeline) -> str:
    """Return the Timelines, each with its first work at 0, as one Chrome trace (JSON text).

    Several Timelines of the same ranks stand side by side: one process per rank, lanes ``compute (predicted)`` and
    ``compute (measured)``.

    Raises:
        SimulationError: A time exceeds Perfetto's range.
    """
    shown = [timeline.from_zero() for timeline in timelines]
    suffixes = [f" ({source})" for source in sources(shown)] if len(shown) > 1 else [""] * len(shown)
    zero_ns = min([0, *(_ns(span.start_s) for timeline in shown for span in timeline.spans)])
    slices, metadata, home = _layout(shown, suffixes, zero_ns)
    ids = count(1)
    events = [event for timeline, group in zip(shown, slices, strict=True) for event in _events(timeline, group, ids)]
    for timeline, suffix in zip(shown, suffixes, strict=True):
        events += _memory(timeline, f"memory{suffix}", zero_ns, home)
    return _text(timelines, [*metadata, *_in_reading_order(events)])


def _layout(
    timelines: Sequence[Timeline], suffixes: Sequence[str], zero_ns: int
) -> tuple[list[list[_Slice]], list[_Event], list[int]]:
    """Return the slices of each Timeline, lane by lane; the names of ranks and lanes; the first tid of each rank."""
    slices: list[list[_Slice]] = [[] for _ in timelines]
    metadata: list[_Event] = []
    home: list[int] = []
    tid = 0
    lanes_of = [_by_lane(timeline) for timeline in timelines]
    for rank in range(max((len(timeline.rank_to_device) for timeline in timelines), default=0)):
        home.append(tid + 1)
        metadata += _process(rank, timelines)
        for direction in ("compute", "reduce", "send", "recv"):
            for group, spans, suffix in zip(slices, lanes_of, suffixes, strict=True):
                for number, lane in enumerate(_lanes(spans[rank, direction], zero_ns), start=1):
                    tid += 1
                    name = f"{direction} {number}" if number > 1 else direction
                    metadata += _metadata(rank, tid, "thread", name + suffix, tid)
                    group += [_Slice(span, tid, start, end) for span, start, end in lane]
        tid = max(tid, home[rank])
    return slices, metadata, home


def _in_reading_order(events: Sequence[_Event]) -> Iterator[_Event]:
    """Yield the events in order of time; among simultaneous events, each arrow's start comes before its later points.

    The order within a lane is kept: a slice, then the flow events that bind to it.
    """
    for _, instant in groupby(sorted(events, key=itemgetter("ts")), key=itemgetter("ts")):
        lanes: dict[int, deque[_Event]] = defaultdict(deque)
        waiting: dict[int, set[int]] = defaultdict(set)
        for event in instant:
            lanes[event["tid"]].append(event)
            if "hop" in event:
                waiting[event["id"]].add(event["hop"])
        while lanes:
            free = next((tid for tid, lane in lanes.items() if _is_next(lane[0], waiting)), next(iter(lanes)))
            event = lanes[free].popleft()
            if not lanes[free]:
                del lanes[free]
            if "hop" in event:
                waiting[event["id"]].discard(event.pop("hop"))
            yield event


def _is_next(event: _Event, waiting: dict[int, set[int]]) -> bool:
    """Return whether `event` may be read now: no earlier hop of its arrow still waits."""
    return "hop" not in event or event["hop"] == min(waiting[event["id"]])


def _text(timelines: Sequence[Timeline], events: list[_Event]) -> str:
    """Return the JSON, one event a line; times are converted to microseconds, the unit of the format."""
    for event in events:
        for key in ("ts", "dur"):
            if key in event:
                event[key] /= 1000
    about = {"schedule": ", ".join(dict.fromkeys(timeline.name for timeline in timelines))}
    head = json.dumps({"displayTimeUnit": "ms", "otherData": about}, ensure_ascii=False)[:-1]
    lines = (json.dumps(event, ensure_ascii=False, allow_nan=False, separators=(",", ":")) for event in events)
    return head + ', "traceEvents": [\n' + ",\n".join(lines) + "\n]}\n"


def _ns(seconds: float) -> int:
    if not abs(seconds) < _MOST_S:
        raise SimulationError(f"trace: got {seconds:g} s, expected less than {_MOST_S:g}; try smaller costs")
    return round(seconds * 1e9)


def _by_lane(timeline: Timeline) -> dict[tuple[int, str], list[Span]]:
    """Return the spans of each rank and direction."""
    spans_of: dict[tuple[int, str], list[Span]] = defaultdict(list)
    for span in timeline.spans:
        spans_of[span.rank, _direction(span)].append(span)
    return spans_of


def _direction(span: Span) -> str:
    """Return the name of the lane that `span` is in."""
    op = span.op
    if not isinstance(op, PostOp):
        return "compute"
    match op:
        case Send():
            return "send"
        case Recv():
            return "recv"
        case Reduce():
            return "reduce"
        case _:
            assert_never(op)


def _lanes(spans: Sequence[Span], zero_ns: int) -> list[list[tuple[Span, int, int]]]:
    """Return `spans` with their nanoseconds, on the fewest lanes without an overlap."""
    timed = sorted(
        ((span, _ns(span.start_s) - zero_ns, _ns(span.end_s) - zero_ns) for span in spans), key=lambda item: item[1:]
    )
    lanes: list[list[tuple[Span, int, int]]] = []
    for item in timed:
        _, start, end = item
        for lane in lanes:
            _, last_start, last_end = lane[-1]
            if start > last_end or (start == last_end and not start == end == last_start):
                lane.append(item)
                break
        else:
            lanes.append([item])
    return lanes


def _metadata(rank: int, tid: int, what: str, name: str, sort_index: int) -> list[_Event]:
    """Return the name and the place of a process or of a thread."""
    place: _Event = {"ph": "M", "pid": rank + 1, "tid": tid}
    return [
        {**place, "name": f"{what}_name", "args": {"name": name}},
        {**place, "name": f"{what}_sort_index", "args": {"sort_index": sort_index}},
    ]


def _process(rank: int, timelines: Sequence[Timeline]) -> list[_Event]:
    """Return the name of a rank's process, with its device and stages."""
    of_rank = [timeline for timeline in timelines if rank < len(timeline.rank_to_device)]
    devices = sorted({timeline.rank_to_device[rank] for timeline in of_rank})
    stages = sorted({part.stage for t in of_rank for span in t.of_rank(rank) for part in computes(span.op)})
    name = f"rank {rank} / device {_list(devices)}" + (f" / stage {_list(stages)}" if stages else "")
    return _metadata(rank, 0, "process", name, rank)


def _list(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def _events(timeline: Timeline, slices: Sequence[_Slice], ids: Iterator[int]) -> list[_Event]:
    """Return slices and arrows: each slice with its flow events right behind it, lane by lane in order of time."""
    flows: dict[int, list[_Event]] = defaultdict(list)
    for chain in _chains(timeline, slices):
        times = _flow_ns(chain)
        if times is None:
            continue
        flow_id = next(ids)
        for number, (part, at_ns) in enumerate(zip(chain, times, strict=True)):
            flow = "s" if number == 0 else "f" if number == len(chain) - 1 else "t"
            event: _Event = {"ph": flow, "pid": part.span.rank + 1, "tid": part.tid, "ts": at_ns, "id": flow_id}
            event["hop"] = number
            event |= {"name": "p2p", "cat": "flow"} | ({"bp": "e"} if flow == "f" else {})
            flows[id(part)].append(event)
    return [event for part in slices for event in (_slice(part), *flows[id(part)])]


def _slice(part: _Slice) -> _Event:
    """Return the complete event of one slice."""
    span, op, shown = part.span, part.span.op, label(part.span.op)
    args: _Event = {"stage": shown.stage}
    if shown.microbatch is not None:
        args["microbatch"] = shown.microbatch
    name = f"{shown.kind} {shown.stage if shown.microbatch is None else shown.microbatch}"
    category = _CATEGORY.get(shown.kind, shown.kind.lower())
    match op:
        case Compute():
            args |= {"version": op.version} | ({"lookahead": op.lookahead} if op.lookahead else {})
        case Overlap(first, second):
            name = f"{first.phase.value} {first.microbatch} + {second.phase.value} {second.microbatch}"
            category = "overlap"
            args |= {"version": first.version, "second": str(second)}
        case Send() | Recv():
            args["peer"], category = op.peer, "comm"
        case StageOp():
            pass
        case _:
            assert_never(op)
    args["waited_s"] = max(0, _ns(span.start_s) - _ns(span.posted_s)) / 1e9
    at: _Event = {"ph": "X", "pid": span.rank + 1, "tid": part.tid, "ts": part.start_ns}
    return at | {"dur": part.end_ns - part.start_ns, "name": name, "cat": category, "args": args}


def _chains(timeline: Timeline, slices: Sequence[_Slice]) -> Iterator[list[_Slice]]:
    """Yield the slices that each message between ranks passes through, from its maker to its user."""
    parts = [(op, part) for part in slices for op in computes(part.span.op)]
    num_stages = 1 + max((op.stage for op, _ in parts), default=0)
    makers = {message: part for op, part in parts if (message := gives(op)) is not None}
    slice_of = {id(part.span): part for part in slices}
    posts_of = {message: (slice_of[id(a)], slice_of[id(b)]) for message, a, b in transfers(timeline.spans)}
    users: dict[Message, _Slice] = {}
    for op, part in parts:
        for message in needs(op, num_stages):
            if message.receiver == op.stage:
                users.setdefault(message, part)
    for message, maker in makers.items():
        user = users.get(message)
        if user is not None and user.span.rank != maker.span.rank:
            yield [maker, *posts_of.get(message, ()), user]


def _flow_ns(chain: Sequence[_Slice]) -> list[int] | None:
    """Return, for each slice, the time inside it when an arrow passes; times never go back.

    The result is None if the clocks of two ranks differ so much that an arrow would point back in time.
    """
    times = [chain[0].last_ns]
    for part in chain[1:]:
        times.append(max(times[-1], part.start_ns))
    fits = all(at_ns <= part.last_ns for part, at_ns in zip(chain, times, strict=True))
    return times if fits else None


def _memory(timeline: Timeline, name: str, zero_ns: int, home: Sequence[int]) -> Iterator[_Event]:
    """Yield the counters of every device, on its first rank; memory from before the first work counts from there."""
    kinds: dict[int, dict[str, None]] = defaultdict(dict)
    values: dict[int, dict[int, dict[str, int]]] = defaultdict(dict)
    for sample in timeline.memory:
        kinds[sample.device] |= dict.fromkeys(kind for kind, _ in sample.bytes_by_kind)
        values[sample.device][max(0, _ns(sample.time_s) - zero_ns)] = dict(sample.bytes_by_kind)
    for device, names in kinds.items():
        rank = timeline.rank_to_device.index(device)
        for at_ns, held in sorted({0: {}, **values[device]}.items()):
            args = {f"{kind}_MiB": held.get(kind, 0) / _MIB for kind in names}
            yield {"ph": "C", "pid": rank + 1, "tid": home[rank], "ts": at_ns, "name": name, "args": args}
