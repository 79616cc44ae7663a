"""Read the traces of all ranks and make one Timeline of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pipesched.profiles import ProfileError
from pipesched.profiles.traces.autograd_passes import named_ranges, unnamed_passes
from pipesched.profiles.traces.imported_timeline import ImportedTimeline, imported_timeline
from pipesched.profiles.traces.kineto import read_kineto
from pipesched.profiles.traces.own_trace import is_own_trace, read_own_trace
from pipesched.profiles.traces.passes import RankPasses, rank_passes
from pipesched.profiles.traces.range_patterns import RangePatterns
from pipesched.profiles.traces.rank_trace import Interval, NamedRange, RankTrace
from pipesched.profiles.traces.step_choice import step_windows
from pipesched.schedules import Schedule, Step


def read_traces(
    paths: Sequence[Path],
    *,
    patterns: Sequence[str] = (),
    schedule: Schedule | None = None,
    step: int | None = None,
    has_one_clock: bool = False,
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
) -> ImportedTimeline:
    """Return the Timeline of one step.

    Args:
        paths: A trace of each rank; or one trace of ours, of all ranks.
        patterns: Which ranges are passes, as `RangePatterns` takes them; none: PyTorch's and ours.
        schedule: What the ranks did, where ranges do not say it: the k-th forward of a rank is the k-th of its list.
        step: Number of the step; None: the last that all ranks have whole.
        has_one_clock: The clocks of all ranks are one; else they are aligned by messages.
        progress: Told the fraction of all files that has been read.

    Raises:
        ProfileError: A file is no trace, they are not of all ranks of one pipeline, passes are missing, or the clocks
            cannot be aligned.
    """
    named = RangePatterns(patterns)
    if len(paths) == 1:
        if is_own_trace(paths[0]):
            return read_own_trace(paths[0], progress)
        raise ProfileError(f"{paths[0]}: got the trace of one rank, expected one of every rank; try all of them")
    traces = []
    for number, path in enumerate(paths):

        def tick(fraction: float, number: int = number) -> None:
            progress((number + fraction) / len(paths))

        traces.append(read_kineto(path, named, tick))
    traces = _in_order_of_rank(traces)
    if schedule is not None and schedule.num_ranks != len(traces):
        raise ProfileError(
            f"schedule {schedule.name}: got {schedule.num_ranks} ranks, expected {len(traces)}, as there are traces; "
            "try others of either"
        )
    lists = [None] * len(traces) if schedule is None else schedule.ops
    fault = None
    for number, windows in step_windows(traces, step).items():
        each_rank = enumerate(zip(traces, windows, lists, strict=True))
        try:
            ranks = [
                rank_passes(trace, _ranges(trace, window, are_named=bool(patterns)), window, rank, listed)
                for rank, (trace, window, listed) in each_rank
            ]
            return imported_timeline(_alike(ranks), step=number, has_one_clock=has_one_clock)
        except ProfileError as error:
            fault = fault or error
    assert fault is not None, "there is a step"
    raise fault


def _in_order_of_rank(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """Return the traces by the ranks that they say, or as they were given where they do not.

    Raises:
        ProfileError: Two are of one rank.
    """
    ranks = [trace.rank for trace in traces if trace.rank is not None]
    if len(ranks) < len(traces):
        return list(traces)
    rank, count = Counter(ranks).most_common(1)[0]
    if count > 1:
        files = " and ".join(trace.file for trace in traces if trace.rank == rank)
        raise ProfileError(f"{files}: got {count} traces of rank {rank}, expected one of each rank; try other files")
    return sorted(traces, key=lambda trace: -1 if trace.rank is None else trace.rank)


def _alike(ranks: Sequence[RankPasses]) -> list[RankPasses]:
    """Return what the ranks did, without optimizers unless all have theirs in the trace."""
    if all(any(isinstance(timed.op, Step) for timed in trace.passes) for trace in ranks):
        return list(ranks)
    return [
        replace(trace, passes=tuple(timed for timed in trace.passes if not isinstance(timed.op, Step)))
        for trace in ranks
    ]


def _ranges(trace: RankTrace, window: Interval, *, are_named: bool) -> list[NamedRange]:
    """Return the ranges of a step that mean something, or the passes that autograd tells."""
    ranges = [named for named in trace.ranges if window.start_ns <= named.time.start_ns < window.end_ns]
    if not ranges and (trace.ranges or are_named):
        raise ProfileError(
            f"{trace.file}: got no range of a pass in this step, expected some; what else is named is "
            f"{named_ranges(trace)}; try another `step`, or `patterns`"
        )
    return ranges or unnamed_passes(trace, window)
