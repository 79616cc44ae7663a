"""Table 1 and Fig. 2, 5, 13 and 15: bubbles, versions and activations of small lists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paper_rows.figure import Outcome, Verdict, verdict_of
from pipesched import Schedule, build, flat, simulate, uniform
from pipesched.profiles.clusters import Link
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules.transforms import recompute
from pipesched.schedules.weights import live_versions
from pipesched.simulator import Estimate, Scenario
from pipesched.simulator.fast import predict_scenario

_WITHIN = 0.01
_UNIT = 1_000_000
"""Bytes of the activations of a stage in Table 1's lists."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of Table 1, in units of S_m and S_a.

    Attributes:
        bubble: Bubble ratio.
        buffers: Weights of all versions, of groups of N stages that keep old ones.
        activations: Activations in flight on all workers, without recomputation.
        recomputed: Activations that backwards rebuild at once on all workers.
    """

    bubble: float
    buffers: float
    activations: float
    recomputed: float

    @property
    def numbers(self) -> tuple[float, ...]:
        """All four numbers."""
        return self.bubble, self.buffers, self.activations, self.recomputed


def published(scheme: str, n: int, m: int) -> Row:
    """Return the paper's row for N workers and M micro-batches; PipeDream has no recomputation."""
    return {
        "gpipe": Row((n - 1) / (m + n - 1), 0.0, m, 1.0),
        "pipedream": Row(0.0, (n + 1) / 2, (2 * m - n + 1) / 2, 0.0),
        "pipedream_2bw": Row(0.0, 2.0, (2 * m - n + 1) / 2, 1.0),
        "wpipe": Row(0.0, 1.0, (4 * m - n + 1) / 4, 0.5),
    }[scheme]


def counted(scheme: str, n: int, m: int) -> Row:
    """Return the row as the lists have it."""
    steps = 1 if scheme == "gpipe" else 4 * n if scheme == "pipedream" else 4
    period = m if scheme != "pipedream" else 1
    takes_period = scheme in ("wpipe", "pipedream_2bw")
    lists = build(scheme, n, steps * period, **({"accumulate": m} if takes_period else {}))
    num_stages = lists.num_stages
    versions = {stage: count for (_, stage), count in live_versions(lists).items()}
    groups = [[versions[stage] for stage in range(first, first + n)] for first in range(0, num_stages, n)]
    stashed = sum(sum(group) for group in groups if max(group) > 1) / num_stages
    in_all = sum(_peak_activations(lists).values()) / num_stages
    rebuilt = 0.0 if scheme == "pipedream" else sum(_rebuilt(lists).values()) / num_stages
    return Row(_bubble(lists), stashed, in_all, rebuilt)


def _bubble(lists: Schedule) -> float:
    result = simulate(lists, uniform(lists.num_stages, forward_s=1, backward_s=2))
    steady = result.steady_bubble_fraction
    assert steady is not None, "these lists settle to a pace"
    return steady if lists.name != "gpipe" else result.bubble_fraction


def _peak_activations(lists: Schedule) -> dict[int, float]:
    """Return the peak of activations of each worker, in units of a stage's activations of a micro-batch."""
    stage = StageCost(forward_s=1, backward_s=2, saved_bytes=_UNIT)
    return {rank: num_bytes / _UNIT for rank, num_bytes in _peaks(lists, stage).items()}


def _rebuilt(lists: Schedule) -> dict[int, float]:
    """Return the peak of rebuilt activations of each worker; the inputs that remain have no bytes here."""
    stage = StageCost(forward_s=1, backward_s=2, saved_bytes=_UNIT)
    return {rank: num_bytes / _UNIT for rank, num_bytes in _peaks(recompute(lists, when="late"), stage).items()}


def _peaks(lists: Schedule, stage: StageCost) -> dict[int, int]:
    costs = StageCosts((stage,) * lists.num_stages)
    estimate = predict_scenario(Scenario(lists, costs, flat(lists.num_ranks)))
    assert isinstance(estimate, Estimate), "plain costs and lists are predicted exactly"
    return dict(estimate.peak_bytes)


