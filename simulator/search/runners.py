"""Evaluate items with a judge, in this process or in several of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Protocol, TypeAlias, TypeVar

from pipesched.profiles.processes import worker_pool

ItemT = TypeVar("ItemT")
AnswerT = TypeVar("AnswerT")

Take: TypeAlias = Callable[[], Sequence[ItemT]]
"""Hands out items for one process; called whenever there is room. The result is empty if it has none, or none yet."""


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


def evaluate_all(judge: Callable[[ItemT], AnswerT], items: Sequence[ItemT]) -> list[AnswerT]:
    """Go through a few items, one after the other."""
    return [judge(item) for item in items]
