"""Metrics of a Timeline: makespan, bubbles, throughput, and each device's time and memory.

The papers use three measures of a bubble, and each has its own name here:

    bubble_fraction         idle / (devices * makespan)
    bubble_overhead         (makespan - ideal) / ideal, where ideal is the busy time of the busiest device
    bubble_of_longest_span  (span - work) / span of the rank with the longest span, from its first start to its last end
                            (the rate of Zero Bubble Pipeline Parallelism, arXiv:2401.10241, Table 6)
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pipesched.schedules import Timeline
from pipesched.simulator import SimulationError
from pipesched.simulator.analysis.idle_time import usage
from pipesched.simulator.memory import peak_memory

if TYPE_CHECKING:
    import pandas as pd

_NOTHING_S = 1e-100
"""Less than this is no time [s]: a rate over it would not be finite."""


@dataclass(frozen=True, slots=True)
class DeviceMetrics:
    """The metrics of one device: busy and idle time, and peak memory.

    Attributes:
        busy_s: Length of the union of its works [s].
        idle_s: The rest of the makespan: the sum of `idle_by_cause_s` [s].
        span_s: Time from the first start of the device's works to their last end [s].
        idle_by_cause_s: (cause, seconds), the causes as in `simulator.analysis.idle_time`.
        peak_memory_bytes: None when the timeline has no memory samples.
        peak_memory_by_kind: (kind, bytes) at the moment of the peak; empty without samples.
    """

    device: int
    busy_s: float
    idle_s: float
    span_s: float
    idle_by_cause_s: tuple[tuple[str, float], ...]
    peak_memory_bytes: int | None
    peak_memory_by_kind: tuple[tuple[str, int], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        by_name = {name: dict(getattr(self, name)) for name in ("idle_by_cause_s", "peak_memory_by_kind")}
        return asdict(self) | by_name

    def to_row(self) -> dict[str, int | float | None]:
        """Return a row of a table: the device's times [s], peak memory [bytes], and idle time by cause [s]."""
        names = ("device", "busy_s", "idle_s", "span_s", "peak_memory_bytes")
        causes = {f"idle_{cause}_s": idle_s for cause, idle_s in self.idle_by_cause_s}
        return {name: getattr(self, name) for name in names} | causes


@dataclass(frozen=True, slots=True)
class Metrics:
    """One run; the bubbles are defined at the top of this file.

    Attributes:
        makespan_s: Time from the first start of work to its last end [s].
        throughput: Micro-batches per second.
        devices: The devices, in ascending order.
    """

    makespan_s: float
    bubble_fraction: float
    bubble_overhead: float
    bubble_of_longest_span: float
    throughput: float
    devices: tuple[DeviceMetrics, ...]

    @property
    def busy_s(self) -> float:
        """Seconds in which the devices compute, all of them together."""
        return math.fsum(device.busy_s for device in self.devices)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as ``pipesched simulate --json`` prints it."""
        return {
            "makespan_s": self.makespan_s,
            "bubble_fraction": self.bubble_fraction,
            "bubble_overhead": self.bubble_overhead,
            "throughput": self.throughput,
            "devices": [device.to_dict() for device in self.devices],
        }

    def to_frame(self) -> pd.DataFrame:
        """Return a row per device: its time [s], idle time by cause, and peak memory."""
        import pandas as pd

        return pd.DataFrame([device.to_row() for device in self.devices]).astype({"peak_memory_bytes": "Int64"})


def require_work(timeline: Timeline, busy_s: float) -> None:
    """Refuse a Timeline whose devices work for no time.

    Raises:
        SimulationError: `busy_s` is 0, but for roundings.
    """
    if busy_s <= _NOTHING_S:
        raise SimulationError(
            f"{timeline.name}: got a timeline in which no op takes time, expected an op that takes time; try costs "
            "above 0 s"
        )


def metrics(timeline: Timeline) -> Metrics:
    """Return the metrics of `timeline`; memory comes from its samples, if it has any.

    Raises:
        SimulationError: Nothing in the timeline takes any time.
    """
    devices = _devices(timeline)
    makespan_s, ideal_s = timeline.makespan_s, max((device.busy_s for device in devices), default=0.0)
    require_work(timeline, ideal_s)
    return Metrics(
        makespan_s=makespan_s,
        bubble_fraction=math.fsum(device.idle_s for device in devices) / (len(devices) * makespan_s),
        bubble_overhead=(makespan_s - ideal_s) / ideal_s,
        bubble_of_longest_span=_bubble_of_longest_span(timeline),
        throughput=timeline.columns.ops.num_computed_microbatches / makespan_s,
        devices=devices,
    )


def _devices(timeline: Timeline) -> tuple[DeviceMetrics, ...]:
    peaks = peak_memory(timeline.memory)
    ranks: defaultdict[int, list[int]] = defaultdict(list)
    for rank, device in enumerate(timeline.rank_to_device):
        ranks[device].append(rank)
    devices = []
    for use in usage(timeline):
        peak = peaks.get(use.device)
        extents_s = [extent_s for rank in ranks[use.device] if (extent_s := timeline.columns.work_extent_s(rank))]
        devices.append(
            DeviceMetrics(
                device=use.device,
                busy_s=use.busy_s,
                idle_s=use.idle_s,
                span_s=max((end_s for _, end_s in extents_s), default=0.0)
                - min((start_s for start_s, _ in extents_s), default=0.0),
                idle_by_cause_s=use.idle_by_cause_s,
                peak_memory_bytes=None if peak is None else peak.total_bytes,
                peak_memory_by_kind=() if peak is None else peak.bytes_by_kind,
            )
        )
    return tuple(devices)


def _bubble_of_longest_span(timeline: Timeline) -> float:
    extents_s = ((rank, timeline.columns.work_extent_s(rank)) for rank in range(len(timeline.rank_to_device)))
    spans_s = {rank: extent_s[1] - extent_s[0] for rank, extent_s in extents_s if extent_s}
    longest = max(spans_s, key=spans_s.__getitem__)
    return (spans_s[longest] - timeline.columns.worked_s(longest)) / spans_s[longest]
