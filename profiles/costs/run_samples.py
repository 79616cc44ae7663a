"""Samples of costs from measured Timelines: the seconds of ops, of posts, and of messages.

    rank 0   F ──┤ Send ├─ next op           what a rank needs from the end of an op, or from reaching a post, to its
                                             next op is its own time
    rank 1     reached F .... F starts       a message travels from when both sides have posted it to the start of the
                   waits for it              op that waits for it; if it was there before, the rank takes it meanwhile

All but how long a message travels is measured by the clock of one rank.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, assert_never

from pipesched.profiles import ProfileError
from pipesched.schedules import (
    Average,
    Compute,
    HandOver,
    Overlap,
    Recv,
    Reduce,
    Reshard,
    Send,
    Span,
    Step,
    Timeline,
    Unshard,
    Yardstick,
    hand_overs_between,
    is_work,
    mean_yardstick,
    needs_from_others,
    schedule_of,
)
from pipesched.schedules.semantics import transfers

WORK_KINDS = ("F", "B", "I", "W", "R", "Step", "Average")
"""What a stage does, as people read it."""

StageWork: TypeAlias = tuple[int, str]
"""A stage, and one of `WORK_KINDS`."""


@dataclass(frozen=True, slots=True)
class RunSamples:
    """Seconds measured in runs of one model that was cut into the same stages.

    Attributes:
        num_stages: Number of stages of every run.
        work: Seconds of each work of a stage, without warm-up; never empty lists.
        hand_over: What a rank spends on a ``Send`` or ``Recv``, after an ``Op``, or to ``Take`` a message that is
            there.
        messages: Seconds from when both sides had posted a message to its use, of those that a rank was waiting for; 0
            of those that were there while their senders still posted them.
        passes: Seconds of all works of each run, where all runs are of the same lists; else nothing.
        yardstick: How fast the machine was, in the mean of the runs; None where one does not say it.
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
    """Return what was measured in `timelines`.

    An op beside which another rank of the same device worked does not count: its seconds have the other's in them.
    Nor do the two ops of an Overlap, whose seconds nobody can tell apart.

    Args:
        timelines: At least one.
        names: Name of each Timeline, for messages.
        warmup: The first ops of each kind of each stage on each rank do not count, as long as others are left.
        slow: For each Timeline, how many times as long everything takes on a slow device. Its samples are divided by
            that: they are those of a device like the others.

    Raises:
        ScheduleError: Nothing is computed in one.
        ProfileError: One is no measurement, or cut into other stages, or a stage has no forward that can be told.
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
            hand_over["Take"] += [
                (use.start_s - use.reached_s) / slowed[use.rank] for use in uses if use.sent_s + usual_s < use.reached_s
            ]
            hand_over["Take"] += [
                (use.start_s - use.there_s) / slowed[use.rank]
                for use in waited
                if use.sent_s < use.there_s < use.start_s
            ]
    missing = [stage for stage in range(stages[0]) if (stage, "F") not in work]
    if missing:
        raise ProfileError(
            f"{', '.join(names)}: got no forward of stage {missing[0]} by itself, expected one: one in an Overlap, or "
            "beside another rank of the device, does not say what it takes; give a run of another schedule too"
        )
    return RunSamples(
        stages[0],
        {kind: tuple(seconds) for kind, seconds in sorted(work.items())},
        {kind: tuple(seconds) for kind, seconds in sorted(hand_over.items()) if seconds},
        tuple(messages),
        _passes(timelines),
        mean_yardstick(timeline.yardstick for timeline in timelines),
    )


def _passes(timelines: Sequence[Timeline]) -> tuple[tuple[float, ...], ...]:
    works = [
        [span for rank in range(len(timeline.rank_to_device)) for span in timeline.of_rank(rank) if is_work(span)]
        for timeline in timelines
    ]
    if len({tuple((span.rank, span.op) for span in spans) for spans in works}) > 1:
        return ()
    return tuple(tuple(span.end_s - span.start_s for span in spans) for spans in works)


def _num_stages(timeline: Timeline, name: str) -> int:
    if not timeline.is_measured:
        raise ProfileError(
            f"{name}: got a Timeline that was {timeline.source}, expected a measured one; "
            "try one that pipesched.run has measured"
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
    """Return the stage and what it does; None of what tells nothing of either."""
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
    """Return (rank, index in its list) of the works beside which another rank of their device worked."""
    works = defaultdict[int, list[tuple[float, float, int, int]]](list)
    for rank, device in enumerate(timeline.rank_to_device):
        for index, span in enumerate(timeline.of_rank(rank)):
            if is_work(span):
                works[device].append((span.start_s, span.end_s, rank, index))
    places = set()
    for spans in works.values():
        latest = (-math.inf, -1, -1)  # the end, and whose it is
        for start_s, end_s, rank, index in sorted(spans):
            if start_s < latest[0]:
                places |= {(rank, index), latest[1:]}
            latest = max(latest, (end_s, rank, index))
    return places


def _hand_overs(timeline: Timeline) -> Sequence[HandOver]:
    """Return the ranks' own time; nothing where no op is reached before it starts: then nobody noted when one waits."""
    if not any(span.start_s > span.posted_s for span in timeline.spans if isinstance(span.op, Compute)):
        return ()
    if timeline.hand_overs:
        return timeline.hand_overs
    ranks = range(len(timeline.rank_to_device))
    return tuple(hand_over for rank in ranks for hand_over in hand_overs_between(timeline.of_rank(rank)))


class _Use(NamedTuple):
    """A message that a rank has used [s].

    Attributes:
        rank: The rank.
        sent_s: When both sides had posted it.
        there_s: When it was there at the latest.
        reached_s: When the rank came to the op that needs it.
        start_s: When that op started.
    """

    rank: int
    sent_s: float
    there_s: float
    reached_s: float
    start_s: float


def _uses(timeline: Timeline, hand_overs: Sequence[HandOver], num_stages: int) -> Iterator[_Use]:
    """Yield the uses of messages by ops that need one from elsewhere."""
    posted = {hand_over.op.message: hand_over.end_s for hand_over in hand_overs if isinstance(hand_over.op, Send)}
    travels = {
        message: (max(posted.get(message, send.posted_s), recv.start_s), recv.end_s)
        for message, send, recv in transfers(timeline.spans)
    }
    for span in timeline.spans:
        if isinstance(span.op, Compute):
            others = needs_from_others(span.op, num_stages)
            if len(others) == 1 and others[0] in travels:
                yield _Use(span.rank, *travels[others[0]], span.posted_s, span.start_s)
