"""Make a Timeline of one step of all ranks: op lists from the passes of the ranks, one clock from their messages.

The lists are lowered as for a simulation, so that a Timeline of PyTorch's runtime can be compared with a prediction.
The k-th Send of a channel meets its k-th Recv. Unrecorded times of a message follow from the passes: the message was
sent at the end of the pass that makes it, and had arrived at the start of the pass that needs it.
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pipesched.profiles import ProfileError
from pipesched.profiles.traces.clock_alignment import ClockAlignment, MessageTimes, align_clocks
from pipesched.profiles.traces.passes import RankPasses, TimedPass
from pipesched.schedules import HandOver, Schedule, ScheduleError, Span, Timeline, make_schedule
from pipesched.schedules.builders import CATALOGUE, build
from pipesched.schedules.check import find_faults
from pipesched.schedules.common import MAX_CELLS
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Message, Op, Recv, Send, computes, gives, needs_from_others, occupies_device
from pipesched.schedules.semantics import ListedOp, listed, transfers

_MOST_APART_NS = 3600 * 10**9
"""Largest difference of the clocks of one run [ns]; traces do not contain time zones."""

_MOST_APART_ON_HOST_NS = 10**9
"""Largest difference of the clocks of ranks on one host, which share a clock [ns]."""

_MOST_CONTRADICTION = 0.01
"""Largest accepted contradiction between messages, due to drifting clocks, as a share of the makespan."""

_LEAST_CONTRADICTION_NS = 200_000
_MOST_EARLY_NS = 20_000
"""Time by which a message may arrive before it was sent, on one clock [ns]: a profiler reads the clock around calls."""

_MOST_MISSING = 10
"""Largest number of passes in a step, as a multiple of the passes in the traces."""

_SHOWN_NAMES = 4
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class ImportedTimeline:
    """A Timeline that was read from traces.

    Attributes:
        files: The trace of each rank.
        step: The number of the step, if steps are numbered.
        schedule: The schedule in the traces, without communication.
        timeline: Measured, on the clock of rank 0.
        clocks: The alignment of the ranks' clocks.
        is_counted: Whether stages and micro-batches were counted, with one stage per rank, because the names contain
            neither.
        notes: Sentences on the choice of ranks, names and step.
    """

    files: tuple[str, ...]
    step: int | None
    schedule: Schedule
    timeline: Timeline
    clocks: ClockAlignment
    is_counted: bool = False
    notes: tuple[str, ...] = ()


def imported_timeline(
    ranks: Sequence[RankPasses],
    *,
    step: int | None = None,
    has_one_clock: bool = False,
    name: str | None = None,
    rank_to_device: tuple[int, ...] | None = None,
) -> ImportedTimeline:
    """Return the Timeline of a step.

    Args:
        ranks: The passes of each rank.
        step: The number of the step, if steps are numbered.
        has_one_clock: Whether all ranks have one clock; else clocks are aligned by messages.
        name: Name of the schedule (default: the name of the schedule with these passes in the catalogue).
        rank_to_device: The device of every rank (default: a device for each rank).

    Raises:
        ProfileError: Passes are missing or repeated, the clocks cannot be aligned, or messages contradict one clock.
    """
    schedule = _schedule(ranks, name, rank_to_device)
    lowered = lower(schedule)
    makers, users = _makers_and_users(ranks, schedule.num_stages)
    meetings = transfers(listed(lowered.ops))
    messages = [
        MessageTimes(
            send.rank,
            recv.rank,
            ranks[send.rank].base_ns + _sent_ns(ranks[send.rank], message, makers),
            ranks[recv.rank].base_ns + _arrived_ns(ranks[recv.rank], message, users),
        )
        for message, send, recv in meetings
    ]
    count = len(ranks)
    if has_one_clock:
        _require_in_order(ranks, messages)
    clocks = ClockAlignment((0,) * count, (0,) * count) if has_one_clock else align_clocks(count, messages)
    _require_near(ranks, clocks)
    timeline = _timeline(lowered, ranks, meetings, messages, clocks)
    limit_ns = max(_LEAST_CONTRADICTION_NS, _MOST_CONTRADICTION * timeline.makespan_s * 1e9)
    if clocks.contradiction_ns > limit_ns:
        raise ProfileError(
            f"clocks: got messages that contradict each other by {clocks.contradiction_ns / 1e6:.3g} ms, for any "
            "offsets of the clocks, expected traces of one step of one run; try other files, or the files of one "
            "pipeline without data-parallel copies"
        )
    is_counted = any(trace.is_counted for trace in ranks)
    return ImportedTimeline(tuple(trace.file for trace in ranks), step, schedule, timeline, clocks, is_counted)


def _makers_and_users(
    ranks: Sequence[RankPasses], num_stages: int
) -> tuple[dict[Message, TimedPass], dict[Message, TimedPass]]:
    """Return the pass that makes each message, and the first pass that needs it."""
    parts = [(part, timed) for trace in ranks for timed in trace.passes for part in computes(timed.op)]
    makers = {message: timed for part, timed in parts if (message := gives(part)) is not None}
    users = {message: timed for part, timed in reversed(parts) for message in needs_from_others(part, num_stages)}
    return makers, users


def _sent_ns(sender: RankPasses, message: Message, makers: Mapping[Message, TimedPass]) -> int:
    seen = sender.sends.get(message)
    return makers[message].time.end_ns if seen is None else seen.start_ns


def _arrived_ns(receiver: RankPasses, message: Message, users: Mapping[Message, TimedPass]) -> int:
    """Return a time after the arrival of a message: the end of its receive, or the start of the pass that needs it."""
    needed_ns = users[message].time.start_ns
    seen = receiver.recvs.get(message)
    return needed_ns if seen is None else min(seen.end_ns, needed_ns)


def _schedule(ranks: Sequence[RankPasses], name: str | None, rank_to_device: tuple[int, ...] | None) -> Schedule:
    """Return the op lists as a schedule, with its name in the catalogue if it has one."""
    parts = [part for trace in ranks for timed in trace.passes for part in computes(timed.op)]
    num_stages = 1 + max((part.stage for part in parts), default=-1)
    num_microbatches = 1 + max((part.microbatch for part in parts), default=-1)
    if num_stages * num_microbatches > min(MAX_CELLS, _MOST_MISSING * len(parts)):
        seen = f"stages up to {num_stages - 1} and micro-batches up to {num_microbatches - 1}"
        raise _incomplete(ranks, f"{len(parts)} passes, with {seen}")
    rows: list[list[Op]] = [[timed.op for timed in trace.passes] for trace in ranks]
    schedule = make_schedule(name or "imported", num_stages, num_microbatches, rows, rank_to_device)
    faults = find_faults(schedule)
    if faults:
        more = f" and {len(faults) - 1} more faults" if len(faults) > 1 else ""
        raise _incomplete(ranks, f"{faults[0]}{more}")
    return schedule if name else _recognized(schedule)


def _recognized(schedule: Schedule) -> Schedule:
    """Return the schedule with the catalogue's name for its passes, if there is one."""
    num_chunks = schedule.num_stages // schedule.num_ranks
    for entry in CATALOGUE.values():
        takes_chunks = entry.traits.takes_chunks and num_chunks > 1
        if entry.parameters or entry.traits.is_asynchronous or not (takes_chunks or entry.chunks == num_chunks):
            continue
        try:
            chunks = num_chunks if takes_chunks else None
            known = build(entry.name, schedule.num_ranks, schedule.num_microbatches, chunks)
        except ScheduleError:
            continue
        if _passes(known) == _passes(schedule):
            return replace(schedule, name=known.name)
    return schedule


