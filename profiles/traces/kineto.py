"""Read the ranks of a Chrome trace, of torch.profiler (Kineto) or another writer, keeping little of each event."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from pipesched.profiles import ProfileError
from pipesched.profiles.traces.event_stream import (
    TraceEvent,
    TraceFields,
    event_arguments,
    event_fault,
    event_ns,
    read_events,
)
from pipesched.profiles.traces.lanes import TraceLane, TraceLanes, ranks_of
from pipesched.profiles.traces.process_groups import process_groups
from pipesched.profiles.traces.range_patterns import RangePatterns
from pipesched.profiles.traces.rank_trace import Interval, NamedRange, RankTrace
from pipesched.profiles.traces.slices import lane_id, whole_slices

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
        raise ProfileError(f"{path}: got a trace without slices, expected what a rank did in a step; try another file")
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
