"""A proven lower bound on the time of a schedule's ops in any order, under the memory of their ranks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeAlias

from pipesched.profiles.costs import StageCosts
from pipesched.questions import OptimizeSettings
from pipesched.schedules import Schedule
from pipesched.schedules.transforms import recompute
from pipesched.simulator import SAME, SimulationError
from pipesched.simulator.analysis import readable_s, readable_share
from pipesched.simulator.optimum import (
    Excess,
    KnownOrder,
    OpTimes,
    OrderProblem,
    OrderProof,
    OrderSearcher,
    bytes_room,
    counted_room,
    excess_in,
    known_orders,
    least_ticks,
    most_in_flight,
    order_problem,
    orderable,
    orders_of_choices,
    prove_fitting_order,
    recomputing_stages,
    require_orderable_length,
    schedule_of_times,
    split_backwards,
)
from pipesched.workflows.simulating.prediction import Prediction

OnSearch: TypeAlias = Callable[[float, float, float], None]
"""Receives (share of the search time that is over, best time so far [s], proven lower bound [s])."""
_CHOICES = 8
"""Steps from no recomputing stage to all optional ones, first stages first, among the orders known before a search."""
_SMALLEST = 1e-4
"""The smallest gap that is reported, because of rounding."""


@dataclass(frozen=True, slots=True)
class LeastTime:
    """A lower bound on the time of a schedule's ops on their ranks, in any order.

    Attributes:
        bound_s: The proven lower bound on the makespan, or on the period of a repeated batch [s].
        in_flight: Most micro-batches in flight on a rank; None if the bytes of the devices are the limit, infinite
            without a limit.
        resolution_s: Unit to which times were rounded down for a search [s]; None without a search or rounding.
        time_s: The makespan, or the period, of the schedule that is compared with the bound [s].
        is_repeated: Whether the bound is on a period.
        is_stopped: Whether the search was interrupted.
        repeated: Name of the unit that repeats, for messages.
    """

    bound_s: float
    in_flight: float | None
    resolution_s: float | None
    time_s: float
    is_repeated: bool = False
    is_stopped: bool = False
    repeated: str = "batch"

    @property
    def gap(self) -> float:
        """The excess of the time over the bound, as a share of the bound; 0 if the time is proven to be the least."""
        return self.gap_of(self.time_s)

    def gap_of(self, time_s: float) -> float:
        """Return the excess of another makespan or period of the same ops over the bound, as a share of the bound."""
        assert time_s >= (1 - SAME) * self.bound_s, f"{time_s} s is below a bound of {self.bound_s} s: it is not proven"
        return time_s / self.bound_s - 1 if time_s > (1 + SAME) * self.bound_s else 0.0

    @property
    def memory(self) -> str:
        """The limit, in words."""
        if self.in_flight is None:
            return "in the memory of the devices"
        if math.isinf(self.in_flight):
            return "with any memory"
        return f"with {self.in_flight:.4g} micro-batches in flight at most"

    @property
    def sentence(self) -> str:
        """The proven bound, in a line."""
        after = f", {self.repeated} after {self.repeated}," if self.is_repeated else ""
        orders = f"no order of its ops {self.memory}{after}"
        if not self.gap:
            return f"{orders} takes less time: proven"
        rounded = "" if self.resolution_s is None else f" (times rounded down to {readable_s(self.resolution_s)})"
        above = f"it is at most {readable_share(max(self.gap, _SMALLEST))} above the least possible"
        stopped = "; the search was stopped" if self.is_stopped else ""
        return f"{orders} takes less than {readable_s(self.bound_s)}{rounded}: {above}{stopped}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "bound_s": self.bound_s,
            "gap": self.gap,
            "in_flight": None if self.in_flight is None or math.isinf(self.in_flight) else self.in_flight,
            "resolution_s": self.resolution_s,
            "is_stopped": self.is_stopped,
        }


@dataclass(frozen=True)  # without slots, for cached properties
class OrderSearch:
    """The search for the best order of a schedule's ops.

    Attributes:
        lists: The schedule's lists, with its backwards whole or split as asked.
        costs: Costs of its stages.
        problem: The ops to order, and their constraints.
        in_flight: Most micro-batches in flight on a rank; None if the bytes of the devices are the limit.
        excess: Returns by how much lists exceed the memory of the devices.
        choices: The problem and lists for some sets of recomputing stages; empty if no stage may choose.
    """

    lists: Schedule
    costs: StageCosts
    problem: OrderProblem
    in_flight: float | None
    excess: Excess
    choices: tuple[tuple[OrderProblem, Schedule], ...] = ()

    @cached_property
    def orders(self) -> tuple[KnownOrder, ...]:
        """The known orders within the limits, the shortest first.

        Raises:
            SimulationError: No known order is within the limits.
        """
        if self.choices:
            orders = orders_of_choices(self.problem, self.choices, self.costs, self.excess)
        else:
            orders = known_orders(self.problem, self.lists, self.costs, self.excess)
        if not orders:
            raise SimulationError(
                f"{self.lists.name}: got devices with memory for one micro-batch, but not for its gradients and "
                "messages too, in any known order; try more memory, or smaller micro-batches"
            )
        return tuple(orders)

    @property
    def fits(self) -> bool:
        """Whether the schedule's lists are within the limits."""
        return self.problem.room.holds(self.lists) and not any(self.excess(self.lists))

    def lists_of(self, starts: OpTimes, name: str) -> Schedule:
        """Return the lists of an order with these starts [ticks]."""
        return schedule_of_times(self.problem, self.lists, starts, name)

    def prove(
        self,
        asked: OptimizeSettings,
        progress: OnSearch = lambda share, best_s, bound_s: None,  # noqa: ARG005
    ) -> OrderProof:
        """Search for a shorter order than the known ones, and for a proof that none exists.

        A KeyboardInterrupt ends the search with the results so far.

        Args:
            asked: The time limit of CP-SAT, and its threads.
            progress: Receives the state of the search now and then.

        Raises:
            ModuleNotFoundError: OR-tools is not installed, and the simple bounds leave a gap.
            SimulationError: No known order is within the limits.
        """
        seconds, problem = asked.seconds, self.problem

        def tell(passed_s: float, ticks: int, bound: int) -> None:
            progress(min(1.0, passed_s / seconds), ticks * problem.tick_s, bound * problem.tick_s)

        known, least = self.orders[0].starts, least_ticks(problem)
        limits: dict[str, Any] = {"seconds": seconds, "num_workers": asked.num_workers, "progress": tell}
        if not problem.room.counts_bytes:
            with OrderSearcher() as searcher:
                return searcher.prove(problem, known, least, **limits)

        def lists_of(starts: OpTimes) -> Schedule:
            return self.lists_of(starts, self.lists.name)

        return prove_fitting_order(problem, known, least, lists_of, self.excess, **limits)

    def least_time(self, time_s: float, proof: OrderProof | None) -> LeastTime:
        """Return the bound for a schedule of this makespan or period [s]; without a proof, by simple bounds."""
        bound, resolution = (least_ticks(self.problem), 1) if proof is None else (proof.bound, proof.resolution)
        resolution_s = resolution * self.problem.tick_s if resolution > 1 else None
        bound_s = bound * self.problem.tick_s
        is_stopped = proof is not None and proof.is_stopped
        return LeastTime(bound_s, self.in_flight, resolution_s, time_s, self.problem.is_repeated, is_stopped)


