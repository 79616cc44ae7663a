"""One schedule in one row: the numbers that people compare before they choose."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass

import numpy as np

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts, tied_rings
from pipesched.schedules import Schedule, Timeline
from pipesched.schedules.columns import op_cells
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Message, Payload, Reduce, Summed
from pipesched.schedules.weights import live_copies, live_versions
from pipesched.simulator import SteadyPace
from pipesched.simulator.analysis.device_metrics import metrics
from pipesched.simulator.analysis.tables import CellValue
from pipesched.simulator.memory import over_capacity, peaks_in_flight


@dataclass(frozen=True, slots=True)
class CommunicationVolume:
    """The volume of communication: all messages between ranks.

    Attributes:
        num_messages: Messages of Sends and Reduces.
        num_bytes: Their bytes.
    """

    num_messages: int
    num_bytes: int


def communication_volume(schedule: Schedule, costs: StageCosts) -> CommunicationVolume:
    """Return the communication of the lowered `schedule`.

    A Reduce over r replicas is a ring: in 2 (r - 1) rounds each of them passes on one r-th of the gradients, as
    `profiles.clusters.reduction_time` times it.
    """
    columns = schedule.columns
    num_messages = num_bytes = 0
    for payload, code in ((Payload.ACTIVATION, op_cells.SEND_F), (Payload.GRADIENT, op_cells.SEND_B)):
        for stage, count in Counter(columns.stages[columns.codes == code].tolist()).items():
            num_messages += count
            num_bytes += count * costs.message_bytes(Message(payload, stage, 0))
    reduces = np.flatnonzero(columns.codes == op_cells.REDUCE).tolist()
    for op, count in Counter(map(columns.op_at, reduces)).items():
        assert isinstance(op, Reduce), "by its code"
        if not op.is_over_stages:
            members = max(1, len(schedule.reducers.get(op.stage, ())))
            rounds = 2 * (members - 1) * count // members  # every member takes part in every Reduce of its stage
            num_messages += rounds * members
            num_bytes += rounds * costs.stages[op.stage].weight_bytes
        elif op.content is Summed.TIED and op.stage == min(schedule.summed_stages(Summed.TIED)):
            rings = tied_rings(schedule)
            for size in map(len, rings):
                rounds = 2 * (size - 1) * (count // len(rings))
                num_messages += rounds * size
                num_bytes += rounds * costs.tied_bytes
    return CommunicationVolume(num_messages, num_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One schedule; the fields are the columns, and None stands where something is not known.

    Attributes:
        name: Name of the schedule.
        makespan_s: Time from the first start of work to its last end [s].
        makespan_p50_s: Median of the makespans of several runs with jitter, or None for one run.
        makespan_p90_s: Their 90th percentile.
        makespan_p99_s: Their 99th percentile.
        bubble_fraction: idle / (devices x makespan).
        bubble_overhead: (makespan - busiest device) / busiest device.
        bubble_of_longest_span: Idle share of the rank with the longest span, from its first start to its last end.
        throughput: Micro-batches per second.
        steady_s_per_microbatch: Seconds of a micro-batch when batches follow one another, or without a flush in the
            long run (`simulator.fast.steady_state`); None where that is not known.
        steady_error: Standard error of these seconds, as a share of them; None where they are exact, or not known.
        steady_bubble_fraction: Idle share of all device time in the steady state.
        peak_memory_worst_bytes: Peak of the device that holds most; None where the costs have no bytes.
        peak_memory_best_bytes: Peak of the device that holds least.
        peak_microbatches_worst: The same in micro-batches, of activations alone (`simulator.memory.in_flight`).
        peak_microbatches_best: Peak of the device that holds least.
        weight_versions: Versions of one stage's weights that a rank holds at most.
        model_copies: Weights on all devices together, in whole models of equal stages: versions, predicted copies and
            replicas, each stage when it holds most.
        messages: Number of messages, as in `communication_volume`.
        sent_bytes: Bytes of all messages; None where the costs have no bytes.
        tokens_per_s: Tokens per second and GPU, of an estimated profile; None for other costs.
        flops_per_s: Model FLOPs per second and GPU, of an estimated profile.
        utilization: Share of the GPU's peak (MFU), of an estimated profile.
        fits: Whether no device holds more than it has; None where either is not known.
        reason: Why nothing else is known.
    """

    name: str
    makespan_s: float | None = None
    makespan_p50_s: float | None = None
    makespan_p90_s: float | None = None
    makespan_p99_s: float | None = None
    bubble_fraction: float | None = None
    bubble_overhead: float | None = None
    bubble_of_longest_span: float | None = None
    throughput: float | None = None
    steady_s_per_microbatch: float | None = None
    steady_error: float | None = None
    steady_bubble_fraction: float | None = None
    peak_memory_worst_bytes: int | None = None
    peak_memory_best_bytes: int | None = None
    peak_microbatches_worst: float | None = None
    peak_microbatches_best: float | None = None
    weight_versions: int | None = None
    model_copies: float | None = None
    messages: int | None = None
    sent_bytes: int | None = None
    tokens_per_s: float | None = None
    flops_per_s: float | None = None
    utilization: float | None = None
    fits: bool | None = None
    reason: str | None = None

    def to_row(self) -> dict[str, CellValue]:
        """Return plain data."""
        return asdict(self)


def summarize(
    schedule: Schedule,
    timeline: Timeline,
    costs: StageCosts,
    cluster: Cluster,
    pace: SteadyPace | None = None,
) -> Summary:
    """Return the row of a schedule.

    Args:
        schedule: Lowered or not.
        timeline: Timeline of `schedule`; with memory samples where the costs have bytes.
        costs: The costs of the simulation.
        cluster: Devices, with their memory.
        pace: Pace of the schedule in the steady state, if known.

    Raises:
        SimulationError: Nothing in the timeline takes time.
    """
    measures = metrics(timeline)
    peaks = [device.peak_memory_bytes for device in measures.devices if device.peak_memory_bytes is not None]
    counts = [peak.microbatches for peak in peaks_in_flight(timeline, costs, schedule).values()]
    sent = communication_volume(lower(schedule), costs)
    return Summary(
        name=schedule.name,
        makespan_s=measures.makespan_s,
        bubble_fraction=measures.bubble_fraction,
        bubble_overhead=measures.bubble_overhead,
        bubble_of_longest_span=measures.bubble_of_longest_span,
        throughput=measures.throughput,
        steady_s_per_microbatch=None if pace is None else pace.s_per_microbatch,
        steady_error=None if pace is None else pace.error,
        steady_bubble_fraction=None if pace is None else pace.bubble_fraction,
        peak_memory_worst_bytes=max(peaks, default=None),
        peak_memory_best_bytes=min(peaks, default=None),
        peak_microbatches_worst=max(counts),
        peak_microbatches_best=min(counts),
        weight_versions=max(live_versions(schedule).values()),
        model_copies=sum(live_copies(schedule).values()) / schedule.num_stages,
        messages=sent.num_messages,
        sent_bytes=sent.num_bytes if costs.has_bytes else None,
        fits=fits(timeline, cluster),
    )


def fits(timeline: Timeline, cluster: Cluster) -> bool | None:
    """Whether no device ever holds more than it has; None without memory samples, or if no device has a limit."""
    capacities = [cluster.devices[device].memory_bytes for device in timeline.devices]
    if not timeline.memory or all(capacity is None for capacity in capacities):
        return None
    return over_capacity(timeline.memory, cluster, timeline) is None
