"""The proof of an order: a search for a better one in a process of its own, which is ended at once.

CP-SAT checks the clock, and a request to stop, only now and then: on a busy machine that may be seconds later. The
process reports every better order and bound, so that nothing is lost when it is killed.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from queue import Empty, SimpleQueue
from typing import NamedTuple, Self, TypeAlias, final

from pipesched.profiles.processes import command, environment, hold_interrupts, take_interrupt
from pipesched.simulator import SimulationError
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


@dataclass(frozen=True, slots=True)
class OrderProof:
    """The best order that is known, and how much shorter another could be.

    Attributes:
        starts: Starts of all ops [ticks].
        ticks: The end of the last one.
        bound: Ticks that no order is shorter than.
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
        """Do the same as `prove_order`."""
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
        """Yield the reports of a search, the last one again every `_TICK_S`, until it or its time is over.

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
                    f"search: its process has ended with exit code {self._process.wait()}, expected an order; try a "
                    "smaller batch, or 0 seconds (simple bounds)"
                )
            last = SearchNews(*json.loads(line))
            if not is_loaded:
                until_s, is_loaded = time.monotonic() + request.seconds + _LEAVE_S, True
            yield last
        if not is_loaded:
            raise SimulationError(
                f"search: OR-tools has not been loaded in {_LOAD_S:g} s, expected it sooner; try again, or 0 seconds "
                "(simple bounds)"
            )

    def _start(self) -> None:
        if self._process is not None:
            return
        self._lines = SimpleQueue[bytes]()
        with hold_interrupts():  # which the process takes over: Ctrl-C in a terminal is for this one alone
            self._process = subprocess.Popen(  # noqa: S603 -- our own interpreter and module
                command("pipesched.simulator.optimum.search_process", str(os.getpid())),
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


def prove_order(
    problem: OrderProblem,
    starts: OpTimes,
    bound: int,
    *,
    seconds: float,
    num_workers: int | None = None,
    progress: OnOrder = lambda seconds, ticks, bound: None,  # noqa: ARG005
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

    Raises:
        ModuleNotFoundError: OR-tools is not installed, and a search is needed.
        SimulationError: There are too many ops for a search, or too little memory.
    """
    with OrderSearcher() as searcher:
        return searcher.prove(problem, starts, bound, seconds=seconds, num_workers=num_workers, progress=progress)


def _require_searchable(problem: OrderProblem) -> None:
    num_ops = problem.num_microbatches * len(problem.kinds)
    if num_ops > _MOST_OPS:
        raise SimulationError(
            f"orders: got {num_ops} ops to search, expected at most {_MOST_OPS}; try "
            f"{max(1, _MOST_OPS // len(problem.kinds))} micro-batches, or 0 seconds (simple bounds)"
        )
    import_module("ortools")
