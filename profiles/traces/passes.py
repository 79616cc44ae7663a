"""The passes of one rank in one step, and the times of its messages.

A range on the host is cut to its computation. Without a GPU, the range begins with the wait for its input, and ends
with the post of its output:

    PP:1F0    ├ wait for gloo:recv ┤ compute ├ c10d::send ┤
                                   └─ pass ──┘

With a GPU the pass lasts from the first to the last kernel launched in the range. Ranges may be nested. If both ranges
are of the same pass, the inner range counts, such as a range of `annotate` inside a range of PyTorch. Otherwise the
outer range counts, such as a backward pass that recomputes a forward pass.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, starmap
from typing import NamedTuple

from pipesched.profiles import ProfileError
from pipesched.profiles.traces.range_patterns import PassName
from pipesched.profiles.traces.rank_trace import Interval, NamedRange, RankTrace
from pipesched.schedules.common import shown
from pipesched.schedules.ops import Compute, Message, Op, Phase, Recv, Send, Step, computes, gives, needs_from_others

SINCE_EVER = -(2**62)
"""An instant [ns] before all others."""

_ROUNDED_NS = 1000
"""Longest overlap of two ranges in sequence, due to rounding of microseconds since 1970 [ns]."""


@dataclass(frozen=True, slots=True)
class TimedPass:
    """One pass, or other work, in nanoseconds of its rank's clock.

    Attributes:
        op: A computation, a Reduce, a Step or an Average.
        name: Name of the range.
        posted_ns: Time at which the rank reached the op; `SINCE_EVER` if the rank may have waited from the start.
        time: Start and end of the work.
    """

    op: Op
    name: str
    posted_ns: int
    time: Interval


class PostTimes(NamedTuple):
    """A Send or a Recv, in nanoseconds of its rank's clock.

    Attributes:
        start_ns: Time at which the rank began to post it.
        posted_ns: Time at which it was posted, and the rank continued.
        end_ns: End of the rank's wait for it.
    """

    start_ns: int
    posted_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class RankPasses:
    """The passes and messages of one rank in one step, in nanoseconds of its clock.

    Attributes:
        file: The file of the trace.
        passes: The passes, in order of time.
        sends: Times of the recorded sends.
        recvs: Times of the recorded receives.
        host: The name of the machine, or None if unknown.
        base_ns: Zero of the times [ns since 1970].
        is_counted: Whether stages and micro-batches were counted, because the names contain neither.
    """

    file: str
    passes: tuple[TimedPass, ...]
    sends: Mapping[Message, PostTimes] = field(default_factory=dict)
    recvs: Mapping[Message, PostTimes] = field(default_factory=dict)
    host: str | None = None
    base_ns: int = 0
    is_counted: bool = False


class _Work(NamedTuple):
    """An op and its range on the host."""

    op: Op
    name: str
    time: Interval


def rank_passes(
    trace: RankTrace, ranges: Sequence[NamedRange], window: Interval, rank: int, listed: Iterable[Op] | None = None
) -> RankPasses:
    """Return the passes of a rank.

    Args:
        trace: Trace of the rank.
        ranges: Ranges of the step.
        window: Time of the step.
        rank: Number of the rank: the stage of ranges without a stage in their name, if `listed` is None.
        listed: The op list of the rank, if known: the k-th forward of the trace is the k-th forward in the list, and so
            on for each phase.

    Raises:
        ProfileError: Two ranges are the same pass, or the ranges differ from the listed passes.
    """
    messages = sorted((r for r in ranges if isinstance(r.meaning, Send | Recv)), key=lambda named: named.time)
    works_only = without_nested(r for r in ranges if not isinstance(r.meaning, Send | Recv))
    told = _told(trace.file, works_only if listed is None else _as_listed(trace.file, works_only, listed), rank)
    is_counted = listed is None and any(
        isinstance(r.meaning, PassName) and r.meaning.stage is r.meaning.microbatch is None for r in works_only
    )
    works = [*told, *_optimizer(trace, window, told)]
    if trace.has_gpu:
        passes = _shared(_on_gpu(trace, works), told)
        sent, received = (_on_link(trace, messages, kind) for kind in (Send, Recv))
        return RankPasses(trace.file, passes, sent, received, trace.host, trace.base_ns, is_counted)
    sends = _posts(trace.send_posts.within(window), trace.send_waits.within(window))
    recvs = _posts(trace.recv_posts.within(window), trace.recv_waits.within(window))
    calls = [*trace.send_posts.within(window), *trace.recv_posts.within(window)]
    passes = _shared(_on_host(works, sends, recvs, calls), told)
    sent, received = _met(sends, messages, passes, Send), _met(recvs, messages, passes, Recv)
    return RankPasses(trace.file, passes, sent, received, trace.host, trace.base_ns, is_counted)


def without_nested(ranges: Iterable[NamedRange]) -> list[NamedRange]:
    """Return the ranges in order of time, without nested ranges; an overlap due to rounding is trimmed."""
    kept: list[NamedRange] = []
    for named in sorted(ranges, key=lambda named: (named.time.start_ns, -named.time.end_ns)):
        start_ns, end_ns = kept[-1].time if kept else (SINCE_EVER, SINCE_EVER)
        if named.time.start_ns >= end_ns:
            kept.append(named)
        elif end_ns - named.time.start_ns <= min(
            _ROUNDED_NS, named.time.end_ns - end_ns, named.time.start_ns - start_ns
        ):
            kept[-1] = replace(kept[-1], time=Interval(start_ns, named.time.start_ns))
            kept.append(named)
        elif named.meaning == kept[-1].meaning:
            kept[-1] = named
    return kept


def _as_listed(file: str, ranges: Sequence[NamedRange], listed: Iterable[Op]) -> Iterator[NamedRange]:
    """Yield the ranges with passes from a list: the k-th range of a phase is the list's k-th pass of that phase."""
    advice = "as in the schedule; try the schedule of the run, or another `step`"
    expected = [part for op in listed for part in computes(op)]
    if not any(
        isinstance(named.meaning, PassName | Compute) and named.meaning.phase is Phase.RECOMPUTE for named in ranges
    ):
        expected = [part for part in expected if part.phase is not Phase.RECOMPUTE]  # inside the backward passes
    for named in ranges:
        known = named.meaning
        if not isinstance(known, PassName | Compute):
            expected = [part for part in expected if part not in computes(known)]
            yield named
            continue
        # names with micro-batches come in the order of the list; without them, each phase is counted by itself
        is_counted = known.microbatch is None
        op = next((part for part in expected if not is_counted or part.phase is known.phase), None)
        if op is None or not _may_be(known, op):
            raise ProfileError(
                f"{file}: got another pass {shown(named.name)} ({known.phase.value}), expected {op or 'none'}, {advice}"
            )
        expected.remove(op)
        yield replace(named, meaning=op)
    if expected:
        raise ProfileError(f"{file}: got no more passes, expected {expected[0]}, {advice}")


