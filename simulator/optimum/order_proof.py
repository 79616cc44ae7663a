"""The proof of an order: a search for a better one in a process of its own, which is ended at once.

CP-SAT checks the clock, and a request to stop, only now and then: on a busy machine that may be seconds later. The
process reports every better order and bound, so that nothing is lost when it is killed.

An order problem may count less memory than some lists hold. So its bound holds for all lists that fit, but the lists it
finds may be too large. Then a problem whose room is smaller by the excess searches for other lists; it gives no bound.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from queue import Empty, SimpleQueue
from typing import NamedTuple, Self, TypeAlias, final

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts
from pipesched.profiles.processes import command, environment, hold_interrupts, take_interrupt
from pipesched.schedules import Schedule
from pipesched.schedules.lowering import lower
from pipesched.simulator import SimulationError
from pipesched.simulator.fast import simulate_arrays
from pipesched.simulator.memory import peak_bytes
from pipesched.simulator.optimum.activation_room import ActivationRoom
from pipesched.simulator.optimum.op_times import OpTimes, objective_ticks
from pipesched.simulator.optimum.order_model import OrderRequest
from pipesched.simulator.optimum.order_problem import OrderProblem

_MOST_TICKS = 1_000_000
"""Ticks of a batch in a search, where times are rounded to ticks anyway."""
_MOST_OPS = 20_000
"""Ops of a search: with more the model alone takes minutes."""
_TICK_S = 0.2
"""Interval of progress reports [s]."""
_LOAD_S = 120.0
"""How long a search may take until it tells something, as it loads OR-tools first."""
_LEAVE_S = 0.4
"""How long after its time a search may still say how it ended."""

OnOrder: TypeAlias = Callable[[float, int, int], None]
"""Called with (seconds since the start, ticks of the best order, lower bound in ticks)."""
Excess: TypeAlias = Callable[[Schedule], tuple[int, ...]]
"""Says of lists by how many units of the room each rank is above its limit."""
_FIRST_SHARE = 0.6
"""Share of the time for the problem itself."""
_LEAST_S = 0.1
"""Seconds in which it is not worth while to look once more."""


@dataclass(frozen=True, slots=True)
class OrderProof:
    """The best order that is known, and how much shorter another could be.

    Attributes:
        starts: Starts of all ops [ticks].
        ticks: The end of the last one.
        bound: Lower bound on the ticks of any order.
        resolution: Ticks that times were rounded down to for the search.
        is_stopped: Whether the search was interrupted.
    """

    starts: OpTimes
    ticks: int
    bound: int
    resolution: int = 1
    is_stopped: bool = False


class SearchNews(NamedTuple):
    """A report of a search, one line of JSON.

    Attributes:
        ticks: Ticks of the best known order.
        bound: Lower bound of the ticks of all orders.
        starts: Starts of the best order, or None if they were known before.
        is_over: Whether the search has ended.
    """

    ticks: int
    bound: int
    starts: OpTimes | None
    is_over: bool


@final
class OrderSearcher:
    """A process that searches for orders, one after the other; it is started on the first request."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lines = SimpleQueue[bytes]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def prove(
        self,
        problem: OrderProblem,
        starts: OpTimes,
        bound: int,
        *,
        seconds: float,
        num_workers: int | None = None,
        progress: OnOrder = lambda seconds, ticks, bound: None,  # noqa: ARG005
        bounds_ends: bool = True,
    ) -> OrderProof:
        """Search for a shorter order than a known one, or prove that none exists.

        A KeyboardInterrupt ends the search with the best order so far.

        Args:
            problem: The problem.
            starts: Starts of an order that keeps to the limits [ticks].
            bound: Lower bound from `least_ticks` [ticks].
            seconds: Time limit from the loading of OR-tools on [s]; 0 skips the search.
            num_workers: Threads, or None for one per core.
            progress: Callback for regular reports.
            bounds_ends: Whether to bound both ends of the batch, too.

        Raises:
            ModuleNotFoundError: OR-tools is not installed, and a search is needed.
            SimulationError: There are too many ops for a search, or too little memory.
        """
        known = objective_ticks(problem, starts)
        if known <= bound or seconds <= 0:
            return OrderProof(starts, known, min(bound, known))
        _require_searchable(problem)
        resolution = 1 if problem.is_exact else max(1, known // _MOST_TICKS)
        workers = num_workers or os.cpu_count() or 1
        request = OrderRequest(problem, starts, bound, seconds, workers, resolution, bounds_ends)
        news, is_stopped = SearchNews(known, bound, None, is_over=False), False
        begun_s = time.monotonic()
        try:
            for news in self._news(request):
                starts = news.starts or starts
                progress(time.monotonic() - begun_s, news.ticks, news.bound)
        except KeyboardInterrupt:
            take_interrupt()
            is_stopped = True
        if is_stopped or not news.is_over:
            self._end()
        ticks = objective_ticks(problem, starts)
        return OrderProof(starts, ticks, min(news.bound, ticks), resolution, is_stopped)

    def _news(self, request: OrderRequest) -> Iterator[SearchNews]:
        """Yield the reports of a search until the search or its time is over; repeat the last report every `_TICK_S`.

        Raises:
            SimulationError: The process has ended by itself, or does not answer.
        """
        from pydantic import TypeAdapter

        self._start()
        assert self._process is not None, "it was just started"
        assert self._process.stdin is not None, "it is a pipe"
        with suppress(BrokenPipeError):  # then there is no answer either
            self._process.stdin.write(TypeAdapter(OrderRequest).dump_json(request) + b"\n")
            self._process.stdin.flush()
        last = SearchNews(objective_ticks(request.problem, request.starts), request.bound, None, is_over=False)
        until_s, is_loaded = time.monotonic() + _LOAD_S, False
        while not last.is_over and time.monotonic() < until_s:
            try:
                line = self._lines.get(timeout=_TICK_S)
            except Empty:
                yield last._replace(starts=None)
                continue
            if not line:
                raise SimulationError(
                    f"search: got a search process that ended with exit code {self._process.wait()}, expected an "
                    "order; try a smaller batch, or 0 seconds (simple bounds)"
                )
            last = SearchNews(*json.loads(line))
            if not is_loaded:
                until_s, is_loaded = time.monotonic() + request.seconds + _LEAVE_S, True
            yield last
        if not is_loaded:
            raise SimulationError(
                f"search: OR-tools is not loaded after {_LOAD_S:g} s, expected a faster start; try again, or 0 seconds "
                "(simple bounds)"
            )

    def _start(self) -> None:
        if self._process is not None:
            return
        self._lines = SimpleQueue[bytes]()
        with hold_interrupts():  # which the process takes over: Ctrl-C in a terminal is for this one alone
            self._process = subprocess.Popen(  # noqa: S603 -- our own interpreter and module
                command("pipesched.simulator.optimum.order_model", str(os.getpid())),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment(),
            )
        threading.Thread(target=_read_lines, args=(self._process, self._lines), daemon=True).start()

    def _end(self) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        process.kill()
        with suppress(OSError), process:  # unwritten data is lost
            pass


def _read_lines(process: subprocess.Popen[bytes], lines: SimpleQueue[bytes]) -> None:
    """Put every line of a process's output into `lines`, and an empty one at its end."""
    assert process.stdout is not None, "it is a pipe"
    with suppress(ValueError):  # it was closed
        for line in process.stdout:
            lines.put(line)
    lines.put(b"")


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
    """Prove an order as `OrderSearcher.prove` does, among the lists that fit the memory of the devices.

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
        Same as `OrderSearcher.prove`.
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


def excess_in(room: ActivationRoom, costs: StageCosts, cluster: Cluster) -> Excess:
    """Return the function that computes by how much the lists of each rank exceed its memory; 0 in a counted room.

    Args:
        room: The room for activations; the excess is in its unit.
        costs: Bytes of the stages.
        cluster: The memory of the devices; each rank has one of its own.
    """

    def excess(schedule: Schedule) -> tuple[int, ...]:
        if not room.counts_bytes:
            return (0,) * schedule.num_ranks
        lowered = lower(schedule)
        peaks = peak_bytes(simulate_arrays(lowered, costs, cluster), costs, lowered)
        limits = [cluster.devices[device].memory_bytes for device in schedule.rank_to_device]
        over = [
            0 if limit is None or device not in peaks else max(0, peaks[device] - limit)
            for device, limit in zip(schedule.rank_to_device, limits, strict=True)
        ]
        return tuple(-(-num_bytes // room.unit_bytes) for num_bytes in over)

    return excess


def _require_searchable(problem: OrderProblem) -> None:
    num_ops = problem.num_microbatches * len(problem.kinds)
    if num_ops > _MOST_OPS:
        raise SimulationError(
            f"orders: got {num_ops} ops to search, expected at most {_MOST_OPS}; try "
            f"{max(1, _MOST_OPS // len(problem.kinds))} micro-batches, or 0 seconds (simple bounds)"
        )
    import_module("ortools")
