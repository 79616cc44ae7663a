"""Unnamed passes of a runtime, found by the profiler's arrows from forward ops to backward functions.

The profiler draws an arrow from each op of a forward pass to the function of its backward. The starts and ends of these
arrows, in order of time, are cut into runs where a message is posted, and where starts and ends alternate:

    F F F | F F F | b b b   F F F | b b b   b b b          | a message is posted
    run 0   run 1   to 0    run 2   to 1    to 2

The runs are the passes if the arrows of each run of starts end in one run of ends, and each run of ends belongs to one
run of starts. PyTorch's 1F1B fulfils this condition. Otherwise the passes are unknown, and reading fails.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pipesched.profiles import ProfileError
from pipesched.profiles.traces.range_patterns import PassName
from pipesched.profiles.traces.rank_trace import Interval, NamedRange, RankTrace
from pipesched.schedules.ops import Phase

_SHOWN_NAMES = 5
_LONGEST_NAME = 60


@dataclass(slots=True)
class _Run:
    """Starts of arrows, or ends of arrows, without a posted message between them.

    Attributes:
        phase: Forward for starts, backward for ends.
        first_ns: Time of the first start or end.
        last_ns: Time of the last start or end.
        until_ns: Time of the next run, or of the next posted message.
        arrows: Ids of the arrows.
    """

    phase: Phase
    first_ns: int
    last_ns: int
    until_ns: int
    arrows: set[int] = field(default_factory=set)


def unnamed_passes(trace: RankTrace, window: Interval) -> list[NamedRange]:
    """Return the forward and backward passes of a step, in order of time; the stage is the rank's only one.

    Raises:
        ProfileError: The passes are ambiguous.
    """
    runs = _runs(trace, window)
    forwards = [run for run in runs if run.phase is Phase.FORWARD]
    backwards = [run for run in runs if run.phase is Phase.BACKWARD]
    numbers = {frozenset(run.arrows): number for number, run in enumerate(forwards)}
    if not runs or len(forwards) != len(backwards) or {frozenset(run.arrows) for run in backwards} != numbers.keys():
        raise ProfileError(
            f"{trace.file}: got no range of a pass, and {len(forwards)} runs of forward ops with {len(backwards)} runs "
            "of backwards, expected one run of backwards for each run of forward ops; the trace has "
            f"{named_ranges(trace)}; try 'with pipesched.annotate(stage):' around the step, or `patterns`"
        )
    passes = []
    for run in runs:
        name = PassName(run.phase, None, numbers[frozenset(run.arrows)])
        passes.append(NamedRange(f"{run.phase.name.lower()} of autograd", name, _time(trace, run)))
    return passes


def named_ranges(trace: RankTrace) -> str:
    """Return the contents of a trace as text for a message: its passes, and the most frequent other names."""
    names = [f"{name[:_LONGEST_NAME]!a} {count} times" for name, count in trace.other_names.most_common(_SHOWN_NAMES)]
    more = len(trace.other_names) - len(names)
    text = ", ".join(names) + (f" and {more} more" if more > 0 else "")
    return f"{trace.num_slices} slices, {len(trace.ranges)} of them passes{f', {text}' if text else ''}"


def _runs(trace: RankTrace, window: Interval) -> list[_Run]:
    """Return the runs in order of time."""
    instants: list[tuple[int, Phase | None, int]] = []  # (time, phase of an arrow or None for a post, arrow)
    for arrow, start_ns in trace.flow_starts_ns.items():
        if arrow in trace.flow_ends_ns and window.start_ns <= start_ns < window.end_ns:
            instants.append((start_ns, Phase.FORWARD, arrow))
            instants.append((trace.flow_ends_ns[arrow], Phase.BACKWARD, arrow))
    for posts in (trace.send_posts, trace.recv_posts):
        instants += [(post.start_ns, None, -1) for post in posts.within(window)]
    runs: list[_Run] = []
    phase = None
    for at_ns, kind, arrow in sorted(instants, key=lambda instant: instant[0]):
        if runs and kind is not phase:
            runs[-1].until_ns = min(runs[-1].until_ns, at_ns)
        if kind is not None and kind is not phase:
            runs.append(_Run(kind, at_ns, at_ns, window.end_ns))
        if kind is not None:
            runs[-1].arrows.add(arrow)
            runs[-1].last_ns = at_ns
        phase = kind
    return runs


def _time(trace: RankTrace, run: _Run) -> Interval:
    """Return the interval of all ops of a run. A backward op may begin before the end of its arrow."""
    if run.phase is Phase.FORWARD:
        ops = list(trace.forward_ops.within(Interval(run.first_ns, run.last_ns + 1)))
    else:
        ops = [op for op in trace.backward_ops.within(Interval(0, run.until_ns)) if op.end_ns > run.first_ns]
    return Interval(min([run.first_ns, *(op.start_ns for op in ops)]), max([run.last_ns, *(op.end_ns for op in ops)]))