def _may_be(known: PassName | Compute, op: Compute) -> bool:
    """Return whether an op fits a name; numbers that the name lacks fit any op."""
    return known.phase is op.phase and known.stage in (None, op.stage) and known.microbatch in (None, op.microbatch)


def _told(file: str, ranges: Iterable[NamedRange], rank: int) -> list[_Work]:
    """Return each range with its op; numbers that the name lacks are counted."""
    counts: Counter[tuple[int, Phase]] = Counter()
    told: dict[Op, _Work] = {}
    for named in ranges:
        op = named.meaning
        if isinstance(op, PassName):
            stage = rank if op.stage is None else op.stage
            number = counts[stage, op.phase]
            counts[stage, op.phase] += 1
            op = Compute(op.phase, stage, number if op.microbatch is None else op.microbatch)
        if op in told:
            names = " and ".join(dict.fromkeys(shown(name) for name in (told[op].name, named.name)))
            raise ProfileError(
                f"{file}: got {op} twice in one step, from ranges named {names}, expected each pass once; try other "
                "`patterns`, or `step`"
            )
        told[op] = _Work(op, named.name, named.time)
    return list(told.values())


def _optimizer(trace: RankTrace, window: Interval, told: Sequence[_Work]) -> list[_Work]:
    """Return the optimizer steps after the passes; a step of several stages is divided later, by `_shared`."""
    if not told:
        return []
    stages = _stages(told)
    times = list(trace.optimizer_steps.within(Interval(told[-1].time.end_ns, max(told[-1].time.end_ns, window.end_ns))))
    if times and len(times) != len(stages):
        times = [Interval(times[0].start_ns, times[-1].end_ns)]
    return [_Work(Step(stage), "Optimizer.step", time) for stage, time in zip(stages, times, strict=False)]


