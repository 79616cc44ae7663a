"""The reasons for a plan, in a few lines: the loss of each of its nearest neighbours.

A neighbour differs from the plan in one attribute. It has the best bound of all candidates that differ in this
attribute. If the attribute is depth or schedule, the micro-batches may differ too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from operator import attrgetter

from pipesched.simulator import SAME
from pipesched.simulator.analysis import readable_change, readable_change_s
from pipesched.simulator.planner.candidate_evaluation import num_ops
from pipesched.simulator.planner.plan_judge import PlanJudge
from pipesched.simulator.planner.plan_search import PlanRanking
from pipesched.simulator.planner.request import Request
from pipesched.simulator.search import Outcome, Setting, TimeParts

_MOST = 4
_MOST_OPS = 30_000
"""The most ops that are predicted for a line."""

_NAMES = {
    "work_s": "work",
    "recompute_s": "recomputation",
    "transfer_s": "waiting for messages",
    "reduce_s": "waiting for sums of gradients",
    "bubble_s": "waiting for other ranks",
}
_SMALL = 0.1
"""The least share of the difference that is named."""


_LAYOUT = ("num_ranks", "width")
_RESPECTS: tuple[tuple[tuple[str, ...], tuple[str, ...], Callable[[Setting], str]], ...] = (
    (
        ("placement",),
        (*_LAYOUT, "named_schedule", "num_microbatches", "recomputes", "compression"),
        lambda c: "data inside the node" if c.placement == "data" else "a pipeline inside the node",
    ),
    (
        _LAYOUT,
        ("compression",),
        lambda c: f"{c.num_ranks} x {c.width} ({c.named_schedule}, M={c.num_microbatches})",
    ),
    (
        ("named_schedule",),
        (*_LAYOUT, "placement", "compression"),
        lambda c: f"{c.named_schedule} (M={c.num_microbatches})",
    ),
    (
        ("num_microbatches",),
        (*_LAYOUT, "named_schedule", "placement", "recomputes", "compression"),
        lambda c: f"M={c.num_microbatches}",
    ),
    (
        ("recomputes",),
        (*_LAYOUT, "named_schedule", "placement", "num_microbatches", "compression"),
        lambda c: "with recomputation" if c.recomputes else "without recomputation",
    ),
    (
        ("compression",),
        (*_LAYOUT, "named_schedule", "placement", "num_microbatches", "recomputes"),
        lambda c: "messages in half precision" if c.compression else "messages as they are",
    ),
)
"""The attributes in which candidates differ, the attributes that they must share, and the name of the difference."""


def reasons(ranking: PlanRanking, request: Request) -> Iterator[str]:
    """Yield at most four lines on the loss of the best plan's neighbours; slow predictions are replaced by bounds.

    After an interrupted search all unknown losses are given by bounds.
    """
    chosen = ranking.ranked[0]
    outcomes = (*ranking.rejected, *ranking.ranked)
    known = {outcome.setting: outcome for outcome in outcomes if outcome.seconds is not None or not outcome.held_bytes}
    judge = PlanJudge(request)
    in_order = sorted(
        (_seconds_per_sample(known[other]) if other in known else least_s, index, other)
        for index, (least_s, other) in enumerate(ranking.considered)
    )
    candidate, said = chosen.setting, 0
    for differing, shared, name_of in _RESPECTS:
        of, rest = attrgetter(*differing), attrgetter(*shared)
        near = (
            (least_s, other)
            for least_s, _, other in in_order
            if of(other) != of(candidate)
            and rest(other) == rest(candidate)
            and not _is_hopeless(known.get(other), chosen)
        )
        least_s, other = next(near, (0.0, None))
        if other is None or said == _MOST:
            continue
        outcome = known.get(other)
        if not ranking.is_interrupted:  # else somebody waits for the answer
            outcome = _looked_at(other, outcome, judge)
        line = _loss(chosen, outcome) if outcome is not None else _least_loss(chosen, least_s)
        if line is not None:
            said += 1
            yield f"{name_of(other)}: {line}"


def _looked_at(candidate: Setting, known: Outcome | None, judge: PlanJudge) -> Outcome | None:
    """Return a candidate's outcome with the parts of its time, or None if unknown and slow to predict."""
    if known is None and num_ops(candidate) >= _MOST_OPS:
        return None
    return judge.detailed(known or judge.weigh(candidate))


def _is_hopeless(outcome: Outcome | None, chosen: Outcome) -> bool:
    """Whether an outcome does not fit and is not faster than `chosen`, or cannot be predicted at all."""
    return outcome is not None and not outcome.fits and outcome.throughput < chosen.throughput


def _seconds_per_sample(outcome: Outcome) -> float:
    return 1 / outcome.throughput if outcome.throughput else math.inf


def _least_loss(chosen: Outcome, least_s: float) -> str | None:
    share = least_s * chosen.throughput - 1
    return f"at least {share:+.1%}" if share > 0 else None


def _loss(chosen: Outcome, other: Outcome) -> str | None:
    """Return the text of the loss, or None if it is unknown."""
    if chosen.seconds is None or other.seconds is None:
        return None
    share = chosen.samples / other.samples
    change_s = other.seconds * share - chosen.seconds
    change_s = 0.0 if abs(change_s) <= SAME * chosen.seconds else change_s
    changes = [] if chosen.parts is None or other.parts is None else _changes(chosen.parts, other.parts, share)
    parts = sorted(changes, key=lambda part: -part[1] if change_s > 0 else part[1])
    told = [
        f"{what} {readable_change_s(s)}"
        for what, s in parts[:2]
        if s * change_s > 0 and abs(s) > _SMALL * abs(change_s)
    ]
    text = f"{readable_change_s(change_s)} per step ({readable_change(change_s / chosen.seconds)})"
    text += f": {', '.join(told)}" if told else ""
    return text if other.fits else f"{text}, but it does not fit: {other.reason}"


def _changes(parts: TimeParts, other: TimeParts, share: float) -> Iterator[tuple[str, float]]:
    for field, name in _NAMES.items():
        yield name, getattr(other, field) * share - getattr(parts, field)
