"""Find the steps in traces: by marks of the profiler, or else by optimizer steps, repeated passes or flushes.

    rank 0   F0 F1 .. .. B0 B1 | F0 F1 .. .. B0 B1          micro-batch 0 comes again: a new step
    rank 1   .. F0 B0 F1 B1 .. | .. F0 B0 F1 B1 ..

    rank 0   F  F  .. .. B  B  | F  F  .. .. B  B           without numbers: a flush, where no rank has
    rank 1   .. F  B  F  B  .. | .. F  B  F  B  ..          an open forward, after two micro-batches

A flush of several micro-batches ends a step. Flushes after every micro-batch have two meanings: steps of one
micro-batch, or one step without overlap. A pause or the known schedule decides; otherwise the steps are ambiguous.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, starmap
from statistics import fmean

from pipesched.profiles import ProfileError
from pipesched.profiles.traces.passes import without_nested
from pipesched.profiles.traces.range_patterns import microbatch_of, renumbered
from pipesched.profiles.traces.rank_trace import Interval, NamedRange, RankTrace
from pipesched.schedules.ops import Op, Phase, Recv, computes

_PAUSE = 0.1
"""Least pause between two steps, as a share of a pass."""

_NO_PAUSE = 0.02
"""Longest pause between two passes of one step, as a share of a pass."""


@dataclass(frozen=True, slots=True)
class Pass:
    """A computing range, or one of the two passes in a range of an Overlap."""

    phase: Phase
    stage: int | None
    microbatch: int | None
    range: NamedRange


def passes_of(trace: RankTrace) -> list[Pass]:
    """Return the passes of a rank in order of time."""
    ranges = without_nested(named for named in trace.ranges if named.passes)
    return [Pass(part.phase, part.stage, part.microbatch, named) for named in ranges for part in named.passes]


def step_cuts(traces: Sequence[RankTrace], lists: Sequence[Sequence[Op] | None], *, is_chosen: bool) -> list[list[int]]:
    """Return the positions in `passes_of` of the passes that begin a new step, by rank, without the first step.

    Args:
        traces: The ranks.
        lists: Op list of each rank, if the schedule is known.
        is_chosen: Whether a user has requested a step; in doubt, each flush then ends a step.

    Raises:
        ProfileError: It is unknown whether the flushes of a trace are steps.
    """
    ranks = list(map(passes_of, traces))
    by_optimizer = list(map(_optimizer_cuts, ranks, traces))
    are_cut_by_optimizers = all(own is not None for own in by_optimizer)
    cuts = [
        sorted({*_restarts(own), *((stepped or ()) if are_cut_by_optimizers else ())})
        for own, stepped in zip(ranks, by_optimizer, strict=True)
    ]
    has_optimizers = are_cut_by_optimizers and all(map(_ends_with_optimizer, ranks, traces))
    if any(cuts) or (has_optimizers and not any(map(_is_counted, ranks))):
        return cuts
    if all(own is not None for own in lists):
        return [_whole_lists(own, listed or ()) for own, listed in zip(ranks, lists, strict=True)]
    if has_optimizers:
        return cuts
    return _flushes(traces, ranks, is_chosen=is_chosen)


def _is_counted(own: Sequence[Pass]) -> bool:
    return any(work.microbatch is None for work in own)


def _restarts(own: Sequence[Pass]) -> list[int]:
    """Return the positions of the passes at which the numbers of micro-batches start again, or a pass repeats."""
    cuts: list[int] = []
    seen: set[tuple[Phase, int | None, int]] = set()
    last: dict[int | None, int] = {}
    running = 0
    for place, work in enumerate(own):
        if work.microbatch is None:
            return []
        is_restart = work.phase is Phase.FORWARD and work.microbatch <= last.get(work.stage, -1) and running <= 0
        if is_restart or (work.phase, work.stage, work.microbatch) in seen:
            cuts.append(place)
            seen, last, running = set(), {}, 0
        seen.add((work.phase, work.stage, work.microbatch))
        last[work.stage] = max(work.microbatch, last.get(work.stage, -1))
        running += _change(work.phase)
    return cuts


def _change(phase: Phase) -> int:
    """Return the change of the number of open forwards by a pass."""
    return 1 if phase is Phase.FORWARD else -1 if phase in (Phase.BACKWARD, Phase.BACKWARD_INPUT) else 0


def _done(own: Sequence[Pass]) -> list[int]:
    """Return the places between passes at which the rank has no open forward and no missing W.

    If a trace begins in the middle of a step, it has more backwards than forwards.
    """
    levels, weights = [0], [0]
    for work in own:
        levels.append(levels[-1] + _change(work.phase))
        weights.append(weights[-1] + {Phase.BACKWARD_INPUT: 1, Phase.BACKWARD_WEIGHT: -1}.get(work.phase, 0))
    if not any(work.phase is Phase.BACKWARD_WEIGHT for work in own):
        weights = [0] * len(levels)
    least, least_weight = min(levels), min(weights)
    return [place for place in range(len(levels)) if (levels[place], weights[place]) == (least, least_weight)]


def _optimizer_cuts(own: Sequence[Pass], trace: RankTrace) -> set[int] | None:
    """Return the positions of passes after an optimizer step; None if an optimizer runs while a forward is open."""
    starts_ns = [work.range.time.start_ns for work in own]
    places = {sum(start_ns < at_ns for start_ns in starts_ns) for at_ns in set(trace.optimizer_steps.starts_ns)}
    return places - {0, len(own)} if places - {0, len(own)} <= set(_done(own)) else None


def _ends_with_optimizer(own: Sequence[Pass], trace: RankTrace) -> bool:
    """Return whether an optimizer runs after the last pass."""
    return bool(own) and max(trace.optimizer_steps.starts_ns, default=0) > own[-1].range.time.start_ns


def _whole_lists(own: Sequence[Pass], listed: Sequence[Op]) -> list[int]:
    """Return the places after one op list, two op lists, .. if no forward is open there, else nothing."""
    phases = {work.phase for work in own}
    size = sum(1 for op in listed for part in computes(op) if part.phase in phases)
    places = list(range(size, len(own), size)) if size else []
    return places if set(places) <= set(_done(own)) else []


def _flushes(traces: Sequence[RankTrace], ranks: Sequence[Sequence[Pass]], *, is_chosen: bool) -> list[list[int]]:
    """Return the places of each rank after which all ranks have completed the same micro-batches.

    Raises:
        ProfileError: It is ambiguous whether these places end steps, or which steps are the same on all ranks.
    """
    places = [_by_count(own) for own in ranks]
    if any(0 not in own for own in places):  # the traces begin in the middle of a step, even if counts show only one
        return _longest_pauses(traces, ranks)
    known = min(range(len(ranks)), key=lambda rank: len(places[rank]))
    totals = [sum(work.phase is Phase.FORWARD for work in own) for own in ranks]
    shared = [places[known]] if len(set(totals)) > 1 else places
    inner = [
        count
        for count in sorted(set.intersection(*map(set, shared)))
        if count > 0 and places[known][count] < len(ranks[known])
    ]
    sizes = {after - before for before, after in pairwise([0, *inner, totals[known]])}
    if inner and sizes == {1} and not is_chosen:
        inner = _of_single_microbatches(traces[known], ranks[known], places[known], inner)
    elif not is_chosen and _share_stages(ranks):
        inner = []
    cuts = [[own[count] for count in inner] for own in shared]
    if len(set(totals)) > 1:
        times = _times(traces[known], ranks[known], cuts[0])
        cuts = [
            _at_the_same_time(trace, own, by_count, inner, times)
            for trace, own, by_count in zip(traces, ranks, places, strict=True)
        ]
    return cuts


def _share_stages(ranks: Sequence[Sequence[Pass]]) -> bool:
    """Return whether ranks have a stage in common, as in GEMS, which flushes within a step."""
    stages = [{work.stage for work in own} - {None} for own in ranks]
    return sum(map(len, stages)) > len(set[int | None]().union(*stages))


def _times(trace: RankTrace, own: Sequence[Pass], cuts: Iterable[int]) -> list[Interval]:
    """Return the time of each step, from its first to its last pass [ns since 1970]."""
    steps = [own[first:last] for first, last in pairwise([0, *cuts, len(own)])]
    return [
        Interval(trace.base_ns + step[0].range.time.start_ns, trace.base_ns + step[-1].range.time.end_ns)
        if step
        else Interval(0, 0)
        for step in steps
    ]


def _at_the_same_time(
    trace: RankTrace, own: Sequence[Pass], by_count: Mapping[int, int], inner: Sequence[int], known: Sequence[Interval]
) -> list[int]:
    """Return the cuts of a rank whose number of steps differs from another rank with steps at known times.

    Raises:
        ProfileError: The clocks do not show which steps are the same.
    """
    overlaps_ns: dict[tuple[int, ...], int] = {}
    for begun, before in enumerate([0, *inner]):
        counts = [count - before for count in inner if count > before]
        if all(count in by_count for count in counts if count <= max(by_count)):
            cuts = tuple(by_count[count] for count in counts if by_count.get(count, len(own)) < len(own))
            steps = enumerate(_times(trace, own, cuts), begun)
            right_ns = sum(
                step.overlap_ns(other) * (1 if number == place else -1)
                for place, step in steps
                for number, other in enumerate(known)
            )
            overlaps_ns[cuts] = max(overlaps_ns.get(cuts, 0), right_ns)
    best, *others = sorted(overlaps_ns, key=lambda cuts: -overlaps_ns[cuts]) or [()]
    if overlaps_ns.get(best, 0) <= 2 * max((overlaps_ns[cuts] for cuts in others), default=0):
        raise ProfileError(
            f"{trace.file}: got another number of passes than on other ranks, expected the same number, or clocks "
            "by which the steps can be matched; try traces with profiler.step() after each step"
        )
    return list(best)


def _by_count(own: Sequence[Pass]) -> dict[int, int]:
    """Return the places without an open forward, by the number of forwards of each stage before the place."""
    done, by_count, counts = set(_done(own)), {}, dict.fromkeys({work.stage for work in own}, 0)
    for place in range(len(own) + 1):
        if place in done and len(set(counts.values())) == 1:
            by_count[next(iter(counts.values()))] = place
        if place < len(own) and own[place].phase is Phase.FORWARD:
            counts[own[place].stage] += 1
    return by_count


def _of_single_microbatches(
    trace: RankTrace, own: Sequence[Pass], places: Mapping[int, int], inner: Sequence[int]
) -> list[int]:
    """Return the flushes that end steps, on a rank that runs one micro-batch after the other.

    Raises:
        ProfileError: Steps of one micro-batch look the same as one step without overlap.
    """
    usual_ns = fmean(work.range.time.end_ns - work.range.time.start_ns for work in own)
    pauses = {count: _pause_ns(own, places[count]) / usual_ns for count in inner}
    long = [count for count, pause in pauses.items() if pause >= _PAUSE]
    is_clear = all(pause >= _PAUSE or pause <= _NO_PAUSE for pause in pauses.values())
    if is_clear and 0 < len(long) < len(pauses):
        return long
    if not _is_counted(own) and (trace.family is not None or (is_clear and not long)):
        return []  # the numbers in the names continue within one step
    raise ProfileError(
        f"{trace.file}: got a flush after every micro-batch, {len(inner)} times or more, expected names or optimizer "
        "steps that show the steps; try `step` if each flush is a step, or `schedule` if all are one step"
    )


def _pause_ns(own: Sequence[Pass], place: int) -> int:
    return own[place].range.time.start_ns - own[place - 1].range.time.end_ns


def _longest_pauses(traces: Sequence[RankTrace], ranks: Sequence[Sequence[Pass]]) -> list[list[int]]:
    """Return the cuts of traces that begin in the middle of a step: as many on each rank, at its longest pauses.

    Raises:
        ProfileError: The steps between the cuts have different numbers of passes on different ranks.
    """
    candidates = [[place for place in _done(own) if 0 < place < len(own)] for own in ranks]
    count = min(map(len, candidates))
    cuts = [
        sorted(sorted(places, key=lambda place, own=own: -_pause_ns(own, place))[:count])  # type: ignore[misc]
        for places, own in zip(candidates, ranks, strict=True)
    ]
    sizes = {tuple(after - before for before, after in pairwise(own)) for own in cuts}
    if len(sizes) > 1 or not count:
        raise ProfileError(
            f"{traces[0].file}: got traces that begin in the middle of a step, expected names or optimizer steps that "
            "show the beginning of the next step; try traces with profiler.step() after each step"
        )
    return cuts


RankWindows = Sequence[Interval]
"""The time of one step on each rank."""

EVER = Interval(-(2**63), 2**63 - 1)
_SHOWN_STEPS = 6


def step_windows(
    traces: Sequence[RankTrace], step: int | None, lists: Sequence[Sequence[Op] | None], *, has_one_clock: bool
) -> Mapping[int, RankWindows]:
    """Return the steps that all traces have, by number, the last step first.

    These are the profiler's own steps (``ProfilerStep#7``) if a trace has them, else the steps of `step_cuts`, numbered
    from 0.

    Raises:
        ProfileError: The traces have no step in common, or lack the requested one.
    """
    if any(trace.steps for trace in traces):
        windows = [trace.steps for trace in traces]
    else:
        cuts = step_cuts(traces, lists, is_chosen=step is not None)
        windows = _numbered(traces, cuts, has_one_clock=has_one_clock)
    common = set.intersection(*map(set, windows))
    if step is not None:
        for trace, own in zip(traces, windows, strict=True):
            if step not in own:
                raise ProfileError(f"{trace.file}: step: got {step}, expected a step of this trace: {_list(own)}")
        common = {step}
    if not common:
        other = min(range(len(traces)), key=lambda place: windows[place].keys() >= windows[0].keys())
        got = f"step {_list(windows[other])}" if windows[other] else "no step of the profiler"
        raise ProfileError(
            f"{traces[other].file}: got {got}, expected a step that all traces have: {traces[0].file} has "
            f"{_list(windows[0])}; try traces of the same steps"
        )
    return {number: [own[number] for own in windows] for number in sorted(common, reverse=True)}


def from_zero(
    traces: Sequence[RankTrace], windows: RankWindows, ranges: Sequence[Sequence[NamedRange]]
) -> list[Sequence[NamedRange]]:
    """Return the ranges of a step with micro-batches from 0, if their numbers continue from the step before."""
    first = min(_microbatches(ranges), default=0)
    before = [
        [named for named in trace.ranges if named.time.start_ns < window.start_ns]
        for trace, window in zip(traces, windows, strict=True)
    ]
    if max(_microbatches(before), default=-1) != first - 1:
        return list(ranges)
    return [[replace(named, meaning=renumbered(named.meaning, first)) for named in own] for own in ranges]


def _microbatches(ranges: Sequence[Sequence[NamedRange]]) -> set[int]:
    return {number for own in ranges for named in own if (number := microbatch_of(named.meaning)) is not None}


def _windows(trace: RankTrace, cuts: Sequence[int]) -> list[Interval]:
    """Return the time of each step: it begins with its first pass, or with the receive of the input of this pass."""
    passes = passes_of(trace) if cuts else []
    recvs_ns = [*trace.recv_posts.starts_ns, *(r.time.start_ns for r in trace.ranges if isinstance(r.meaning, Recv))]
    starts_ns = []
    for place in cuts:
        last_ns, first_ns = passes[place - 1].range.time.end_ns, passes[place].range.time.start_ns
        starts_ns.append(min((at_ns for at_ns in recvs_ns if last_ns <= at_ns < first_ns), default=first_ns))
    return list(starmap(Interval, pairwise([EVER.start_ns, *starts_ns, EVER.end_ns])))


def _numbered(
    traces: Sequence[RankTrace], cuts: Sequence[Sequence[int]], *, has_one_clock: bool
) -> list[dict[int, Interval]]:
    """Return the steps by number; steps that ran at the same time get one number if the clocks show them.

    Raises:
        ProfileError: The clocks do not show which steps are the same.
    """
    windows, shifts = list(map(_windows, traces, cuts)), [0] * len(traces)
    if has_one_clock or len(set(map(len, windows))) > 1:
        times = list(map(_times, traces, map(passes_of, traces), cuts))
        for place, own in enumerate(times):
            overlaps_ns = _overlaps_ns(times[0], own)
            best, *others = sorted(overlaps_ns, key=lambda shift, known=overlaps_ns: -known[shift])  # type: ignore[misc]
            if overlaps_ns[best] > 2 * max((overlaps_ns[shift] for shift in others), default=0):
                shifts[place] = best
            elif len(own) != len(times[0]):
                raise ProfileError(
                    f"{traces[place].file}: got {len(own)} steps, and {len(times[0])} in {traces[0].file}, expected "
                    "equal numbers, or clocks that show the same steps; try profiler.step() after each step"
                )
    return [
        {number - shift: window for number, window in enumerate(own)}
        for own, shift in zip(windows, shifts, strict=True)
    ]


def _overlaps_ns(first: Sequence[Interval], second: Sequence[Interval]) -> dict[int, int]:
    """Return the overlap of the steps of two ranks [ns], by the difference of their numbers."""
    return {
        shift: sum(
            time.overlap_ns(second[at + shift]) for at, time in enumerate(first) if 0 <= at + shift < len(second)
        )
        for shift in range(1 - len(first), len(second))
    }


def _list(steps: Collection[int]) -> str:
    """Return the newest steps as text for a message, the newest first."""
    shown = sorted(steps, reverse=True)
    text = ", ".join(map(str, shown[:_SHOWN_STEPS])) or "none"
    return f"{text} and {len(shown) - _SHOWN_STEPS} more" if len(shown) > _SHOWN_STEPS else text
