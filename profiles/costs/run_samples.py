"""Samples of costs from measured Timelines: the seconds of ops, of posts, and of messages.

    rank 0   F ──┤ Send ├─ next op           the time from the end of an op, or from reaching a post, to the next op
                                             is overhead of the rank
    rank 1     reached F .... F starts       a message travels from when both sides have posted it to the start of the
                   waits for it              op that waits for it; if it was there before, the rank takes it meanwhile

All samples use the clock of one rank, except the travel times of messages.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, assert_never, get_args

from pipesched.profiles import ProfileError
from pipesched.schedules import HandOver, Span, Timeline, Yardstick, schedule_of
from pipesched.schedules.ops import (
    Average,
    Compute,
    Overlap,
    Recv,
    Reduce,
    Reshard,
    Send,
    Step,
    Unshard,
    needs_from_others,
)
from pipesched.schedules.semantics import transfers

WorkKind: TypeAlias = Literal["F", "B", "I", "W", "R", "Step", "Average"]
WORK_KINDS: tuple[WorkKind, ...] = get_args(WorkKind)
"""Kinds of work of a stage, in reading order."""

StageWork: TypeAlias = tuple[int, WorkKind]


@dataclass(frozen=True, slots=True)
class RunSamples:
    """Seconds measured in runs of one model that was cut into the same stages.

    Attributes:
        num_stages: Number of stages of every run.
        work: Seconds of each work of a stage, without warm-up; never empty lists.
        hand_over: Overhead of a rank for a ``Send`` or ``Recv``, after an ``Op``, or to ``Take`` an arrived message.
        messages: Seconds of each message that a rank waited for, from the later post of its two sides to its use; 0 if
            the message arrived before the end of its post.
        passes: Seconds of all ops with work of each run if all runs have the same lists, else empty.
        yardstick: Mean speed of the machine over the runs, or None if a run does not record it.
    """

    num_stages: int
    work: Mapping[StageWork, tuple[float, ...]]
    hand_over: Mapping[str, tuple[float, ...]]
    messages: tuple[float, ...]
    passes: tuple[tuple[float, ...], ...] = ()
    yardstick: Yardstick | None = None


def samples_of(
    timelines: Sequence[Timeline],
    names: Sequence[str],
    warmup: int = 1,
    slow: Sequence[Mapping[int, float]] = (),
) -> RunSamples:
    """Return the samples of `timelines`.

    An op does not count if another rank of the same device worked meanwhile, because its seconds include the other
    work. The two ops of an Overlap do not count either, because their seconds cannot be separated.

    Args:
        timelines: Measured Timelines, at least one.
        names: Name of each Timeline, for messages.
        warmup: Number of first ops to leave out, for each kind, stage and rank; the last op always counts.
        slow: For each Timeline, the slowdown factor of each slow device. The samples of the device are divided by it.

    Raises:
        ScheduleError: A Timeline has no computation.
        ProfileError: A Timeline is not measured or has other stages, or a stage has no separate forward.
    """
    work, hand_over = defaultdict[StageWork, list[float]](list), defaultdict[str, list[float]](list)
    messages: list[float] = []
    stages = [_num_stages(timeline, name) for timeline, name in zip(timelines, names, strict=True)]
    for index, (timeline, name, num_stages) in enumerate(zip(timelines, names, stages, strict=True)):
        if num_stages != stages[0]:
            raise ProfileError(
                f"{name}: got {num_stages} stages, expected {stages[0]} as in {names[0]}; give runs of one partition"
            )
        factors = slow[index] if slow else {}
        slowed = [factors.get(device, 1.0) for device in timeline.rank_to_device]
        for rank, stage_work, seconds in _worked(timeline):
            work[stage_work] += [part_s / slowed[rank] for part_s in seconds[min(warmup, len(seconds) - 1) :]]
        hand_overs = _hand_overs(timeline)
        for event in hand_overs:
            kind = "Send" if isinstance(event.op, Send) else "Recv" if isinstance(event.op, Recv) else "Op"
            hand_over[kind].append((event.end_s - event.start_s) / slowed[event.rank])
        uses = list(_uses(timeline, hand_overs, num_stages))
        waited = [use for use in uses if use.sent_s >= use.reached_s]
        messages += (travelled := [max(0.0, use.start_s - use.sent_s) for use in waited])
        usual_s = statistics.median(travelled or [0.0])
        if hand_overs:
            hand_over["Take"] += [(use.start_s - begun_s) / slowed[use.rank] for use, begun_s in _takes(uses, usual_s)]
    missing = [stage for stage in range(stages[0]) if (stage, "F") not in work]
    if missing:
        raise ProfileError(
            f"{', '.join(names)}: got no forward of stage {missing[0]} alone on its device, expected a forward outside "
            "of an Overlap, while no other rank of the device works; give a run of another schedule too"
        )
    return RunSamples(
        stages[0],
        {kind: tuple(seconds) for kind, seconds in sorted(work.items())},
        {kind: tuple(seconds) for kind, seconds in sorted(hand_over.items()) if seconds},
        tuple(messages),
        _passes(timelines),
        Yardstick.mean(timeline.yardstick for timeline in timelines),
    )


def _passes(timelines: Sequence[Timeline]) -> tuple[tuple[float, ...], ...]:
    works = [
        [span for rank in range(len(timeline.rank_to_device)) for span in timeline.of_rank(rank) if span.is_work]
        for timeline in timelines
    ]
    if len({tuple((span.rank, span.op) for span in spans) for spans in works}) > 1:
        return ()
    return tuple(tuple(span.end_s - span.start_s for span in spans) for spans in works)


def _num_stages(timeline: Timeline, name: str) -> int:
    if not timeline.is_measured:
        raise ProfileError(
            f"{name}: got a Timeline that was {timeline.source}, expected a measured Timeline; try a Timeline that "
            "pipesched.run has measured"
        )
    return schedule_of(timeline).num_stages


def _worked(timeline: Timeline) -> Iterator[tuple[int, StageWork, list[float]]]:
    """Yield a rank, a work of a stage on it, and its seconds, in the order of the rank's list."""
    shared = _shared(timeline)
    for rank in range(len(timeline.rank_to_device)):
        seconds_of = defaultdict[StageWork, list[float]](list)
        for index, span in enumerate(timeline.of_rank(rank)):
            stage_work = _stage_work(span)
            if stage_work is not None and (rank, index) not in shared:
                seconds_of[stage_work].append(span.end_s - span.start_s)
        for stage_work, seconds in seconds_of.items():
            yield rank, stage_work, seconds


