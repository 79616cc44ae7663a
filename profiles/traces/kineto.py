"""Read the ranks of a Chrome trace of torch.profiler (Kineto) or another writer; little of each event is kept.

A merged trace has a pid or a tid for each rank. Ranks are distinguished by the rank in an event's arguments, else by
the names of processes and threads ("rank 3", or PiPPy's pid "3(host/4711)"), else by pids, else by tids:

    pid 0, tid 0   F B           pid 0, tid 0   F F F         one rank: the forwards of stage 0 and their backwards
    pid 0, tid 1   F B           pid 0, tid 1   B B B
    two ranks
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, final

from pipesched.profiles import ProfileError
from pipesched.profiles.traces.copies import process_groups
from pipesched.profiles.traces.event_stream import (
    TraceEvent,
    TraceFields,
    event_arguments,
    event_fault,
    event_ns,
    lane_id,
    read_events,
    whole_slices,
)
from pipesched.profiles.traces.range_patterns import RangePatterns, family_of
from pipesched.profiles.traces.rank_trace import Interval, NamedRange, RankTrace

_RANK = re.compile(r"(?:\brank[ _:=#-]*|^(?=\d+\())(\d{1,9})", re.IGNORECASE)


class TraceLane(NamedTuple):
    """A lane of a trace.

    Attributes:
        rank: Rank in the arguments of its events, or None.
        pid: Process id.
        tid: Thread id.
    """

    rank: int | None
    pid: str | int | None
    tid: str | int | None


@final
class TraceLanes:
    """The traces of all lanes of a file, and the names of its processes and threads."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.traces: dict[TraceLane, RankTrace] = {}
        self._labels: dict[tuple[str | int | None, str | int | None], str] = {}

    def of(self, lane: TraceLane) -> RankTrace:
        """Return the trace of a lane, empty at first."""
        trace = self.traces.get(lane)
        if trace is None:
            trace = self.traces[lane] = RankTrace(self.file)
        return trace

    def label(self, pid: str | int | None, tid: str | int | None, name: str) -> None:
        """Note the name of a process, or of one of its threads."""
        self._labels[pid, tid] = name

    def rank(self, lane: TraceLane) -> int | None:
        """Return the rank of a lane, or None if the trace does not contain it."""
        if lane.rank is not None:
            return lane.rank
        texts = (self._labels.get((lane.pid, lane.tid)), self._labels.get((lane.pid, None)), lane.pid)
        matches = (_RANK.search(text) for text in texts if isinstance(text, str))
        return next((int(match[1]) for match in matches if match is not None), None)


def ranks_of(lanes: TraceLanes, family: Callable[[str], str | None], own_rank: int | None) -> list[RankTrace]:
    """Return the traces of the ranks of a file; numbered ranks are in order.

    Args:
        lanes: Lanes of the file.
        family: Function from the name of a range to its runtime, or None.
        own_rank: Rank of the whole file, as torch.profiler writes it, or None.

    Raises:
        ProfileError: Kernels of several ranks cannot be distinguished.
    """
    names = family_of((named.name for trace in lanes.traces.values() for named in trace.ranges), family)
    for trace in lanes.traces.values():
        trace.family = names
        trace.ranges = [named for named in trace.ranges if family(named.name) == names]
    members = _members(lanes, own_rank)
    if len(members) < 2:
        whole = RankTrace(lanes.file, own_rank, family=names)
        if own_rank is None:
            whole.rank = next((lanes.rank(lane) for own in members.values() for lane in own), None)
        for trace in lanes.traces.values():
            whole.absorb(trace)
        return [whole]
    ranks = []
    for own in members.values():
        label = _label(lanes, own, members.values())
        trace = RankTrace(f"{lanes.file}, {label}", lanes.rank(own[0]), family=names)
        for lane in own:
            trace.absorb(lanes.traces[lane])
        ranks.append(trace)
    _share(lanes, list(members.values()), ranks)
    return ranks


def _members(lanes: TraceLanes, own_rank: int | None) -> dict[Hashable, list[TraceLane]]:
    """Return the lanes with passes, by rank and in order; if no lane has passes, the lanes with forward ops."""
    traces = lanes.traces
    with_passes = [lane for lane, trace in traces.items() if any(named.passes for named in trace.ranges)]
    with_passes = with_passes or [lane for lane, trace in traces.items() if trace.flow_starts_ns]
    members: defaultdict[Hashable, list[TraceLane]] = defaultdict(list)
    for lane in sorted(with_passes, key=_order):
        rank = lanes.rank(lane)
        members[("pid", lane.pid) if rank is None else ("rank", rank)].append(lane)
    if own_rank is not None:
        return dict(members)
    split: dict[Hashable, list[TraceLane]] = {}
    for key, own in members.items():
        threads = _threads(own, lanes.traces)
        is_rank = key[0] == "rank" if isinstance(key, tuple) else False
        if is_rank or (len(members) > 1 and not _overlap([lanes.traces[lane].ranges for lane in own])):
            threads = [own]
        split |= {(key, number): thread for number, thread in enumerate(threads)}
    return split


