"""Fig. 2, 3, 4, 8 and 9: idle time and weight versions of small timelines, B twice as long as F."""

from __future__ import annotations

from paper_rows.figure import Outcome, verdict_of
from pipesched import Schedule, build, simulate, uniform
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules.weights import live_versions

_WORKERS = 4
_WITHIN = 0.01


def _idle(schedule: Schedule, costs: StageCosts) -> float:
    return simulate(schedule, costs).bubble_fraction


def _outcome(published: float, result: float, what: str) -> Outcome:
    return Outcome(f"{published:.1%} {what}", f"{result:.1%}", verdict_of([result], [published], _WITHIN))


def repeat_naive() -> Outcome:
    """Simulate model parallelism: one mini-batch at a time."""
    busy = 1 - _idle(build("naive", _WORKERS, 3), uniform(_WORKERS, forward_s=1, backward_s=2))
    return _outcome(1 / _WORKERS, busy, "busy")


def repeat_flushes() -> Outcome:
    """Simulate one flush of GPipe."""
    idle = _idle(build("gpipe", _WORKERS, _WORKERS), uniform(_WORKERS, forward_s=1, backward_s=2))
    return _outcome((_WORKERS - 1) / (2 * _WORKERS - 1), idle, "idle")


def repeat_steady() -> Outcome:
    """Simulate PipeDream in steady state."""
    result = simulate(build("pipedream", _WORKERS, 12), uniform(_WORKERS, forward_s=1, backward_s=2))
    return _of_pace(result.steady_bubble_fraction)


def repeat_replicas() -> Outcome:
    """Simulate 1F1B-RR with two replicas of a stage of twice the time."""
    costs = StageCosts((StageCost(forward_s=2, backward_s=4), StageCost(forward_s=1, backward_s=2)))
    return _of_pace(simulate(build("1f1b_rr", 3, 24, replicas=(2, 1)), costs).steady_bubble_fraction)


def _of_pace(idle: float | None) -> Outcome:
    assert idle is not None, "the runs settle to a pace"
    return Outcome("0 % idle in steady state", f"{idle:.1%}", verdict_of([1 - idle], [1.0], _WITHIN))


def repeat_stashes() -> Outcome:
    """Count the versions of the weights that each worker holds at once."""
    versions = live_versions(build("pipedream", _WORKERS, 12))
    counts = [versions[stage, stage] for stage in range(_WORKERS)]
    published = [_WORKERS - stage for stage in range(_WORKERS)]
    return Outcome(", ".join(map(str, published)), ", ".join(map(str, counts)), verdict_of(counts, published, 0.0))