def repeat_table() -> Outcome:
    """Count versions and activations with as many micro-batches as workers, and with twice as many."""
    schemes = ("gpipe", "pipedream", "pipedream_2bw", "wpipe")
    equal, more = ({scheme: (published(scheme, 4, m), counted(scheme, 4, m)) for scheme in schemes} for m in (4, 8))
    verdicts = [verdict_of(own.numbers, printed.numbers, _WITHIN) for printed, own in equal.values()]
    alike = sum(verdict is Verdict.AGREES for verdict in verdicts)
    printed, own = more["wpipe"]
    also = sum(verdict_of(own.numbers, printed.numbers, _WITHIN) is Verdict.AGREES for printed, own in more.values())
    return Outcome(
        "buffers 0, 2.5, 2, 1 S_m; activations 4, 2.5, 2.5, 3.25 S_a",
        f"N = M = 4: {alike} of 4 rows equal; N = 4, M = 8: {also} of 4",
        Verdict.AGREES if alike == 4 else Verdict.SHAPE if alike else Verdict.DIFFERS,
        "The verdict is on N = M. For M > N the lists have fewer activations: WPipe "
        f"{own.activations:g} S_a at N = 4, M = 8 where the formula gives {printed.activations:g}, and 2BW "
        f"{more['pipedream_2bw'][1].activations:g} for {more['pipedream_2bw'][0].activations:g}. A backward follows "
        "its forward as soon as it can: worker k runs N - 1 - k forwards ahead whatever M, where the paper counts "
        "M - k.",
        [*_table(4, 4, equal), "", *_table(4, 8, more)],
    )


def _table(n: int, m: int, rows: dict[str, tuple[Row, Row]]) -> Iterator[str]:
    yield f"| N = {n}, M = {m} | bubble | buffers, S_m | activations, S_a | with recomputation, S_a |"
    yield "|---|---|---|---|---|"
    for scheme, (printed, own) in rows.items():
        cells = (f"{number:g} (paper {other:g})" for number, other in zip(own.numbers, printed.numbers, strict=True))
        yield f"| {scheme} | {' | '.join(cells)} |"


def repeat_timelines() -> Outcome:
    """Simulate the four timelines of Fig. 2 with two workers and an update after two micro-batches."""
    flushed = [_bubble_of_batch(build(name, 2, 2)) for name in ("gpipe", "1f1b")]
    free = [_bubble(build("pipedream", 2, 12)), _bubble(build("pipedream_2bw", 2, 12, accumulate=2))]
    idle = [*flushed, *free]
    return Outcome(
        "idle 1 / 3, 1 / 3, 0, 0",
        ", ".join(f"{share:.3g}" for share in idle),
        verdict_of([1 - share for share in idle], [2 / 3, 2 / 3, 1, 1], _WITHIN),
    )


def _bubble_of_batch(lists: Schedule) -> float:
    return simulate(lists, uniform(lists.num_stages, forward_s=1, backward_s=2)).bubble_fraction


def repeat_versions() -> Outcome:
    """Count WPipe's versions by group, and its idle time in steady state."""
    lists = build("wpipe", 3, 12, accumulate=3)
    versions = live_versions(lists)
    groups = [max(versions[rank, rank + group] for rank in range(3)) for group in (0, 3)]
    idle = _bubble(lists)
    return Outcome(
        "2 versions in G0, 1 in G1, no bubble",
        f"{groups[0]} and {groups[1]}, {idle:.1%} idle",
        verdict_of([*groups, 1 - idle], [2, 1, 1], _WITHIN),
    )


def repeat_overlap() -> Outcome:
    """Compare the pace of WPipe with recomputation before the gradient arrives, after it, and with none."""
    costs = StageCosts((StageCost(forward_s=1, backward_s=2, output_bytes=1),) * 8)
    cluster = flat(4, Link(0.0, 1.0))
    single = build("wpipe", 4, 32, accumulate=4)
    plain_s, early_s, late_s = (
        predict_scenario(Scenario(lists, costs, cluster)).seconds
        for lists in (single, recompute(single, when="early"), recompute(single, when="late"))
    )
    hidden = (late_s - early_s) / (late_s - plain_s)
    return Outcome(
        "most of its overhead is hidden",
        f"{hidden:.0%} of it is hidden",
        Verdict.SHAPE if hidden > 0.5 else Verdict.DIFFERS,
        "Four workers, messages as long as a forward: recomputation before the gradient has arrived, beside its "
        "message, against recomputation after it, as a share of the time that the latter adds. The shape agrees above "
        "a half; the paper prints no number.",
    )


def repeat_grouping() -> Outcome:
    """Simulate GPipe with one, two and four groups of stages."""
    n = m = 4
    overheads = []
    for groups in (1, 2, 4):
        lists = build("gpipe", n, m) if groups == 1 else build("looped_bfs", n, m, groups)
        idle = _bubble_of_batch(lists)
        overheads.append(idle / (1 - idle))
    shares = [overhead / overheads[0] for overhead in overheads[1:]]
    return Outcome(
        "bubble 1 / 2 with two groups, 1 / 4 with four",
        " and ".join(f"{share:.3g}" for share in shares),
        verdict_of(shares, [0.5, 0.25], _WITHIN),
        "Idle over busy time, four workers and four micro-batches, free messages.",
    )