def _threads(own: Sequence[TraceLane], traces: Mapping[TraceLane, RankTrace]) -> list[list[TraceLane]]:
    """Return the lanes of each rank of a process: one thread, or a forward and a backward thread of the same stages."""
    groups: list[list[TraceLane]] = []
    for lane in own:
        group = next((group for group in groups if _belong_together(traces[group[0]], traces[lane])), None)
        if group is None:
            groups.append([lane])
        else:
            group.append(lane)
    return groups


def _belong_together(first: RankTrace, second: RankTrace) -> bool:
    """Return whether one thread has the forwards, and the other the backwards, of the same stages."""
    kinds = [{(part.phase, part.stage) for named in trace.ranges for part in named.passes} for trace in (first, second)]
    phases, stages = ([{kind[place] for kind in own} for own in kinds] for place in (0, 1))
    return stages[0] == stages[1] and not phases[0] & phases[1]


def _overlap(ranges: Sequence[Sequence[NamedRange]]) -> bool:
    """Return whether passes of two threads ran at once, so that the threads belong to different ranks."""
    times = sorted((named.time, thread) for thread, own in enumerate(ranges) for named in own)
    ends_ns: dict[int, int] = {}
    for time, thread in times:
        if any(end_ns > time.start_ns for other, end_ns in ends_ns.items() if other != thread):
            return True
        ends_ns[thread] = max(time.end_ns, ends_ns.get(thread, time.end_ns))
    return False


def _share(lanes: TraceLanes, members: Sequence[Sequence[TraceLane]], ranks: Sequence[RankTrace]) -> None:
    """Add each lane without passes to the ranks with the same rank number, thread or process.

    A lane of kernels without such a rank goes to all ranks, which find their kernels by id.

    Raises:
        ProfileError: Several ranks launched kernels with the same ids, and their lanes have no rank or process.
    """
    taken = {lane for own in members for lane in own}
    asked: tuple[Callable[[TraceLane], object], ...] = (lanes.rank, lambda lane: lane[1:], lambda lane: lane.pid)
    for lane, trace in lanes.traces.items():
        if lane in taken:
            continue
        owners = list(ranks) if len(trace.kernels.ids) else []
        for about in asked:
            same = [
                rank
                for rank, own in zip(ranks, members, strict=True)
                if about(lane) is not None and about(lane) in map(about, own)
            ]
            if same:
                owners = same
                break
        for rank in owners:
            rank.absorb(trace)
        if len(owners) > 1 and len(trace.kernels.ids):
            _require_own_ids(lanes.file, owners)


def _require_own_ids(file: str, ranks: Iterable[RankTrace]) -> None:
    seen: set[int] = set()
    for rank in ranks:
        ids = set(rank.kernels.launch_ids)
        if ids & seen:
            raise ProfileError(
                f"{file}: got kernels of several ranks with the same correlation ids, expected a rank in the arguments "
                "or process names of each; try one file per rank"
            )
        seen |= ids


def _label(lanes: TraceLanes, own: Sequence[TraceLane], members: Iterable[Sequence[TraceLane]]) -> str:
    """Return a name for a rank of a file: its number, or the parts of its lane that differ from other ranks."""
    rank, lane = lanes.rank(own[0]), own[0]
    if rank is not None:
        return f"rank {rank}"
    pids = [other[0].pid for other in members]
    pid = [f"pid {lane.pid}"] if len(set(pids)) > 1 else []
    tid = [f"tid {lane.tid}"] if pids.count(lane.pid) > 1 else []
    return " ".join(pid + tid).replace("/", "|")


def _order(lane: TraceLane) -> tuple[tuple[bool, int, str], ...]:
    """Return a sort key of a lane: numbers in their order, then texts."""
    return tuple(
        (isinstance(part, str), part if isinstance(part, int) else -1, part if isinstance(part, str) else "")
        for part in lane
    )


_STEP = re.compile(r"ProfilerStep#(\d{1,18})$")
_OPTIMIZER = re.compile(r"optimi[sz]er([ ._:-]?step\b|$)", re.IGNORECASE)
_BACKWARD = "autograd::engine::evaluate_function: "
_GPU_WORK = {"kernel", "gpu_memcpy", "gpu_memset"}
_LAUNCHES = {"cuda_runtime", "cuda_driver"}
_NO_RANGES = {"gpu_user_annotation", "cuda_sync", "overhead", "Trace", "fwdbwd", "ac2g"}
"""Categories of Kineto whose slices repeat other slices, or do not belong to the program."""

_LABELS = {"process_name", "process_labels", "thread_name"}
_MESSAGE_KERNEL = "SendRecv"  # NCCL's kernels for sends and receives have it in their names
_MOST_NAMES = 1000


