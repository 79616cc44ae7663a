"""The planner's result, printed for people and written for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pipesched.cli.byte_sizes import enough
from pipesched.cli.errors import in_flags
from pipesched.cli.terminal import num_bytes, percent, print_lines, print_table, seconds
from pipesched.workflows import with_equal_devices

if TYPE_CHECKING:
    from pipesched.questions import PlanSettings
    from pipesched.schedules import Timeline
    from pipesched.simulator.planner import PlanOutcome, PlanRanking, Request
    from pipesched.workflows.planning import PlanSearch

_MOST_REJECTED = 5
_TELLING = {"recompute": "M x size", "in a node": "memory"}
"""Columns that come early if plans differ in them, each with the column before it."""
_AMOUNTS = ("depth x width", "per step", "memory", "samples/s", "samples", "staleness")
"""Columns that merged plans share: the layout, and its results."""
_CHOSEN = ("schedule", "M x size", "recompute", "messages", "in a node", "partition")
"""Columns in which merged plans may differ."""
_MOST_STAYS = 24
"""The most stays of the critical path that are printed; the middle of a longer path is left out."""


def print_plans(ranking: PlanRanking, request: Request, notes: Sequence[str]) -> None:
    """Print the ranking, notes, the reasons, and the rejected plans."""
    lines = [f"  {line}" for line in _told_reasons(ranking, request)]
    instead = ["instead of the first:", *lines] if lines else []
    rows, ties = _ties_in_one(_table(ranking, request))
    print_table(
        f"{request.profile.model}, {request.batch_size} samples per batch, {len(request.cluster.devices)} devices",
        rows,
        "\n".join([*ties, _effort(ranking), *notes, *instead]),
    )
    if ranking.rejected:
        _print_rejected(ranking.rejected)


def exportable(result: PlanSearch) -> list[str]:
    """Return a line with the numbers of the plans that each trainer can run."""
    from pipesched.workflows.planning import number_ranges

    parts = [f"{trainer} {number_ranges(numbers) or 'none'}" for trainer, numbers in result.trainers.items()]
    return [f"plans that each trainer can run (--export): {'; '.join(parts)}"]


def untried(request: Request, asked: PlanSettings) -> list[str]:
    """Return a line on untried schedules if none was named, or nothing."""
    if asked.schedules is not None:
        return []
    from pipesched.workflows.planning import untried_schedules

    others = ", ".join(untried_schedules(request.schedules, asked.asynchronous))
    stale = "" if asked.asynchronous else "; --asynchronous tries what trains on stale weights"
    return [f"not tried unless named, as -s 1f1b,zbv: {others}{stale}"]


def page_of_plans(result: PlanSearch, notes: Sequence[str]) -> str:
    """Return the page of a search, with the lines that are printed."""
    ranking, request = result.ranking, result.request
    rejected = [f"rejected, {what}: {len(group)}" for what, group in _by_reason(ranking.rejected).items()]
    reasons = [f"instead of the first: {line}" for line in _told_reasons(ranking, request)]
    rows, ties = _ties_in_one(_table(ranking, request))
    return result.page(rows, "\n".join([*ties, _effort(ranking), *notes, *exportable(result), *reasons, *rejected]))


def _row(outcome: PlanOutcome) -> dict[str, str]:
    candidate, costs = outcome.candidate, outcome.costs
    total_s = outcome.seconds or 0.0
    return {
        "depth x width": f"{candidate.depth} x {candidate.width}",
        "schedule": candidate.named_schedule,
        "M x size": f"{candidate.num_microbatches} x {candidate.microbatch_size}",
        "per step": seconds(total_s),
        "memory": num_bytes(outcome.most_bytes or None),  # of costs without bytes nothing is known
        "samples/s": f"{outcome.throughput:.4g}",
        "recompute": "yes" if candidate.recomputes else "no",
        "messages": candidate.compression or "whole",
        "partition": short_partition(candidate.partition),
        "in a node": "-" if 1 in (candidate.depth, candidate.width) else candidate.placement,
        "samples": str(outcome.samples),
        "bubble_fraction": percent(outcome.bubble_fraction),
        "steady / micro-batch": _told(outcome.steady_s_per_microbatch, seconds),
        "steady_bubble_fraction": _told(outcome.steady_bubble_fraction, percent),
        "waits for messages": "-" if costs is None else seconds(costs.transfer_s),
        "for reductions": "-" if costs is None else seconds(costs.reduce_s),
        "sent": num_bytes(outcome.sent_bytes or None),
        "staleness": str(outcome.staleness),
    }


def _told(value: float | None, show: Callable[[float], str]) -> str:
    return "-" if value is None else show(value)


def short_partition(partition: Sequence[int]) -> str:
    """Return ``3,3,4``, with ``6x3`` for six equal stages in a row."""
    runs = [(layers, len(list(group))) for layers, group in groupby(partition)]
    return ",".join(str(layers) if count == 1 else f"{count}x{layers}" for layers, count in runs)


def _table(ranking: PlanRanking, request: Request) -> list[dict[str, str]]:
    """Return a row per plan, with distinguishing columns early and usual values left out."""
    rows = [{"": str(number), **_row(outcome)} for number, outcome in enumerate(ranking.ranked, 1)]
    usual = {
        "samples": str(request.batch_size),
        "recompute": "no",
        "messages": "whole",
        "staleness": "0",
        "bubble_fraction": "-",
        "steady / micro-batch": "-",
        "steady_bubble_fraction": "-",
        "waits for messages": "0 s",
        "for reductions": "0 s",
    }
    dull = {name for name, value in usual.items() if all(row[name] in (value, "-") for row in rows)}
    names = [name for name in rows[0] if name not in dull] if rows else []
    for name, before in _TELLING.items():
        if name in names and len({row[name] for row in rows}) > 1:
            names.remove(name)
            names.insert(names.index(before) + 1, name)
    return [{name: row[name] for name in names} for row in rows]


def _ties_in_one(rows: Sequence[dict[str, str]]) -> tuple[list[dict[str, str]], list[str]]:
    """Return the rows, with plans of equal results merged into the first, and a line on their differences."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in _AMOUNTS if name in row), []).append(row)
    folded, lines = [], []
    for first, *others in groups.values():
        if not others:
            folded.append(first)
            continue
        alike = [first, *others]
        numbers = [int(row[""]) for row in alike]
        is_row = numbers == [*range(numbers[0], numbers[-1] + 1)]
        named = f"{numbers[0]}-{numbers[-1]}" if is_row else ", ".join(map(str, numbers))
        folded.append({**first, "": named})
        values = {name: dict.fromkeys(row[name] for row in alike) for name in _CHOSEN if name in first}
        differing = "; ".join(f"{name}: {', '.join(cells)}" for name, cells in values.items() if len(cells) > 1)
        lines.append(f"{named}: {len(alike)} plans of the same time and memory, the first is shown; {differing}")
    return folded, lines


