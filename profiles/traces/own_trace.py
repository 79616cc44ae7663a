"""Read a trace of ours, which ``pipesched trace`` writes: all ranks in one file, on one clock."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from pipesched.profiles import ProfileError
from pipesched.profiles.traces.event_stream import TraceEvent, TraceFields, event_arguments, read_events
from pipesched.profiles.traces.imported_timeline import ImportedTimeline, imported_timeline
from pipesched.profiles.traces.passes import PostTimes, RankPasses, TimedPass
from pipesched.profiles.traces.rank_trace import Interval
from pipesched.schedules import ScheduleError
from pipesched.schedules.common import shown
from pipesched.schedules.formats import parse_op
from pipesched.schedules.ops import Message, Op, Recv, Send, StageOp

_DEVICE = re.compile(r"rank (\d{1,6}) / device (\d{1,6})(?: |$)")
_STAGE_OPS = {kind.__name__: kind for kind in get_args(StageOp)}
_MOST_US = 4e15


def is_own_trace(path: Path) -> bool:
    """Return whether a file is a trace of ours: it contains the schedule before its first event.

    Raises:
        ProfileError: The file cannot be read, or is no trace.
    """
    fields: TraceFields = {}
    next(read_events(path, fields), None)
    return _schedule_name(fields) is not None


def read_own_trace(
    path: Path,
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
) -> ImportedTimeline:
    """Return the Timeline of a trace of ours.

    Raises:
        ProfileError: It is cut off, changed, or of several Timelines.
    """
    fields: TraceFields = {}
    works: defaultdict[int, list[TimedPass]] = defaultdict(list)
    posts: defaultdict[int, tuple[dict[Message, PostTimes], dict[Message, PostTimes]]] = defaultdict(lambda: ({}, {}))
    devices: dict[int, int] = {}
    for event in read_events(path, fields, progress):
        if event.get("ph") == "M" and (match := _DEVICE.match(str(event_arguments(event).get("name")))) is not None:
            devices[int(match[1])] = int(match[2])
        if event.get("ph") != "X":
            continue
        rank, op, posted_ns, time = _read(event, path)
        if isinstance(op, Send | Recv):
            posts[rank][isinstance(op, Recv)][op.message] = PostTimes(posted_ns, posted_ns, time.end_ns)
        else:
            works[rank].append(TimedPass(op, str(event.get("name")), posted_ns, time))
    if sorted(works) != list(range(len(works))) or sorted(devices) != sorted(works):
        raise ProfileError(
            f"{path}: got work of the ranks {shown(sorted(works))}, expected all from 0; try writing it again"
        )
    ranks = [
        RankPasses(str(path), tuple(sorted(works[rank], key=lambda work: (work.posted_ns, work.time))), *posts[rank])
        for rank in range(len(works))
    ]
    name = _schedule_name(fields) or "imported"
    placed = tuple(devices[rank] for rank in range(len(works)))
    return imported_timeline(ranks, has_one_clock=True, name=name, rank_to_device=placed)


def _schedule_name(fields: TraceFields) -> str | None:
    about = fields.get("otherData")
    name = about.get("schedule") if isinstance(about, dict) else None
    return name if isinstance(name, str) and name.isprintable() else None


def _read(event: TraceEvent, path: Path) -> tuple[int, Op, int, Interval]:
    """Return the rank, the op, when it was posted, and when it ran."""
    arguments, name, pid = event_arguments(event), str(event.get("name")), event.get("pid")
    start_us, duration_us = _number(event.get("ts")), _number(event.get("dur"))
    waited_s = _number(arguments.get("waited_s"))
    try:
        op = parse_op(_text(name, arguments))
    except ScheduleError:
        op = None
    if duration_us is not None and duration_us < 0:
        duration_us = None
    if op is None or not isinstance(pid, int) or start_us is None or duration_us is None or waited_s is None:
        raise ProfileError(
            f"{path}: event {shown(name)}: got no op with its times, expected them, as a trace of one Timeline "
            "has them; try writing it again"
        )
    start_ns = round(start_us * 1000)
    return pid - 1, op, start_ns - round(waited_s * 1e9), Interval(start_ns, start_ns + round(duration_us * 1000))


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and -_MOST_US < value < _MOST_US else None


def _text(name: str, arguments: TraceEvent) -> str:
    """Return the text of the op of a slice: its name has its kind and number, its arguments the rest."""
    kind, stage, microbatch = name.partition(" ")[0], arguments.get("stage"), arguments.get("microbatch")
    if kind in _STAGE_OPS:
        return str(_STAGE_OPS[kind](stage))
    text = f"{stage}{kind}{microbatch}"
    if arguments.get("version") or arguments.get("lookahead"):
        text += f"@{arguments['version']}"
    if arguments.get("lookahead"):
        text += f"+{arguments['lookahead']}"
    return f"({text};{arguments['second']})OVERLAP_F_B" if "second" in arguments else text