def _shared(passes: Sequence[TimedPass], told: Sequence[_Work]) -> tuple[TimedPass, ...]:
    """Return the passes with a Step for every stage: the time of one optimizer of all stages is divided evenly."""
    stages, num_steps = _stages(told), len(passes) - len(told)
    if num_steps in (0, len(stages)):
        return tuple(passes)
    posted_ns, (start_ns, end_ns) = passes[-1].posted_ns, passes[-1].time
    bounds = [start_ns + (end_ns - start_ns) * number // len(stages) for number in range(len(stages) + 1)]
    steps = [
        TimedPass(Step(stage), passes[-1].name, posted_ns if stage == stages[0] else time.start_ns, time)
        for stage, time in zip(stages, starmap(Interval, pairwise(bounds)), strict=True)
    ]
    return (*passes[:-1], *steps)


def _stages(told: Iterable[_Work]) -> list[int]:
    return sorted({part.stage for work in told for part in computes(work.op)})


def _on_gpu(trace: RankTrace, works: Iterable[_Work]) -> list[TimedPass]:
    """Return each work at the time of the kernels that it launched."""
    passes: list[TimedPass] = []
    last_ns = None
    for op, name, host_time in works:
        time = trace.kernels.launched(host_time)
        if time is None:  # the pass launched no kernel, such as I of the first stage
            at_ns = host_time.start_ns if last_ns is None else last_ns
            time = Interval(at_ns, at_ns)
        passes.append(TimedPass(op, name, SINCE_EVER if last_ns is None else last_ns, time))
        last_ns = time.end_ns
    return passes


def _on_link(trace: RankTrace, messages: Iterable[NamedRange], kind: type[Send | Recv]) -> dict[Message, PostTimes]:
    """Return the messages with ranges of their own, at the time of the kernels launched in the range."""
    return {
        named.meaning.message: PostTimes(time.start_ns, time.start_ns, time.end_ns)
        for named in messages
        if isinstance(named.meaning, Send | Recv) and isinstance(named.meaning, kind)
        if (time := trace.kernels.launched(named.time, messages=True)) is not None
    }


def _on_host(
    works: Iterable[_Work], sends: Sequence[PostTimes], recvs: Sequence[PostTimes], calls: Sequence[Interval]
) -> list[TimedPass]:
    """Return each work without the wait at its start and the posts at its end.

    A rank has reached a pass when it has posted all messages before the pass. The rank then waits for the input of the
    pass, and in PyTorch's 1F1B for its own sends.
    """
    passes: list[TimedPass] = []
    for op, name, (reached_ns, end_ns) in works:
        start_ns = max([reached_ns, *(recv.end_ns for recv in recvs if reached_ns < recv.end_ns <= end_ns)])
        end_ns = min([end_ns, *(send.start_ns for send in sends if start_ns < send.start_ns < end_ns)])
        before_ns = passes[-1].time.end_ns if passes else SINCE_EVER
        done = [call.end_ns for call in calls if before_ns <= call.start_ns and call.end_ns <= start_ns]
        waits = (*sends, *recvs)
        if not passes or not waits or any(before_ns < wait.end_ns <= reached_ns for wait in waits):
            reached_ns = before_ns  # the rank waited before the range began, or may have waited
        passes.append(TimedPass(op, name, max([before_ns, reached_ns, *done]), Interval(start_ns, end_ns)))
    return passes


def _posts(posts: Iterable[Interval], waits: Iterable[Interval]) -> list[PostTimes]:
    """Return the times of each post: its call, and the end of its wait; gloo records the wait inside the call."""
    posted, waited = list(posts), list(waits)
    if len(posted) != len(waited):
        return [PostTimes(wait.start_ns, wait.start_ns, wait.end_ns) for wait in waited]
    return [PostTimes(*post, wait.end_ns) for post, wait in zip(posted, waited, strict=True)]


def _met(
    posts: Iterable[PostTimes], named: Sequence[NamedRange], passes: Sequence[TimedPass], kind: type[Send | Recv]
) -> dict[Message, PostTimes]:
    """Return the times of each message, which may consist of several tensors.

    A post belongs to the message of the range around it, else to the only output of the last pass before a Send, or to
    the only input of the next pass after a Recv.
    """
    posts_of: defaultdict[Message, list[PostTimes]] = defaultdict(list)
    starts, ends = ([timed.time[side] for timed in passes] for side in (0, 1))
    for post in posts:
        message = _around(post, named, kind)
        if message is None:
            place = bisect_right(ends, post.start_ns) - 1 if kind is Send else bisect_left(starts, post.end_ns)
            parts = computes(passes[place].op) if 0 <= place < len(passes) else ()
            if kind is Send:
                near = [made for part in parts if (made := gives(part)) is not None]
            else:  # with stage + 2 stages, every stage has a next one: a pass may need a message from either neighbour
                near = [needed for part in parts for needed in needs_from_others(part, part.stage + 2)]
            message = near[0] if len(near) == 1 else None
        if message is not None:
            posts_of[message].append(post)
    columns = {message: tuple(zip(*parts, strict=True)) for message, parts in posts_of.items()}
    return {
        message: PostTimes(min(starts), max(posted), max(ends)) for message, (starts, posted, ends) in columns.items()
    }


def _around(post: PostTimes, named: Sequence[NamedRange], kind: type[Send | Recv]) -> Message | None:
    """Return the message of the range in which `post` begins, or None."""
    place = bisect_right(named, post.start_ns, key=lambda named_range: named_range.time.start_ns) - 1
    if place < 0 or post.start_ns >= named[place].time.end_ns:
        return None
    op = named[place].meaning
    return op.message if isinstance(op, Send | Recv) and isinstance(op, kind) else None