def _stage_work(span: Span) -> StageWork | None:
    """Return the stage and the kind of its work, or None for ops without measured work."""
    op = span.op
    match op:
        case Compute(phase, stage):
            return stage, phase.value
        case Step(stage):
            return stage, "Step"
        case Average(stage):
            return stage, "Average"
        case Overlap() | Send() | Recv() | Reduce() | Unshard() | Reshard():
            return None
        case _:
            assert_never(op)


def _shared(timeline: Timeline) -> set[tuple[int, int]]:
    """Return (rank, index in its list) of the ops that ran beside work of another rank on their device."""
    works = defaultdict[int, list[tuple[float, float, int, int]]](list)
    for rank, device in enumerate(timeline.rank_to_device):
        for index, span in enumerate(timeline.of_rank(rank)):
            if span.is_work:
                works[device].append((span.start_s, span.end_s, rank, index))
    places = set()
    for spans in works.values():
        latest = (-math.inf, -1, -1)  # end, rank, index
        for start_s, end_s, rank, index in sorted(spans):
            if start_s < latest[0]:
                places |= {(rank, index), latest[1:]}
            latest = max(latest, (end_s, rank, index))
    return places


def _hand_overs(timeline: Timeline) -> Sequence[HandOver]:
    """Return the overheads of the ranks; empty if no op waits, because such a run did not record waits."""
    if not any(span.start_s > span.posted_s for span in timeline.spans if isinstance(span.op, Compute)):
        return ()
    if timeline.hand_overs:
        return timeline.hand_overs
    ranks = range(len(timeline.rank_to_device))
    return tuple(hand_over for rank in ranks for hand_over in HandOver.between(timeline.of_rank(rank)))


class _Use(NamedTuple):
    """The use of a message by a rank [s].

    Attributes:
        rank: The rank.
        sent_s: Time at which both sides had posted the message.
        there_s: Latest time of the arrival.
        reached_s: Time at which the rank reached the op that needs the message.
        start_s: Start of this op.
    """

    rank: int
    sent_s: float
    there_s: float
    reached_s: float
    start_s: float


def _takes(uses: Sequence[_Use], usual_s: float) -> Iterator[tuple[_Use, float]]:
    """Yield each use of a message that a rank takes after its arrival, and the time when it begins to take it [s].

    Args:
        uses: The uses.
        usual_s: Usual time of a message on its way.
    """
    yield from ((use, use.reached_s) for use in uses if use.sent_s + usual_s < use.reached_s)
    yield from ((use, use.there_s) for use in uses if use.reached_s <= use.sent_s < use.there_s < use.start_s)


def _uses(timeline: Timeline, hand_overs: Sequence[HandOver], num_stages: int) -> Iterator[_Use]:
    """Yield the uses of messages by ops that need one message from another stage."""
    posted = {hand_over.op.message: hand_over.end_s for hand_over in hand_overs if isinstance(hand_over.op, Send)}
    travels = {
        message: (max(posted.get(message, send.posted_s), recv.start_s), recv.end_s)
        for message, send, recv in transfers(timeline.spans)
    }
    for span in timeline.spans:
        if isinstance(span.op, Compute):
            others = needs_from_others(span.op, num_stages)
            if len(others) == 1 and others[0] in travels:
                yield _Use(span.rank, *travels.pop(others[0]), span.posted_s, span.start_s)
