"""The least time that the ops of a schedule take in any order, under the memory of their ranks: a proven bound."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts
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
    prove_order,
    recomputing_stages,
    require_orderable_length,
    schedule_of_times,
    split_backwards,
)

OnSearch: TypeAlias = Callable[[float, float, float], None]
"""Told (share of the seconds that is over, the best time so far [s], and what none is proven to be less than [s])."""
_CHOICES = 8
"""Shares of the stages, those that come first, that recompute in orders that are known before a search."""
_SMALLEST = 1e-4
"""The smallest gap that is told, as what rounding leaves open."""


@dataclass(frozen=True, slots=True)
class LeastTime:
    """What no order of a schedule's ops on their ranks takes less than.

    Attributes:
        bound_s: The least makespan that is possible as far as is proven, or the least period of a repeated batch [s].
        in_flight: The most micro-batches that a rank may have in flight; None where the devices' bytes are the limit,
            infinite where nothing is.
        resolution_s: What times were rounded down to for a search [s]; None where there was none, or it needed no
            rounding.
        time_s: The makespan, or the period, of the schedule that is judged by it [s].
        is_repeated: Whether it is of the period at which something is repeated.
        is_stopped: Whether the search was interrupted.
        repeated: What is.
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
        """How much longer the time is than the bound, as a share of the bound; 0: it is proven to be the least."""
        return self.gap_of(self.time_s)

    def gap_of(self, time_s: float) -> float:
        """Return how much longer another makespan, or period, of the same ops [s] is than the bound."""
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
        """What is proven, in a line."""
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


@dataclass(frozen=True)  # without slots: what takes long is worked out when it is asked for
class OrderSearch:
    """The ops of a schedule to be ordered anew.

    Attributes:
        lists: The schedule's lists, with its backwards whole or split as asked.
        costs: Costs of its stages.
        problem: What is to be ordered.
        in_flight: The most micro-batches that a rank may have in flight; None where the devices' bytes are the limit.
        excess: Says by how much lists are above what the devices hold.
        choices: Where stages may recompute, the problem of some choices of those that do, with their lists.
    """

    lists: Schedule
    costs: StageCosts
    problem: OrderProblem
    in_flight: float | None
    excess: Excess
    choices: tuple[tuple[OrderProblem, Schedule], ...] = ()

    @cached_property
    def orders(self) -> tuple[KnownOrder, ...]:
        """The orders that are known and keep to the limits, the shortest first.

        Raises:
            SimulationError: There is none.
        """
        if self.choices:
            orders = orders_of_choices(self.problem, self.choices, self.costs, self.excess)
        else:
            orders = known_orders(self.problem, self.lists, self.costs, self.excess)
        if not orders:
            raise SimulationError(
                f"{self.lists.name}: got devices that hold one micro-batch, but not its gradients and messages too in "
                "any order that is known; give them more memory, or smaller micro-batches"
            )
        return tuple(orders)

    @property
    def fits(self) -> bool:
        """Whether the schedule's lists keep to the limits."""
        return self.problem.room.holds(self.lists) and not any(self.excess(self.lists))

    def lists_of(self, starts: OpTimes, name: str) -> Schedule:
        """Return the lists of an order of these starts [ticks]."""
        return schedule_of_times(self.problem, self.lists, starts, name)

    def prove(
        self,
        seconds: float,
        num_workers: int | None = None,
        progress: OnSearch = lambda share, best_s, bound_s: None,  # noqa: ARG005
    ) -> OrderProof:
        """Look for a shorter order than the known ones, and for a proof that there is none.

        A KeyboardInterrupt ends the search with what there is.

        Args:
            seconds: How long CP-SAT looks at most [s]; 0: the simple bounds of each rank alone are all.
            num_workers: Threads; None: one for each core.
            progress: Told how far it is, now and then.

        Raises:
            ModuleNotFoundError: OR-tools is not installed, and the simple bounds leave something open.
            SimulationError: No order is known that keeps to the limits.
        """

        def tell(passed_s: float, ticks: int, bound: int) -> None:
            progress(min(1.0, passed_s / seconds), ticks * self.problem.tick_s, bound * self.problem.tick_s)

        known, least = self.orders[0].starts, least_ticks(self.problem)
        if not self.problem.room.counts_bytes:
            return prove_order(self.problem, known, least, seconds=seconds, num_workers=num_workers, progress=tell)
        return prove_fitting_order(
            self.problem,
            known,
            least,
            lambda starts: self.lists_of(starts, self.lists.name),
            self.excess,
            seconds=seconds,
            num_workers=num_workers,
            progress=tell,
        )

    def least_time(self, time_s: float, proof: OrderProof | None) -> LeastTime:
        """Return what is proven, for a schedule of this makespan or period [s]; without a proof by simple bounds."""
        bound, resolution = (least_ticks(self.problem), 1) if proof is None else (proof.bound, proof.resolution)
        resolution_s = resolution * self.problem.tick_s if resolution > 1 else None
        bound_s = bound * self.problem.tick_s
        is_stopped = proof is not None and proof.is_stopped
        return LeastTime(bound_s, self.in_flight, resolution_s, time_s, self.problem.is_repeated, is_stopped)


def order_search(
    schedule: Schedule,
    costs: StageCosts,
    cluster: Cluster,
    *,
    in_flight: float | None = None,
    is_split: bool | None = None,
    is_repeated: bool = False,
    may_recompute: bool = False,
    has_device_limits: bool = True,
) -> OrderSearch:
    """Return what there is to order of a schedule.

    Args:
        schedule: One pipeline and one batch, each stage on one rank.
        costs: What its stages cost.
        cluster: The machines.
        in_flight: The most micro-batches in flight on a rank; None: what the devices hold, if that is known and
            `has_device_limits`, or as many as the schedule has on the rank where it has most.
        is_split: Whether the backward is I and W; None: as the schedule has it.
        is_repeated: Whether the batch is repeated, and its period is to be the least; else its makespan.
        may_recompute: Whether stages that do not recompute may do so.
        has_device_limits: Whether the devices' memory is a limit where `in_flight` is None.

    Raises:
        NotOrderableError: The schedule is of another kind.
        SimulationError: A rank has no room for one micro-batch.
        ProfileError: The costs do not say the seconds of an op.
    """
    require_orderable_length(schedule)
    lists = orderable(schedule, costs)
    if is_split:
        lists = split_backwards(lists)
    rebuilt = recomputing_stages(lists)
    optional = [stage for stage in range(lists.num_stages) if may_recompute and stage not in rebuilt]
    all_of_it = recompute(lists) if optional else lists
    room = bytes_room(all_of_it, costs, cluster) if in_flight is None and has_device_limits else None
    if room is None:
        in_flight = most_in_flight(lists, costs) if in_flight is None else in_flight
        room = counted_room(all_of_it, costs, in_flight)
    problem = order_problem(all_of_it, costs, cluster, room, is_repeated=is_repeated, optional=optional)
    choices = list[tuple[OrderProblem, Schedule]]()
    for count in sorted({round(len(optional) * part / _CHOICES) for part in range(_CHOICES + 1)} if optional else ()):
        chosen = lists if not count else recompute(lists, optional[:count])
        if all(room.least_held(chosen, rank)[0] <= limit for rank, limit in enumerate(room.limits)):
            left_out = optional[count:]
            choice = order_problem(all_of_it, costs, cluster, room, is_repeated=is_repeated, left_out=left_out)
            choices.append((choice, chosen))
    return OrderSearch(lists, costs, problem, in_flight, excess_in(room, costs, cluster), tuple(choices))
