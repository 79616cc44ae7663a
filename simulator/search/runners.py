"""Evaluate items with a judge: in this process, in several of this machine, or on a Ray cluster (the extra ``ray``)."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import Any, Protocol, TypeAlias, TypeVar

from pipesched.profiles.processes import descriptor_as, worker_pool
from pipesched.simulator import SimulationError

ItemT = TypeVar("ItemT")
AnswerT = TypeVar("AnswerT")

Take: TypeAlias = Callable[[], Sequence[ItemT]]
"""Hands out items for one process; called whenever there is room. The result is empty if it has none, or none yet."""

_PATIENCE_S = 60.0
"""How long a cluster may be without a core, until a machine replaces the lost ones."""
_TRIES = 10
"""How often an item is handed out again whose process or machine has died."""


class Runner(Protocol):
    """Evaluates items with a judge, here or elsewhere."""

    def __call__(self, judge: Callable[[ItemT], AnswerT], take: Take[ItemT], /) -> Iterator[AnswerT]:
        """Yield the judge's answer for each item, in any order, until no item is running and `take` returns none.

        Args:
            judge: Evaluates an item; may be sent to another process once, to evaluate many items there.
            take: Returns items to evaluate; called in this process, also while other items are being evaluated.
        """


def evaluate_in_turn(judge: Callable[[ItemT], AnswerT], take: Take[ItemT]) -> Iterator[AnswerT]:
    """Evaluate items in the order of their arrival, in this process."""
    while items := take():
        yield from map(judge, items)


def make_process_runner(workers: int) -> Runner:
    """Return a runner that goes through items in `workers` processes; with 1, in this one."""

    def run(judge: Callable[[ItemT], AnswerT], take: Take[ItemT]) -> Iterator[AnswerT]:
        running: set[Future[list[AnswerT]]] = set()
        with worker_pool(workers, judge) as pool:
            while True:
                while len(running) < workers and (items := take()):
                    running.add(pool.submit(items))
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield from future.result()

    return evaluate_in_turn if workers == 1 else run


def make_ray_runner(address: str) -> Runner:
    """Return a runner that evaluates items with a judge on a Ray cluster, one item per core at a time.

    Machines may leave and join during a search: other machines take over the unfinished items of a lost machine, and
    a new machine gets items too.

    Args:
        address: Address as `ray.init` takes it: ``auto``, ``host:port``, ``ray://host:port``; ``local`` starts a
            cluster here.

    Raises:
        ModuleNotFoundError: Ray is not installed.
    """
    ray: Any = import_module("ray")

    def run(judge: Callable[[ItemT], AnswerT], take: Take[ItemT]) -> Iterator[AnswerT]:
        logging.getLogger("ray").setLevel(logging.ERROR)  # of its start it tells at every start
        try:
            with Path(os.devnull).open("wb") as nowhere, descriptor_as(2, nowhere.fileno()):  # and of each try
                ray.init(address=address, include_dashboard=False, log_to_driver=False, configure_logging=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise SimulationError(
                f"Ray: got no cluster at {address!r}: {_first_line(error)}; try ray status"
            ) from error
        try:
            task, handed = ray.remote(_evaluate_all).options(max_retries=_TRIES), ray.put(judge)
            running, served_s = list[Any](), monotonic()
            while True:
                cores = int(ray.cluster_resources().get("CPU", 0))
                served_s = monotonic() if cores else served_s
                while len(running) < max(1, cores) and (items := take()):
                    running.append(task.remote(handed, items))
                if not running:
                    return
                done, running = ray.wait(running, timeout=1.0)
                for answers in ray.get(done):
                    yield from answers
                if not cores and monotonic() > served_s + _PATIENCE_S:
                    raise SimulationError(
                        f"Ray: got no core at {address!r} for {_PATIENCE_S:g} s, expected at least one; start a "
                        "machine with `ray start`, and continue from the journal of `resume`"
                    )
        except ray.exceptions.RayError as error:
            raise SimulationError(
                f"Ray: got a cluster that failed: {_first_line(error)}; continue from the journal of `resume`"
            ) from error
        finally:
            ray.shutdown()

    return run


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]


def _evaluate_all(judge: Callable[[ItemT], AnswerT], items: Sequence[ItemT]) -> list[AnswerT]:
    """Evaluate a few items in a process of a Ray cluster."""
    return [judge(item) for item in items]