def read_kineto(
    path: Path,
    patterns: RangePatterns,
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
) -> list[RankTrace]:
    """Return the trace of each rank in a file: one rank in a file of torch.profiler, all ranks in a merged file.

    Args:
        path: Path of the file, plain or gzip.
        patterns: Patterns of the names of passes.
        progress: Called with the fraction of the file that has been read.

    Raises:
        ProfileError: The file cannot be read, is cut off, or is no trace.
    """
    fields, lanes = TraceFields(), TraceLanes(str(path))
    for event in whole_slices(read_events(path, fields, progress), str(path)):
        match event.get("ph"):
            case "X":
                _add_slice(lanes.of(_lane(event)), event, patterns)
            case "s" | "f" if event.get("cat") == "fwdbwd":
                trace = lanes.of(_lane(event))
                flows = trace.flow_starts_ns if event["ph"] == "s" else trace.flow_ends_ns
                flows[_integer(trace, event, "id")] = event_ns(trace.file, event, "ts")
            case "M" if event.get("name") in _LABELS:
                tid = lane_id(event.get("tid")) if event["name"] == "thread_name" else None
                texts = (event_arguments(event).get(key) for key in ("name", "labels"))
                lanes.label(lane_id(event.get("pid")), tid, " ".join(text for text in texts if isinstance(text, str)))
    if not any(trace.num_slices for trace in lanes.traces.values()):
        raise ProfileError(f"{path}: got a trace without slices, expected the passes of a step; try another file")
    base_ns, info, host = (fields.get(key) for key in ("baseTimeNanoseconds", "distributedInfo", "host_name"))
    own_rank = info.get("rank") if isinstance(info, dict) else None
    ranks = ranks_of(lanes, patterns.family, own_rank if isinstance(own_rank, int) else None)
    for trace in ranks:
        trace.base_ns = base_ns if isinstance(base_ns, int) and -(2**63) <= base_ns < 2**63 else 0
        trace.host = host if isinstance(host, str) else None
        trace.groups = process_groups(info) if len(ranks) == 1 else {}
    return ranks


def _lane(event: TraceEvent) -> TraceLane:
    rank = lane_id(event_arguments(event).get("rank"))
    number = rank if isinstance(rank, int) and not isinstance(rank, bool) else None
    return TraceLane(number, lane_id(event.get("pid")), lane_id(event.get("tid")))


def _add_slice(trace: RankTrace, event: TraceEvent, patterns: RangePatterns) -> None:
    category, name = event.get("cat"), event.get("name")
    trace.num_slices += 1
    if not isinstance(category, str):
        category = ""
    if not isinstance(name, str) or category in _NO_RANGES:
        return
    if category in _GPU_WORK:
        trace.kernels.ids.append(_integer(trace, event_arguments(event), "correlation"))
        trace.kernels.times.add(_interval(trace, event))
        trace.kernels.are_messages.append(_MESSAGE_KERNEL in name)
    elif category in _LAUNCHES:
        if "correlation" in event_arguments(event):
            trace.kernels.launch_ids.append(_integer(trace, event_arguments(event), "correlation"))
            trace.kernels.launches_ns.append(event_ns(trace.file, event, "ts"))
    elif category == "cpu_op":
        _add_cpu_op(trace, event, name)
    else:
        _add_range(trace, event, name, patterns, is_annotation=category != "python_function")


def _add_cpu_op(trace: RankTrace, event: TraceEvent, name: str) -> None:
    if name.startswith(_BACKWARD):
        trace.backward_ops.add(_interval(trace, event))
    elif name == "c10d::send":
        trace.send_posts.add(_interval(trace, event))
    elif name == "c10d::recv_":
        trace.recv_posts.add(_interval(trace, event))
    elif "Sequence number" in event_arguments(event):
        trace.forward_ops.add(_interval(trace, event))


def _add_range(trace: RankTrace, event: TraceEvent, name: str, patterns: RangePatterns, *, is_annotation: bool) -> None:
    meaning = patterns.meaning(name)
    if meaning is not None:
        trace.ranges.append(NamedRange(name, meaning, _interval(trace, event)))
    elif not is_annotation:
        return
    elif name == "gloo:send":
        trace.send_waits.add(_interval(trace, event))
    elif name == "gloo:recv":
        trace.recv_waits.add(_interval(trace, event))
    elif _OPTIMIZER.match(name) is not None:
        trace.optimizer_steps.add(_interval(trace, event))
    elif (step := _STEP.match(name)) is not None:
        trace.steps[int(step[1])] = _interval(trace, event)
    elif name in trace.other_names or len(trace.other_names) < _MOST_NAMES:
        trace.other_names[name] += 1


def _interval(trace: RankTrace, event: TraceEvent) -> Interval:
    start_ns, duration_ns = (event_ns(trace.file, event, key) for key in ("ts", "dur"))
    if duration_ns < 0:
        raise event_fault(trace.file, event, "dur", "microseconds, at least 0")
    return Interval(start_ns, start_ns + duration_ns)


def _integer(trace: RankTrace, event: TraceEvent, key: str) -> int:
    value = event.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise event_fault(trace.file, event, key, "an integer")
    return value