def order_search(
    given: Prediction,
    asked: OptimizeSettings = OptimizeSettings(),  # noqa: B008 -- frozen
    *,
    has_device_limits: bool = True,
) -> OrderSearch:
    """Return the search for the best order of a schedule's ops.

    Args:
        given: The prediction of one pipeline and one batch, each stage on one rank.
        asked: The settings of the search. Without `in_flight` the limit is the memory of the devices, if it is known
            and `has_device_limits`, otherwise the most that the schedule has on any rank.
        has_device_limits: Whether the memory of the devices may be the limit.

    Raises:
        NotOrderableError: The schedule is of another kind.
        SimulationError: A rank has no room for one micro-batch.
        ProfileError: The costs lack the seconds of an op.
    """
    schedule, costs, cluster, in_flight = given.schedule, given.costs, given.cluster, asked.in_flight
    require_orderable_length(schedule)
    lists = orderable(schedule, costs)
    if asked.is_split:
        lists = split_backwards(lists)
    rebuilt = recomputing_stages(lists)
    optional = [stage for stage in range(lists.num_stages) if asked.may_recompute and stage not in rebuilt]
    all_of_it = recompute(lists) if optional else lists
    room = bytes_room(all_of_it, costs, cluster) if in_flight is None and has_device_limits else None
    if room is None:
        in_flight = most_in_flight(lists, costs) if in_flight is None else in_flight
        room = counted_room(all_of_it, costs, in_flight)
    problem_with = partial(order_problem, all_of_it, costs, cluster, room, is_repeated=asked.is_repeated)
    problem = problem_with(optional=optional)
    choices = list[tuple[OrderProblem, Schedule]]()
    for count in sorted({round(len(optional) * part / _CHOICES) for part in range(_CHOICES + 1)} if optional else ()):
        chosen = lists if not count else recompute(lists, optional[:count])
        if all(room.least_held(chosen, rank)[0] <= limit for rank, limit in enumerate(room.limits)):
            choices.append((problem_with(left_out=optional[count:]), chosen))
    return OrderSearch(lists, costs, problem, in_flight, excess_in(room, costs, cluster), tuple(choices))
