"""Run an evaluator over many candidates: in this process, or in several of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from typing import Protocol

from pipesched.profiles.processes import worker_pool
from pipesched.simulator.search.search_candidate import CandidateT
from pipesched.simulator.search.search_outcome import OutcomeT

_CHUNK = 16
"""Candidates that a process takes at once: many of them have the same lists, which it makes once."""


class Runner(Protocol):
    """Lets a judge go through candidates, here or elsewhere."""

    def __call__(
        self, judge: Callable[[CandidateT], OutcomeT], candidates: Sequence[CandidateT], /
    ) -> Iterator[OutcomeT]:
        """Yield what `judge`, which can be sent to another process, says of each candidate, in any order."""


def evaluate_in_turn(judge: Callable[[CandidateT], OutcomeT], candidates: Sequence[CandidateT]) -> Iterator[OutcomeT]:
    """Go through candidates in their order, in this process."""
    return map(judge, candidates)


def make_process_runner(workers: int) -> Runner:
    """Return what goes through candidates in so many processes; 1: in this one."""

    def run(judge: Callable[[CandidateT], OutcomeT], candidates: Sequence[CandidateT]) -> Iterator[OutcomeT]:
        chunks = split_into_chunks(candidates)
        if workers == 1 or not chunks:
            for chunk in chunks:
                yield from map(judge, chunk)
            return
        with worker_pool(min(workers, len(chunks))) as pool:
            for future in as_completed([pool.submit(evaluate_all, judge, chunk) for chunk in chunks]):
                yield from future.result()

    return run


def split_into_chunks(candidates: Sequence[CandidateT]) -> list[Sequence[CandidateT]]:
    """Share the candidates out, the longest first, equal lists together; a process takes a chunk at a time."""
    longest_first = sorted(candidates, key=lambda candidate: (-candidate.num_microbatches, str(candidate.order)))
    return [longest_first[start : start + _CHUNK] for start in range(0, len(candidates), _CHUNK)]


def evaluate_all(judge: Callable[[CandidateT], OutcomeT], candidates: Sequence[CandidateT]) -> list[OutcomeT]:
    """Evaluate a few candidates, one after the other."""
    return [judge(candidate) for candidate in candidates]
