"""The best plan explained for people and programs: idle time, the critical path, and memory that is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipesched.cli.errors import in_flags
from pipesched.cli.options.values import enough
from pipesched.cli.terminal import print_lines, print_table
from pipesched.simulator.analysis import readable_bytes, readable_s
from pipesched.workflows import Table, with_equal_devices

if TYPE_CHECKING:
    from pipesched.simulator.planner import PlanRanking, Request
    from pipesched.simulator.search import Outcome

_MOST_STAYS = 24
"""The most stays of the critical path that are printed; the middle of a longer path is left out."""


def nothing_fits(ranking: PlanRanking, request: Request) -> str:
    """Return a line on the plan that would fit with more memory."""
    from pipesched.simulator.search import least

    nearest = least(ranking.rejected)
    if nearest is None:
        return in_flags(f"plan: no candidate can be predicted; the reason of the first: {ranking.rejected[0].reason}")
    limits = [device.memory_bytes for device in request.cluster.devices if device.memory_bytes is not None]
    needed = f"{nearest.held_bytes} bytes ({readable_bytes(nearest.held_bytes)})"
    return (
        f"plan: nothing fits into {readable_bytes(min(limits))}: the nearest is {nearest.setting}, which needs "
        f"{needed} and would reach {nearest.throughput:.4g} samples/s; try --memory-limit "
        f"{enough(nearest.held_bytes or 0)}, or more devices"
    )


def explained(outcome: Outcome, request: Request) -> dict[str, Any]:
    """Return, as plain data, why each device idles, and the critical path."""
    from pipesched.simulator.analysis import critical_path, shares, usage
    from pipesched.simulator.planner import steps_of, timeline_of

    timeline, steps = timeline_of(outcome.setting, request), steps_of(outcome.setting)
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


def print_explained(outcome: Outcome, request: Request) -> None:
    """Print where the time of a plan goes: idle time by cause, and the critical path."""
    from pipesched.simulator.analysis import critical_path, readable_path, shares, usage
    from pipesched.simulator.planner import steps_of, timeline_of

    timeline, steps = timeline_of(outcome.setting, request), steps_of(outcome.setting)
    rows = []
    for use in usage(timeline):
        causes = {cause: readable_s(idle_s) for cause, idle_s in use.idle_by_cause_s}
        rows.append(
            {"device": str(use.device), "busy": readable_s(use.busy_s), "idle": readable_s(use.idle_s), **causes}
        )
    used = [name for name in rows[0] if any(row[name] != "0 s" for row in rows)]
    what = f"{outcome.setting}: where the time of {'a batch' if steps == 1 else f'{steps} steps'} goes"
    print_table(Table(what, with_equal_devices({name: row[name] for name in used} for row in rows)))
    path = critical_path(timeline)
    total_s = timeline.makespan_s
    parts = ", ".join(f"{kind} {readable_s(share)} ({share / total_s:.1%})" for kind, share in shares(path).items())
    stays = readable_path(path)
    if len(stays) > _MOST_STAYS:
        half = _MOST_STAYS // 2
        stays = [*stays[:half], f".. {len(stays) - 2 * half} more ..", *stays[-half:]]
    print_lines([f"critical path of {readable_s(total_s)}: {parts}", "  " + "; ".join(stays)])
