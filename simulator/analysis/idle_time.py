"""Idle time of devices: every idle second is charged to one cause.

A gap between two works of a device is blamed on what the op that ends it was waiting for, the last of its messages:

    work ├ upstream / downstream ┤ hand_over ├ busy_link ├ transfer ┤ hand_over, overhead ├ op
       ends       message being  Send        its rank    transfer   message               starts
                  computed       posted      has it off  starts     arrives

    warmup      before the device's first work
    upstream    an activation was still being computed
    downstream  a gradient was still being computed
    busy_link   it was made, but the channel was busy or the receiver's buffer not posted
    transfer    it was travelling; or what the rank had sent was, and the Send kept its rank
    hand_over   the sender was posting it; or it was there, and the rank was posting, taking it, or between two ops
    collective  a Step waited for its Reduce: the replicas were late, or the gradients travelling
    overhead    everything was there; none in a prediction
    cooldown    after the device's last work

The instants are clamped into the gap, so that the charges add up to it whatever the clocks of a measured run say. What
is no longer than a rounding is no gap, and no charge.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, final

from pipesched.schedules import (
    Compute,
    HandOver,
    Message,
    Payload,
    Reduce,
    Send,
    Span,
    Step,
    Timeline,
    computes,
    is_work,
    needs,
)
from pipesched.schedules.semantics import transfers
from pipesched.simulator import SAME

CAUSES = (
    "warmup",
    "upstream",
    "downstream",
    "busy_link",
    "transfer",
    "hand_over",
    "collective",
    "overhead",
    "cooldown",
)
"""Every charge has these, in this order."""

_Cut = tuple[str, float]  # a cause, and the instant until which it is to blame


class IdlePart(NamedTuple):
    """A part of a device's idle time that one cause is to blame for, from `start_s` to `end_s` [s]."""

    cause: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Usage:
    """One device from the timeline's start to its end.

    Attributes:
        busy_s: Length of the union of the device's works [s].
        idle_by_cause_s: (cause, seconds), all of `CAUSES`; with `busy_s` they add up to the makespan.
    """

    device: int
    busy_s: float
    idle_by_cause_s: tuple[tuple[str, float], ...]

    @property
    def idle_s(self) -> float:
        """All idle time [s]."""
        return math.fsum(seconds for _, seconds in self.idle_by_cause_s)


def usage(timeline: Timeline) -> tuple[Usage, ...]:
    """Return, for every device, how long it was busy and why it was not."""
    blame = _Blame(timeline)
    return tuple(blame.usage(device) for device in timeline.devices)


def idle_parts(timeline: Timeline) -> dict[int, tuple[IdlePart, ...]]:
    """Return when every device was idle and why, in order of time: the parts that `usage` adds up."""
    blame = _Blame(timeline)
    return {device: blame.walk(device)[1] for device in timeline.devices}


class _Work(NamedTuple):
    """A work, and what is there for it since the work before it in its rank's list.

    Attributes:
        span: The work.
        waits: What the rank has waited for: Reduces, and blocking Sends.
        parts: What is computed, with ops before it that took no time, whose messages it waited for too.
    """

    span: Span
    waits: tuple[Span, ...]
    parts: tuple[Compute, ...]


