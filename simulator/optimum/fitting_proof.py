"""The proof of an order whose lists fit device memory, if an order problem does not know all memory.

The problem knows the least memory of any list, so its bound holds for all lists that fit. If the lists it finds are too
large, a problem with less room by the excess searches for others, but gives no bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from pipesched.schedules import Schedule
from pipesched.simulator.optimum.excess_bytes import Excess
from pipesched.simulator.optimum.op_times import OpTimes, objective_ticks
from pipesched.simulator.optimum.order_problem import OrderProblem
from pipesched.simulator.optimum.order_proof import OnOrder, OrderProof, OrderSearcher

_FIRST_SHARE = 0.6
"""Share of the time for the problem itself."""
_LEAST_S = 0.1
"""Seconds in which it is not worth while to look once more."""


def prove_fitting_order(
    problem: OrderProblem,
    starts: OpTimes,
    bound: int,
    lists_of: Callable[[OpTimes], Schedule],
    excess: Excess,
    *,
    seconds: float,
    num_workers: int | None = None,
    progress: OnOrder = lambda seconds, ticks, bound: None,  # noqa: ARG005
) -> OrderProof:
    """Prove an order as `prove_order` does, among the lists that fit the memory of the devices.

    Args:
        problem: The problem, with a room in bytes.
        starts: Starts of an order whose lists fit [ticks].
        bound: A lower bound of the ticks of all orders.
        lists_of: Makes lists of starts.
        excess: Computes the bytes by which lists exceed the memory.
        seconds: Time limit [s]; 0 skips the search.
        num_workers: Threads, or None for one per core.
        progress: Callback for regular reports.

    Raises:
        Same as `prove_order`.
    """
    begun_s = time.monotonic()

    def tell(_: float, ticks: int, least: int) -> None:
        progress(time.monotonic() - begun_s, ticks, least)

    with OrderSearcher() as searcher:
        proof = searcher.prove(
            problem, starts, bound, seconds=seconds * _FIRST_SHARE, num_workers=num_workers, progress=tell
        )
        faster, left_aside, count, is_stopped = proof.starts, (0,) * problem.num_ranks, 0, proof.is_stopped
        while objective_ticks(problem, faster) < objective_ticks(problem, starts):
            over = excess(lists_of(faster))
            if not any(over):
                starts = faster
                break
            left_aside = tuple(size + (more << count) for size, more in zip(left_aside, over, strict=True))
            left_s = seconds - (time.monotonic() - begun_s)
            if left_s < _LEAST_S or is_stopped:
                break
            again = searcher.prove(
                problem.less(left_aside),
                starts,
                proof.bound,
                seconds=left_s,
                num_workers=num_workers,
                progress=tell,
                bounds_ends=False,
            )
            faster, count, is_stopped = again.starts, count + 1, again.is_stopped
    return replace(proof, starts=starts, ticks=objective_ticks(problem, starts), is_stopped=is_stopped)
