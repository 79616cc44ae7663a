"""All ranks in one process, by turns: the reference for correctness, and training of 64 stages on a laptop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from executor.errors import ExecutionError, failed
from executor.interpreter import Batch, Rank, Waiting, begin, execute_rank


def run_local(ranks: Sequence[Rank], batch: Batch) -> None:
    """Run every rank's list once, each as far as it comes at a turn.

    Raises:
        ExecutionError: An op failed, or every unfinished rank waits: a deadlock; with rank and op.
    """
    for rank in ranks:
        begin(rank)
    by_number = {rank.rank: rank for rank in ranks}
    programs = {rank.rank: execute_rank(rank, batch) for rank in ranks}
    waiting: dict[int, Waiting] = {}
    while programs:
        moved = False
        for number, program in list(programs.items()):
            before, now = waiting.pop(number, None), _turn(by_number[number], program)
            if now is None:
                del programs[number]
            else:
                waiting[number] = now
            moved = moved or now is None or before is None or now.op is not before.op or now.message != before.message
        if not moved:
            raise ExecutionError("deadlock: " + ", ".join(map(str, waiting.values())))


def _turn(rank: Rank, program: Iterator[Waiting]) -> Waiting | None:
    """Let one rank go on; return what it waits for, None when it is done."""
    try:
        return next(program, None)
    except Exception as error:  # a user's layer may raise anything
        raise failed(rank.rank, rank.ops[len(rank.recorder)], error) from error