@final
class _Blame:
    def __init__(self, timeline: Timeline) -> None:
        self._start_s = timeline.start_s
        self._end_s = timeline.start_s + timeline.makespan_s
        self._same_s = SAME * timeline.makespan_s
        self._num_stages = timeline.num_stages
        self._received = {(b.rank, message): (message, a, b) for message, a, b in transfers(timeline.spans)}
        self._left_s = _left_s(timeline)
        self._hand_overs = _hand_overs_of_ranks(timeline)
        self._works: defaultdict[int, list[_Work]] = defaultdict(list)
        self._last_reduces: defaultdict[int, list[Span]] = defaultdict(list)
        posted: defaultdict[int, dict[int, Span]] = defaultdict(dict)
        waited: defaultdict[int, list[Span]] = defaultdict(list)
        parts: defaultdict[int, list[Compute]] = defaultdict(list)
        for before, span in pairwise([None, *timeline.spans]):
            assert span is not None
            if before is not None and self._kept_its_rank(before, span):
                waited[span.rank].append(replace(before, end_s=min(before.end_s, span.posted_s)))
            if isinstance(span.op, Step) and span.op.stage in posted[span.rank]:
                waited[span.rank].append(posted[span.rank].pop(span.op.stage))
            if isinstance(span.op, Reduce):
                posted[span.rank][span.op.stage] = span
            parts[span.rank] += computes(span.op)
            if is_work(span):
                device = timeline.rank_to_device[span.rank]
                self._works[device].append(
                    _Work(span, tuple(waited.pop(span.rank, ())), tuple(parts.pop(span.rank, ())))
                )
        for rank, device in enumerate(timeline.rank_to_device):
            self._last_reduces[device] += [*waited[rank], *posted[rank].values()]

    def usage(self, device: int) -> Usage:
        """Add up what `walk` comes upon."""
        busy, idle = self.walk(device)
        charges: dict[str, list[float]] = {cause: [] for cause in CAUSES}
        for part in idle:
            charges[part.cause].append(part.end_s - part.start_s)
        return Usage(device, math.fsum(busy), tuple((cause, math.fsum(parts)) for cause, parts in charges.items()))

    def walk(self, device: int) -> tuple[list[float], tuple[IdlePart, ...]]:
        """Walk through the device's works; return how long it was busy [s], and what lies between them, idle."""
        idle: list[IdlePart] = []
        busy: list[float] = []
        now_s = self._start_s
        for index, work in enumerate(sorted(self._works[device], key=lambda work: work.span.start_s)):
            start_s, end_s = work.span.start_s, work.span.end_s
            if start_s > now_s + self._same_s:
                idle += self._parts(now_s, start_s, self._cuts(work, now_s) if index else [("warmup", start_s)])
                now_s = start_s
            if end_s > now_s:
                busy.append(end_s - now_s)
                now_s = end_s
        if self._end_s <= now_s + self._same_s:
            busy.append(self._end_s - now_s)
            now_s = self._end_s
        last_reduces = sorted(self._last_reduces[device], key=lambda span: span.posted_s)
        idle += self._parts(now_s, self._end_s, [*self._meetings(last_reduces, "cooldown"), ("cooldown", self._end_s)])
        return busy, tuple(idle)

    def _cuts(self, work: _Work, from_s: float) -> Iterator[_Cut]:
        """Yield what the start of a work waited for, one thing after the other; of overhead what is handing over."""
        own = self._hand_overs[work.span.rank]
        index = max(0, bisect_left(own, from_s, key=lambda hand_over: hand_over.start_s) - 1)
        for cause, until_s in self._waits(work):
            if cause == "overhead":
                while index < len(own) and own[index].start_s < until_s:
                    yield from (("overhead", own[index].start_s), ("hand_over", min(own[index].end_s, until_s)))
                    index += 1
            yield cause, until_s

    def _waits(self, work: _Work) -> list[_Cut]:
        """Return what the start of a work waited for, one thing after the other."""
        cuts = self._meetings(work.waits, "overhead")
        rank = work.span.rank
        awaited = [
            transfer
            for part in work.parts
            for message in needs(part, self._num_stages)
            if (transfer := self._received.get((rank, message))) is not None
        ]
        if awaited:
            message, send, recv = max(awaited, key=lambda transfer: transfer[2].end_s)
            left_s = self._left_s.get((send.rank, message), send.posted_s)
            maker = "upstream" if message.payload is Payload.ACTIVATION else "downstream"
            cuts += [(maker, send.posted_s), ("hand_over", left_s)]
            cuts += [("busy_link", recv.start_s), ("transfer", recv.end_s)]
        return [*cuts, ("overhead", work.span.start_s)]

    def _kept_its_rank(self, before: Span, after: Span) -> bool:
        """Whether a Send kept its rank: to the op behind it that came only later, when the transfer had begun."""
        return (
            isinstance(before.op, Send)
            and before.rank == after.rank
            and after.posted_s >= before.start_s - self._same_s
            and self._left_s.get((before.rank, before.op.message), before.posted_s) + self._same_s < after.posted_s
        )

    def _parts(self, from_s: float, until_s: float, cuts: Iterable[_Cut]) -> Iterator[IdlePart]:
        """Cut a gap at the instants given, each clamped to what is left of the gap."""
        for cause, cut_s in cuts:
            end_s = cut_s if cut_s < until_s - self._same_s else until_s
            if end_s > from_s + self._same_s:
                yield IdlePart(cause, from_s, end_s)
                from_s = end_s

    def _meetings(self, waits: Iterable[Span], before: str) -> list[_Cut]:
        """Return the cuts of what a rank waited for, one after the other."""
        cuts: list[_Cut] = []
        for span in waits:
            cuts.append((before, span.posted_s))
            if isinstance(span.op, Send):
                left_s = self._left_s.get((span.rank, span.op.message), span.posted_s)
                cuts += [("hand_over", left_s), ("busy_link", span.start_s), ("transfer", span.end_s)]
            else:
                cuts.append(("collective", span.end_s))
        return cuts


def _left_s(timeline: Timeline) -> dict[tuple[int, Message], float]:
    """Return when a rank has a message that it sends off its hands, where that takes time."""
    return {(h.rank, h.op.message): h.end_s for h in timeline.hand_overs if isinstance(h.op, Send)}


def _hand_overs_of_ranks(timeline: Timeline) -> defaultdict[int, list[HandOver]]:
    by_rank: defaultdict[int, list[HandOver]] = defaultdict(list)
    for hand_over in timeline.hand_overs:
        by_rank[hand_over.rank].append(hand_over)
    return by_rank
