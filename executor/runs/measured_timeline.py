"""Make a Timeline from the records of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pipesched.schedules import HandOver, MemorySample, Schedule, Span, Timeline
from pipesched.schedules.ops import Message, Op, computes, needs_from_others, occupies_device
from pipesched.schedules.semantics import listed, meeting_reduces, transfers


def measured_timeline(
    schedule: Schedule,
    times_ns: Sequence[Sequence[Sequence[int]]],
    held_bytes: Sequence[Sequence[int]],
    most_bytes: Sequence[Sequence[int]] | None = None,
) -> Timeline:
    """Return the measured Timeline of one run of the lowered `schedule`.

    Args:
        schedule: The lowered lists.
        times_ns: Per rank and op: reached, begun, ended [ns], on one clock.
        held_bytes: Per rank, the bytes held after each op; empty if unknown.
        most_bytes: Per rank, the peak bytes inside each op (default: `held_bytes`).
    """
    # in whole nanoseconds from the first mark on: seconds since the host started have no digits left for them
    zero = min((ns for times in times_ns for marks in times for ns in marks), default=0)
    rows = [
        [Span(rank, op, *((ns - zero) / 1e9 for ns in marks)) for op, marks in zip(ops, times, strict=True)]
        for rank, (ops, times) in enumerate(zip(schedule.ops, times_ns, strict=True))
    ]
    hand_overs = tuple(hand_over for row in rows for hand_over in HandOver.between(row))
    _set_transfers(rows, schedule)
    _set_reductions(rows, schedule)
    spans = tuple(span for row in rows for span in row)
    memory = _memory(schedule.rank_to_device, rows, held_bytes, most_bytes or held_bytes)
    return Timeline(schedule.name, "measured", spans, schedule.rank_to_device, memory, hand_overs).from_zero()


def _set_transfers(rows: list[list[Span]], schedule: Schedule) -> None:
    """Give the Sends and Recvs of each channel their transfer.

    A transfer begins when both sides have posted. It ends at the latest when the receiver's computation begins. If that
    computation did not wait, the arrival was not observed, and this bound is the end.
    """
    used = [
        {message: span.start_s for span in reversed(row) for message in _received(span.op, schedule.num_stages)}
        for row in rows
    ]
    for message, (a, i, _), (b, j, _) in transfers(listed(schedule.ops)):
        send, recv = rows[a][i], rows[b][j]
        start = max(send.posted_s, recv.posted_s)
        end = max(start, used[b].get(message, start))
        rows[a][i] = replace(send, start_s=start, end_s=end)
        rows[b][j] = replace(recv, start_s=start, end_s=end)


def _set_reductions(rows: list[list[Span]], schedule: Schedule) -> None:
    """Let Reduces that meet begin when the last replica reaches the reduction.

    A Reduce ends at the latest when the Step that waits for it continues. If the Step did not wait, the end was not
    observed, as for transfers.
    """
    for reduces in meeting_reduces(listed(schedule.ops)):
        start_s = max(rows[rank][index].posted_s for rank, index, _ in reduces)
        for rank, index, _ in reduces:
            span = rows[rank][index]
            rows[rank][index] = replace(span, start_s=min(start_s, span.end_s))


def _received(op: Op, num_stages: int) -> list[Message]:
    return [message for part in computes(op) for message in needs_from_others(part, num_stages)]


def _memory(
    rank_to_device: Sequence[int],
    rows: Sequence[Sequence[Span]],
    held_bytes: Sequence[Sequence[int]],
    most_bytes: Sequence[Sequence[int]],
) -> tuple[MemorySample, ...]:
    """Return samples of a device's memory, summed over its ranks: a higher peak in an op, and the bytes after it."""
    samples = []
    for device in sorted(set(rank_to_device)):
        held = {rank: 0 for rank, its in enumerate(rank_to_device) if its == device and held_bytes[rank]}
        changes: list[tuple[float, int, int, int]] = []
        for rank in held:
            for index, span in enumerate(rows[rank]):
                after, most = held_bytes[rank][index], most_bytes[rank][index]
                if most > after:
                    changes.append((span.start_s, rank, 2 * index, most))
                # ops that only post have their bytes at the post, all other ops at their end
                end_s = span.end_s if occupies_device(span.op) else span.posted_s
                changes.append((end_s, rank, 2 * index + 1, after))
        for time_s, rank, _, num_bytes in sorted(changes):
            held[rank] = num_bytes
            samples.append(MemorySample(device, time_s, (("held", sum(held.values())),)))
    return tuple(samples)
