"""Read one rank's trace as torch.profiler (Kineto) writes it: an event at a time, of which little is kept."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from pipesched.profiles import ProfileError
from pipesched.profiles.traces.event_stream import TraceEvent, TraceFields, event_arguments, read_events
from pipesched.profiles.traces.range_patterns import RangePatterns
from pipesched.profiles.traces.rank_trace import Interval, NamedRange, RankTrace
from pipesched.schedules import shown

_STEP = re.compile(r"ProfilerStep#(\d{1,18})$")
_OPTIMIZER = "Optimizer.step#"
_BACKWARD = "autograd::engine::evaluate_function: "
_GPU_WORK = {"kernel", "gpu_memcpy", "gpu_memset"}
_LAUNCHES = {"cuda_runtime", "cuda_driver"}
_MESSAGE_KERNEL = "SendRecv"  # NCCL's kernels for sends and receives have it in their names
_LONGEST_US = 4e15  # since 1970 it is 1.8e15; two of them are still 64 bits of nanoseconds
_MOST_NAMES = 1000


def read_kineto(
    path: Path,
    patterns: RangePatterns,
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
) -> RankTrace:
    """Return what matters of a trace.

    Args:
        path: Path of the file, plain or gzip.
        patterns: Say which ranges are passes.
        progress: Told the fraction of the file that has been read.

    Raises:
        ProfileError: It cannot be read, is cut off, or is no trace.
    """
    trace, fields, is_empty = RankTrace(str(path)), TraceFields(), True
    for event in read_events(path, fields, progress):
        match event.get("ph"):
            case "X":
                is_empty = False
                _add_slice(trace, event, patterns)
            case "s" | "f" if event.get("cat") == "fwdbwd":
                flows = trace.flow_starts_ns if event["ph"] == "s" else trace.flow_ends_ns
                flows[_integer(trace, event, "id")] = _ns(trace, event, "ts")
    if is_empty:
        raise ProfileError(f"{path}: got a trace without slices, expected what a rank did in a step; try another file")
    base_ns, info = fields.get("baseTimeNanoseconds", 0), fields.get("distributedInfo")
    trace.base_ns = base_ns if isinstance(base_ns, int) and -(2**63) <= base_ns < 2**63 else 0
    rank = info.get("rank") if isinstance(info, dict) else None
    trace.rank = rank if isinstance(rank, int) else None
    host = fields.get("host_name")
    trace.host = host if isinstance(host, str) else None
    return trace


def _add_slice(trace: RankTrace, event: TraceEvent, patterns: RangePatterns) -> None:
    category, name = event.get("cat"), event.get("name")
    if not isinstance(name, str) or not isinstance(category, str):
        return
    if category in ("user_annotation", "python_function"):
        _add_range(trace, event, name, patterns, is_annotation=category == "user_annotation")
    elif category in _GPU_WORK:
        trace.kernels.ids.append(_integer(trace, event_arguments(event), "correlation"))
        trace.kernels.times.add(_interval(trace, event))
        trace.kernels.are_messages.append(_MESSAGE_KERNEL in name)
    elif category in _LAUNCHES:
        if "correlation" in event_arguments(event):
            trace.kernels.launch_ids.append(_integer(trace, event_arguments(event), "correlation"))
            trace.kernels.launches_ns.append(_ns(trace, event, "ts"))
    elif category == "cpu_op":
        _add_cpu_op(trace, event, name)


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
    elif name.startswith(_OPTIMIZER):
        trace.optimizer_steps.add(_interval(trace, event))
    elif (step := _STEP.match(name)) is not None:
        trace.steps[int(step[1])] = _interval(trace, event)
    elif name in trace.other_names or len(trace.other_names) < _MOST_NAMES:
        trace.other_names[name] += 1


def _interval(trace: RankTrace, event: TraceEvent) -> Interval:
    start_ns, duration_ns = _ns(trace, event, "ts"), _ns(trace, event, "dur")
    if duration_ns < 0:
        raise _fault(trace, event, "dur", event["dur"], "microseconds, at least 0")
    return Interval(start_ns, start_ns + duration_ns)


def _ns(trace: RankTrace, event: TraceEvent, key: str) -> int:
    value = event.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_LONGEST_US < value < _LONGEST_US:
        raise _fault(trace, event, key, value, "microseconds")
    return round(value * 1000)


def _integer(trace: RankTrace, event: TraceEvent, key: str) -> int:
    value = event.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise _fault(trace, event, key, value, "an integer")
    return value


def _fault(trace: RankTrace, event: TraceEvent, key: str, got: object, expected: str) -> ProfileError:
    place = "" if key == "ts" else f" at {shown(event.get('ts'))}"
    return ProfileError(
        f"{trace.file}: event {shown(event.get('name'))}{place}: {key}: got {shown(got)}, expected {expected}; try "
        "writing the trace again"
    )