def _effort(ranking: PlanRanking) -> str:
    from pipesched.simulator.planner import PROOF

    text = f"{len(ranking.considered)} candidates, {ranking.num_predicted} predicted in full; "
    if ranking.is_complete:
        return text + PROOF
    if ranking.headroom > 0:
        return text + f"stopped with the best so far, than which another may be {ranking.headroom:.1%} faster"
    return text + "stopped: the first is the best, between the others may be more"


def _print_rejected(rejected: Sequence[PlanOutcome]) -> None:
    """Print the rejections: each kind of reason once, with the candidate that is nearest to fitting."""
    from pipesched.simulator.analysis import readable_reason

    rows = []
    for what, group in _by_reason(rejected).items():
        nearest = min(group, key=lambda outcome: outcome.most_bytes)
        rows.append(
            {
                "rejected": str(len(group)),
                "why": what,
                "the nearest": str(nearest.candidate),
                "because": in_flags(readable_reason(nearest.reason)),
            }
        )
    print_table("", rows[:_MOST_REJECTED])


def _by_reason(rejected: Sequence[PlanOutcome]) -> dict[str, list[PlanOutcome]]:
    groups: dict[str, list[PlanOutcome]] = {}
    for outcome in rejected:
        reason = outcome.reason or ""
        groups.setdefault("over memory" if reason.startswith("over memory") else "cannot be predicted", []).append(
            outcome
        )
    return groups


