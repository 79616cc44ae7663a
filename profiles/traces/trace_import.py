"""Read the traces of all ranks, from a profiler or from ``pipesched trace``, as one Timeline."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipesched.profiles import ProfileError
from pipesched.profiles.traces.autograd_passes import named_ranges, unnamed_passes
from pipesched.profiles.traces.copies import pipeline_ranks
from pipesched.profiles.traces.event_stream import LONGEST_US, TraceEvent, TraceFields, event_arguments, read_events
from pipesched.profiles.traces.imported_timeline import ImportedTimeline, imported_timeline
from pipesched.profiles.traces.kineto import read_kineto
from pipesched.profiles.traces.passes import PostTimes, RankPasses, TimedPass, rank_passes
from pipesched.profiles.traces.range_patterns import RangePatterns
from pipesched.profiles.traces.rank_trace import Interval, NamedRange, RankTrace
from pipesched.profiles.traces.steps import EVER, RankWindows, from_zero, passes_of, step_windows
from pipesched.schedules import Schedule, ScheduleError
from pipesched.schedules.common import shown
from pipesched.schedules.formats import parse_op
from pipesched.schedules.ops import STAGE_WORDS, Message, Op, Recv, Send, Step

_DEVICE = re.compile(r"rank (\d{1,6}) / device (\d{1,6})(?: |$)")
_STAGE_OPS: Mapping[str, Callable[[Any], Op]] = {kind.__name__: kind for kind in STAGE_WORDS}


def is_own_trace(path: Path) -> bool:
    """Return whether pipesched has written a trace: it contains the schedule before its first event.

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
    """Return the Timeline of a trace that pipesched has written.

    Raises:
        ProfileError: The trace is cut off or changed, or has several Timelines.
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
        rank, op, posted_ns, time = _own_op(event, path)
        if isinstance(op, Send | Recv):
            posts[rank][isinstance(op, Recv)][op.message] = PostTimes(posted_ns, posted_ns, time.end_ns)
        else:
            works[rank].append(TimedPass(op, str(event.get("name")), posted_ns, time))
    if sorted(works) != list(range(len(works))) or sorted(devices) != sorted(works):
        raise ProfileError(
            f"{path}: got work of the ranks {shown(sorted(works))}, expected all ranks from 0; try writing it again"
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


def _own_op(event: TraceEvent, path: Path) -> tuple[int, Op, int, Interval]:
    """Return the rank, the op, the time of its post [ns], and its start and end [ns]."""
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
            f"{path}: event {shown(name)}: got an event without an op and its times, expected both, as in the trace of "
            "one Timeline; try writing it again"
        )
    start_ns = round(start_us * 1000)
    return pid - 1, op, start_ns - round(waited_s * 1e9), Interval(start_ns, start_ns + round(duration_us * 1000))


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and -LONGEST_US < value < LONGEST_US else None


def _text(name: str, arguments: TraceEvent) -> str:
    """Return the text of the op of a slice: the name of the slice has the kind, and its arguments have the rest."""
    kind, stage, microbatch = name.partition(" ")[0], arguments.get("stage"), arguments.get("microbatch")
    if kind in _STAGE_OPS:
        return str(_STAGE_OPS[kind](stage))
    text = f"{stage}{kind}{microbatch}"
    if arguments.get("version") or arguments.get("lookahead"):
        text += f"@{arguments['version']}"
    if arguments.get("lookahead"):
        text += f"+{arguments['lookahead']}"
    return f"({text};{arguments['second']})OVERLAP_F_B" if "second" in arguments else text


_OpLists = Sequence[Sequence[Op] | None]


def read_traces(
    paths: Sequence[Path],
    *,
    patterns: Sequence[str] = (),
    schedule: Schedule | None = None,
    step: int | None = None,
    has_one_clock: bool = False,
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
) -> ImportedTimeline:
    """Return the Timeline of one step.

    Args:
        paths: A trace of each rank, or one trace of all ranks.
        patterns: Patterns of the names of passes, as in `RangePatterns` (default: the names of known runtimes).
        schedule: The schedule of the ranks, for ranges without numbers: the k-th forward of a rank is the k-th forward
            of its list.
        step: Number of the step (default: the last complete step of all ranks).
        has_one_clock: Whether all ranks have one clock; else clocks are aligned by messages.
        progress: Called with the fraction of all files that has been read.

    Raises:
        ProfileError: A file is no trace, the files are not of all ranks of one pipeline, passes are missing, steps
            cannot be distinguished, or the clocks cannot be aligned.
    """
    is_one_file = len(paths) == 1
    if is_one_file and is_own_trace(paths[0]):
        return read_own_trace(paths[0], progress)
    traces, copies = pipeline_ranks(
        _read(paths, RangePatterns(patterns), progress), "ranks" if is_one_file else "files"
    )
    if len(traces) == 1 and not traces[0].ranges and not traces[0].flow_starts_ns:
        raise ProfileError(
            f"{paths[0]}: got a trace with {named_ranges(traces[0])}, expected ranges with names of passes; try "
            "`patterns` for the names of your passes"
        )
    if len(traces) == 1:
        raise ProfileError(
            f"{paths[0]}: got the trace of one rank, with {named_ranges(traces[0])}, expected a trace of every rank; "
            "try all of them, or `patterns` if its passes have other names"
        )
    if schedule is not None and schedule.num_ranks != len(traces):
        raise ProfileError(
            f"schedule {schedule.name}: got {schedule.num_ranks} ranks, expected {len(traces)}, one for each trace; "
            "try another schedule or other traces"
        )
    lists: _OpLists = [None] * len(traces) if schedule is None else schedule.ops
    is_marked = any(trace.steps for trace in traces)
    if not is_marked:
        for trace in traces:
            trace.ranges = _ranges(trace, EVER, are_named=bool(patterns))
    steps = step_windows(traces, step, lists, has_one_clock=has_one_clock or is_one_file)
    clocks = [True] if has_one_clock else [True, False] if is_one_file else [False]
    read = _first_whole(traces, steps, lists, are_named=bool(patterns), clocks=clocks)
    notes = [copies, _names(traces)]
    if not is_marked and len(steps) > 1 and step is None:
        notes.append(
            f"{len(steps)} steps, found by optimizers, names or flushes; read step {read.step}, the last whole one"
        )
    return replace(read, notes=tuple(note for note in notes if note is not None))


def _read(paths: Sequence[Path], patterns: RangePatterns, progress: Callable[[float], None]) -> list[RankTrace]:
    """Return the ranks of all files, in order."""
    traces = []
    for number, path in enumerate(paths):

        def tick(fraction: float, number: int = number) -> None:
            progress((number + fraction) / len(paths))

        traces += read_kineto(path, patterns, tick)
    return _in_order(traces)


def _in_order(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """Return the traces in order of their ranks, else of the stages in their names, else in the given order.

    Raises:
        ProfileError: Two traces have the same rank.
    """
    ranks = [trace.rank for trace in traces]
    if None not in ranks:
        rank, count = Counter(ranks).most_common(1)[0]
        if count > 1:
            files = " and ".join(trace.file for trace in traces if trace.rank == rank)
            raise ProfileError(
                f"{files}: got {count} traces of rank {rank}, expected one of each rank; try other files"
            )
        return sorted(traces, key=lambda trace: -1 if trace.rank is None else trace.rank)
    stages = [{work.stage for work in passes_of(trace)} for trace in traces]
    firsts = [min((stage for stage in own if stage is not None), default=None) for own in stages]
    if None in firsts:
        return list(traces)
    return [trace for _, trace in sorted(zip(firsts, traces, strict=True), key=lambda pair: pair[0] or 0)]


def _first_whole(
    traces: Sequence[RankTrace],
    steps: Mapping[int, RankWindows],
    lists: _OpLists,
    *,
    are_named: bool,
    clocks: Sequence[bool],
) -> ImportedTimeline:
    """Return the Timeline of the first step that is complete on all ranks.

    Args:
        traces: The ranks.
        steps: The steps, in the order in which they are tried.
        lists: Op list of each rank, if the schedule is known.
        are_named: Whether a user's patterns define the passes.
        clocks: Values of `has_one_clock` of `imported_timeline`; the first that fits the messages counts.

    Raises:
        ProfileError: No step is complete.
    """
    fault = None
    for number, windows in steps.items():
        try:
            named = [_ranges(trace, window, are_named=are_named) for trace, window in zip(traces, windows, strict=True)]
            parts = zip(traces, from_zero(traces, windows, named), windows, lists, strict=True)
            ranks = [
                rank_passes(trace, ranges, window, rank, listed)
                for rank, (trace, ranges, window, listed) in enumerate(parts)
            ]
            for is_one in clocks:
                try:
                    return imported_timeline(_alike(ranks), step=number, has_one_clock=is_one)
                except ProfileError as error:
                    fault = fault or error
        except ProfileError as error:
            fault = fault or error
    assert fault is not None, "`steps` is not empty"
    raise fault


def _alike(ranks: Sequence[RankPasses]) -> list[RankPasses]:
    """Return the passes of the ranks, without optimizer steps unless all ranks have them."""
    if all(any(isinstance(timed.op, Step) for timed in trace.passes) for trace in ranks):
        return list(ranks)
    return [
        replace(trace, passes=tuple(timed for timed in trace.passes if not isinstance(timed.op, Step)))
        for trace in ranks
    ]


def _ranges(trace: RankTrace, window: Interval, *, are_named: bool) -> list[NamedRange]:
    """Return the ranges of a step with a known meaning, or else the passes found by autograd's arrows."""
    ranges = [named for named in trace.ranges if window.start_ns <= named.time.start_ns < window.end_ns]
    if not ranges and (trace.ranges or are_named):
        raise ProfileError(
            f"{trace.file}: got no range of a pass in this step, expected at least one; the trace has "
            f"{named_ranges(trace)}; try another `step`, or `patterns`"
        )
    return ranges or unnamed_passes(trace, window)


def _names(traces: Sequence[RankTrace]) -> str | None:
    """Return a note on the runtimes that named the passes, or None if names are unknown."""
    families = sorted({trace.family for trace in traces if trace.family is not None})
    return f"passes have the names of {' and '.join(families)}" if families else None
