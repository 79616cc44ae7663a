"""A scenario under SimPy: the lists of all its pipelines, simulated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pipesched.schedules import Schedule
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Average, Compute, Op, Recv, Send, rewritten
from pipesched.simulator import Estimate, Inexact, Scenario, engine
from pipesched.simulator.memory import iteration


def predict_by_events(scenario: Scenario) -> Estimate | Inexact:
    """Simulate an iteration of all pipelines.

    Raises:
        As `simulate_lists` does.
    """
    reason = obstacle_of_several(scenario)
    if reason is not None:
        return Inexact(reason)
    schedule, costs, cluster = scenario.schedule, scenario.costs, scenario.cluster
    lists = lists_of_all(schedule, scenario.num_pipelines)
    timeline = engine.simulate_lists(lists, costs, cluster, network=scenario.network)
    return iteration(timeline, lists, costs, cluster)


def obstacle_of_several(scenario: Scenario) -> str | None:
    """Return why several pipelines cannot run a schedule at once, or None if they can or there is only one."""
    schedule, num_pipelines = scenario.schedule, scenario.num_pipelines
    if num_pipelines == 1:
        return None
    if schedule.summands:
        return (
            f"{schedule.name}: got Reduces in each of {num_pipelines} pipelines, expected none, as the ranks of each "
            "sum are unknown"
        )
    if schedule.pipelines > 1:
        return (
            f"{schedule.name}: got {num_pipelines} times {schedule.pipelines} pipelines, expected lists of one pipeline"
        )
    return None


def lists_of_all(schedule: Schedule, num_pipelines: int) -> Schedule:
    """Return the lists of equal pipelines on the same devices, lowered.

    Rank ``n * num_ranks + k`` is rank k of pipeline n, whose micro-batches follow the micro-batches of pipeline n - 1.
    One pipeline alone has no Averages; lists of several pipelines stay as they are.
    """
    lowered = lower(schedule)
    if num_pipelines == 1 and (lowered.pipelines > 1 or not lowered.averagers):
        return lowered
    if num_pipelines == 1:
        rows = tuple(tuple(op for op in row if not isinstance(op, Average)) for row in lowered.ops)
        return replace(lowered, lists=rows)
    pipelines = [_Pipeline(index, lowered) for index in range(num_pipelines)]
    return replace(
        lowered,
        num_microbatches=num_pipelines * lowered.num_microbatches,
        lists=tuple(tuple(pipeline.read(row)) for pipeline in pipelines for row in lowered.ops),
        rank_to_device=lowered.rank_to_device * num_pipelines,
    )


def equal_pipelines(schedule: Schedule) -> Schedule | None:
    """Return the lists of one of the pipelines that a schedule averages; None if they are not equal."""
    number = schedule.pipelines
    num_ranks, num_microbatches = schedule.num_ranks // number, schedule.num_microbatches // number
    first = replace(
        schedule,
        num_microbatches=num_microbatches,
        lists=schedule.ops[:num_ranks],
        rank_to_device=schedule.rank_to_device[:num_ranks],
        layout=None,
    )
    pipelines = [_Pipeline(index, first) for index in range(number)]
    rows = tuple(tuple(pipeline.read(row)) for pipeline in pipelines for row in first.ops)
    is_same = rows == schedule.ops and first.rank_to_device * number == schedule.rank_to_device
    return first if is_same else None


@dataclass(frozen=True, slots=True)
class _Pipeline:
    """One of the pipelines, by its index."""

    index: int
    schedule: Schedule

    def read(self, row: tuple[Op, ...]) -> Iterator[Op]:
        """Yield the list of a rank of this pipeline, given the schedule's list."""
        return (rewritten(op, self._compute, self._post) for op in row)

    def _compute(self, op: Compute) -> Compute:
        return replace(op, microbatch=self._microbatch(op.microbatch))

    def _post(self, op: Send | Recv) -> Send | Recv:
        message = op.message._replace(microbatch=self._microbatch(op.message.microbatch))
        return replace(op, message=message, peer=op.peer + self.index * self.schedule.num_ranks)

    def _microbatch(self, microbatch: int) -> int:
        return microbatch + self.index * self.schedule.num_microbatches