def nothing_fits(ranking: PlanRanking, request: Request) -> str:
    """Return a line on the plan that would fit with more memory."""
    from pipesched.simulator.search import least

    nearest = least(ranking.rejected)
    if nearest is None:
        return in_flags(f"plan: nothing can be predicted; the first: {ranking.rejected[0].reason}")
    limits = [device.memory_bytes for device in request.cluster.devices if device.memory_bytes is not None]
    needed = f"{nearest.most_bytes} bytes ({num_bytes(nearest.most_bytes)})"
    return (
        f"plan: nothing fits into {num_bytes(min(limits))}: the nearest is {nearest.candidate}, which needs {needed} "
        f"and would do {nearest.throughput:.4g} samples/s; try --memory-limit {enough(nearest.most_bytes)}, "
        "more devices or a smaller batch"
    )


def plans_to_dict(result: PlanSearch) -> dict[str, Any]:
    """Return plain data."""
    ranking, request = result.ranking, result.request
    return {
        "model": request.profile.model,
        "batch_size": request.batch_size,
        "num_devices": len(request.cluster.devices),
        "candidates": len(ranking.considered),
        "predicted": ranking.num_predicted,
        "complete": ranking.is_complete,
        "headroom": ranking.headroom if ranking.ranked else None,
        "plans": [_data(outcome) for outcome in ranking.ranked],
        "trainers": result.trainers,
        "reasons": list(_reasons(ranking, request)) if ranking.ranked else [],
        "rejected": dict(Counter({what: len(group) for what, group in _by_reason(ranking.rejected).items()})),
    }


def _data(outcome: PlanOutcome) -> dict[str, Any]:
    return {**asdict(outcome), "throughput": outcome.throughput, "most_bytes": outcome.most_bytes}


def _reasons(ranking: PlanRanking, request: Request) -> list[str]:
    from pipesched.simulator.planner import reasons

    return list(reasons(ranking, request))


def _told_reasons(ranking: PlanRanking, request: Request) -> list[str]:
    from pipesched.simulator.analysis import readable_reason

    return list(map(readable_reason, _reasons(ranking, request)))


def explained(outcome: PlanOutcome, request: Request) -> dict[str, Any]:
    """Return, as plain data, why each device idles, and the critical path."""
    from pipesched.simulator.analysis import critical_path, shares, usage

    timeline, steps = _timeline(outcome, request)
    path = critical_path(timeline)
    return {
        "explained_steps": steps,
        "makespan_s": timeline.makespan_s,
        "devices": [
            {"device": use.device, "busy_s": use.busy_s, "idle_by_cause_s": dict(use.idle_by_cause_s)}
            for use in usage(timeline)
        ],
        "critical_path_shares_s": {kind.value: share for kind, share in shares(path).items()},
        "critical_path": [
            {
                "kind": piece.kind.value,
                "where": piece.place,
                "op": str(piece.span.op),
                "start_s": piece.start_s,
                "end_s": piece.end_s,
            }
            for piece in path
        ],
    }


def print_explained(outcome: PlanOutcome, request: Request) -> None:
    """Print the same for people."""
    from pipesched.simulator.analysis import critical_path, readable_path, shares, usage

    timeline, steps = _timeline(outcome, request)
    rows = []
    for use in usage(timeline):
        causes = {cause: seconds(idle_s) for cause, idle_s in use.idle_by_cause_s}
        rows.append({"device": str(use.device), "busy": seconds(use.busy_s), "idle": seconds(use.idle_s), **causes})
    used = [name for name in rows[0] if any(row[name] != "0 s" for row in rows)]
    what = f"{outcome.candidate}: where the time of {'a batch' if steps == 1 else f'{steps} steps'} goes"
    print_table(what, with_equal_devices({name: row[name] for name in used} for row in rows))
    path = critical_path(timeline)
    total_s = timeline.makespan_s
    parts = ", ".join(f"{kind} {seconds(share)} ({share / total_s:.1%})" for kind, share in shares(path).items())
    stays = readable_path(path)
    if len(stays) > _MOST_STAYS:
        half = _MOST_STAYS // 2
        stays = [*stays[:half], f".. {len(stays) - 2 * half} more ..", *stays[-half:]]
    print_lines([f"critical path of {seconds(total_s)}: {parts}", "  " + "; ".join(stays)])


def _timeline(outcome: PlanOutcome, request: Request) -> tuple[Timeline, int]:
    from pipesched.simulator.planner import predict_candidate, steps_of

    candidate, costs = outcome.candidate, request.cuts().costs_of(outcome.candidate)
    timeline = predict_candidate(candidate, costs, request.cluster, request.network).timeline
    assert timeline is not None, "of one pipeline there always is one"
    return timeline, steps_of(candidate)