def _passes(schedule: Schedule) -> list[list[Op]]:
    return [[op for op in row if computes(op)] for row in schedule.ops]


def _incomplete(ranks: Sequence[RankPasses], got: str) -> ProfileError:
    """Return the error for passes that are not a whole step of one pipeline, with the names of their ranges."""
    names = Counter(_DIGITS.sub("*", timed.name) for trace in ranks for timed in trace.passes)
    texts = [f"{name!a} {count} times" for name, count in names.most_common(_SHOWN_NAMES)]
    more = f", and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return ProfileError(
        f"{ranks[0].file}{' and others' if len(ranks) > 1 else ''}: got {got}, expected every forward and backward "
        f"pass of one pipeline's step, once; the ranges read are {', '.join(texts) or 'none'}{more}; try the traces "
        "of all its ranks and no others, `step`, or `patterns`"
    )


def _require_near(ranks: Sequence[RankPasses], clocks: ClockAlignment) -> None:
    """Refuse clocks so far apart that the traces come from different runs."""
    first = ranks[0]
    for trace, offset_ns, uncertainty_ns in zip(ranks, clocks.offsets_ns, clocks.uncertainties_ns, strict=True):
        is_one_host = trace.host is not None and trace.host == first.host
        if abs(offset_ns) - uncertainty_ns > (_MOST_APART_ON_HOST_NS if is_one_host else _MOST_APART_NS):
            where = f"the clock of {first.file}{', on the same host' if is_one_host else ''}"
            raise ProfileError(
                f"{trace.file}: got a clock {offset_ns / 1e9:+.0f} s off {where}, by the times of their messages, "
                "expected traces of one step of one run; try other files"
            )


