"""Make a Timeline from what the recorders of all ranks kept."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from pipesched.schedules import (
    Compute,
    MemorySample,
    Message,
    Op,
    Overlap,
    Recv,
    Reduce,
    Schedule,
    Send,
    Span,
    Timeline,
    computes,
    needs,
)


def measured_timeline(
    schedule: Schedule,
    times_ns: Sequence[Sequence[Sequence[int]]],
    held_bytes: Sequence[Sequence[int]],
    most_bytes: Sequence[Sequence[int]] | None = None,
) -> Timeline:
    """Return what one run of the lowered `schedule` measured.

    Args:
        times_ns: Per rank and op: reached, begun, ended [ns], on one clock.
        held_bytes: Per rank, the bytes held after each op; empty where not known.
        most_bytes: Likewise at most inside each op; None: as after it.
    """
    # in whole nanoseconds from the first mark on: seconds since the host started have no digits left for them
    zero = min((ns for times in times_ns for marks in times for ns in marks), default=0)
    rows = [
        [Span(rank, op, *((ns - zero) / 1e9 for ns in marks)) for op, marks in zip(ops, times, strict=True)]
        for rank, (ops, times) in enumerate(zip(schedule.ops, times_ns, strict=True))
    ]
    _set_transfers(rows, schedule.num_stages)
    _set_sums(rows)
    spans = tuple(span for row in rows for span in row)
    memory = _memory(schedule.rank_to_device, rows, held_bytes, most_bytes or held_bytes)
    return Timeline(schedule.name, "measured", spans, schedule.rank_to_device, memory).from_zero()


def _set_transfers(rows: list[list[Span]], num_stages: int) -> None:
    """Give the Sends and Recvs of each channel their transfer.

    It can begin when both sides have posted. It is over at the latest when the receiver's computation begins; where
    that one did not have to wait, the arrival was not seen, and this is as much as is known.
    """
    sends: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    recvs: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    used: list[dict[Message, float]] = []
    for rank, row in enumerate(rows):
        used.append({message: span.start_s for span in row for message in _received(span.op, num_stages)})
        for index, span in enumerate(row):
            if isinstance(span.op, Send):
                sends[rank, span.op.peer].append((rank, index))
            elif isinstance(span.op, Recv):
                recvs[span.op.peer, rank].append((rank, index))
    for channel, places in sends.items():
        for (a, i), (b, j) in zip(places, recvs[channel], strict=True):
            send, recv = rows[a][i], rows[b][j]
            start = max(send.posted_s, recv.posted_s)
            assert isinstance(recv.op, Recv)
            end = max(start, used[b].get(recv.op.message, start))
            rows[a][i] = replace(send, start_s=start, end_s=end)
            rows[b][j] = replace(recv, start_s=start, end_s=end)


def _set_sums(rows: list[list[Span]]) -> None:
    """Let the k-th Reduce of a stage begin when the last of its replicas has come to it.

    It is over at the latest when the Step goes on that waits for it; where that did not have to wait, as for transfers,
    the end was not seen.
    """
    meetings: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for rank, row in enumerate(rows):
        count: Counter[int] = Counter()
        for index, span in enumerate(row):
            if isinstance(span.op, Reduce):
                meetings[span.op.stage, count[span.op.stage]].append((rank, index))
                count[span.op.stage] += 1
    for places in meetings.values():
        start_s = max(rows[rank][index].posted_s for rank, index in places)
        for rank, index in places:
            span = rows[rank][index]
            rows[rank][index] = replace(span, start_s=min(start_s, span.end_s))


def _received(op: Op, num_stages: int) -> list[Message]:
    if not isinstance(op, Compute | Overlap):
        return []
    return [message for part in computes(op) for message in needs(part, num_stages) if message.stage != part.stage]


def _memory(
    rank_to_device: Sequence[int],
    rows: Sequence[Sequence[Span]],
    held_bytes: Sequence[Sequence[int]],
    most_bytes: Sequence[Sequence[int]],
) -> tuple[MemorySample, ...]:
    """Add up what the ranks of a device hold: inside an op the most that it does, if that is more, then as after it."""
    samples = []
    for device in sorted(set(rank_to_device)):
        held = {rank: 0 for rank, its in enumerate(rank_to_device) if its == device and held_bytes[rank]}
        changes: list[tuple[float, int, int, int]] = []
        for rank in held:
            for index, span in enumerate(rows[rank]):
                after, most = held_bytes[rank][index], most_bytes[rank][index]
                if most > after:
                    changes.append((span.start_s, rank, 2 * index, most))
                # the bytes of what only posts are known when it was posted, all others' when they ended
                end_s = span.posted_s if isinstance(span.op, Send | Recv | Reduce) else span.end_s
                changes.append((end_s, rank, 2 * index + 1, after))
        for time_s, rank, _, num_bytes in sorted(changes):
            held[rank] = num_bytes
            samples.append(MemorySample(device, time_s, (("held", sum(held.values())),)))
    return tuple(samples)