def _require_in_order(ranks: Sequence[RankPasses], messages: Sequence[MessageTimes]) -> None:
    """Refuse ranks with several clocks: on one clock a message arrives after it was sent.

    A deviation up to half the round-trip time of the fastest messages may be due to the profiler, and is accepted. The
    round-trip time is independent of clock offsets.
    """
    least_ns: dict[tuple[int, int], int] = {}
    for message in messages:
        way = message.sender, message.receiver
        least_ns[way] = min(
            least_ns.get(way, message.arrived_ns - message.sent_ns), message.arrived_ns - message.sent_ns
        )
    for (sender, receiver), early_ns in least_ns.items():
        there_and_back_ns = early_ns + least_ns.get((receiver, sender), -early_ns)
        if -early_ns > max(_MOST_EARLY_NS, there_and_back_ns // 2):
            raise ProfileError(
                f"{ranks[receiver].file}: rank {receiver}: got a message {-early_ns / 1e9:,.6g} s before rank {sender} "
                f"sent it ({ranks[sender].file}), expected a later arrival, as all ranks have one clock; try without "
                "`has_one_clock`"
            )


def _timeline(
    lowered: Schedule,
    ranks: Sequence[RankPasses],
    meetings: Sequence[tuple[Message, ListedOp, ListedOp]],
    messages: Sequence[MessageTimes],
    clocks: ClockAlignment,
) -> Timeline:
    """Return the Timeline of the lowered lists, its first work at 0."""
    zero_ns = ranks[0].base_ns + ranks[0].passes[0].time.start_ns  # a float of seconds since 1970 loses nanoseconds

    def second(rank: int, at_ns: int) -> float:
        return (at_ns - clocks.offsets_ns[rank] - zero_ns) / 1e9

    first_s = min(second(rank, trace.base_ns + trace.passes[0].time.start_ns) for rank, trace in enumerate(ranks))
    rows = [_reached(rank, row, ranks[rank], second, first_s) for rank, row in enumerate(lowered.ops)]
    hand_overs = tuple(hand_over for row in rows for hand_over in HandOver.between(row))
    for (message, (a, i, _), (b, j, _)), times in zip(meetings, messages, strict=True):
        send, recv = rows[a][i], rows[b][j]
        buffer = ranks[b].recvs.get(message)
        ready_s = recv.posted_s if buffer is None else second(b, ranks[b].base_ns + buffer.posted_ns)
        start_s = max(second(a, times.sent_ns), ready_s)
        end_s = max(start_s, second(b, times.arrived_ns))
        rows[a][i] = replace(send, start_s=start_s, end_s=end_s)
        rows[b][j] = replace(recv, start_s=start_s, end_s=end_s)
    spans = tuple(span for row in rows for span in row)
    return Timeline(lowered.name, "measured", spans, lowered.rank_to_device, hand_overs=hand_overs).from_zero()


def _reached(
    rank: int, row: Sequence[Op], passes: RankPasses, second: Callable[[int, int], float], now_s: float
) -> list[Span]:
    """Return the spans of a list in its order; the times of Sends and Recvs are completed later.

    A post that was recorded at another place than in the list is moved as near to its place in the list as possible.
    """
    works = deque(passes.passes)
    spans = []
    for op in row:
        next_s = second(rank, passes.base_ns + works[0].posted_ns) if works else math.inf
        if isinstance(op, Send | Recv):
            seen = (passes.sends if isinstance(op, Send) else passes.recvs).get(op.message)
            posted_s = now_s if seen is None else second(rank, passes.base_ns + seen.start_ns)
            now_s = max(now_s, min(posted_s, next_s))
            spans.append(Span(rank, op, now_s, now_s, now_s))
            continue
        start_s, end_s = (second(rank, passes.base_ns + at_ns) for at_ns in works.popleft().time)
        spans.append(Span(rank, op, min(max(now_s, next_s), start_s), start_s, end_s))
        now_s = end_s if occupies_device(op) else spans[-1].posted_s
    return spans
