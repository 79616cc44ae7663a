"""Queries of the executor about op lists: stages of a rank, channels, replicas."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from math import lcm
from typing import TypeAlias, final

from pipesched.executor import ExecutionError
from pipesched.schedules import GeneratedOps, Schedule
from pipesched.schedules.lowering import lowered_ranks
from pipesched.schedules.ops import Average, Compute, Op, Send, Step, computes

LoweredLists: TypeAlias = Mapping[int, Iterable[Op]]
"""The lowered list of each of some ranks; each can be read again and again."""


def lists_of(schedule: Schedule, ranks: Collection[int]) -> LoweredLists:
    """Return the lowered lists of `ranks`; the caller must read all of them, at about the same pace."""
    if schedule.is_lowered:
        return {rank: schedule.lists[rank] for rank in ranks}
    together = _Together(schedule, ranks)
    return {rank: _Member(together, rank) for rank in ranks}


@final
class _Together:
    """Lists of ranks that one pass lowers together; beginning a list a second time starts another pass."""

    def __init__(self, schedule: Schedule, ranks: Collection[int]) -> None:
        self._schedule = schedule
        self._ranks = ranks
        self._left: dict[int, Iterator[Op]] = {}

    def begin(self, rank: int) -> Iterator[Op]:
        if rank not in self._left:
            self._left = dict(lowered_ranks(self._schedule, self._ranks))
        return self._left.pop(rank)


@final
class _Member:
    """One rank's list of a joint lowering."""

    def __init__(self, together: _Together, rank: int) -> None:
        self._together = together
        self._rank = rank

    def __iter__(self) -> Iterator[Op]:
        return self._together.begin(self._rank)


def stage_ops(schedule: Schedule, rank: int, stage: int) -> Iterator[Compute | Step]:
    """Yield the computations of `rank` on `stage`, and its Steps."""
    return _of_stage(schedule.lists[rank], stage)


def is_flushed(schedule: Schedule, rank: int, stage: int) -> bool:
    """Return whether `rank` steps `stage` at the end of a repeated batch; then all ops read the newest weights."""
    ops = schedule.lists[rank]
    if not isinstance(ops, GeneratedOps) or ops.batch is None:
        return False
    batch = list(_of_stage(ops.batch, stage))
    parts = [op for op in batch if isinstance(op, Compute)]
    is_plain = all(part.version == 0 and part.lookahead == 0 for part in parts)
    return is_plain and all(isinstance(op, Step) for op in batch[len(parts) :])


def _of_stage(ops: Iterable[Op], stage: int) -> Iterator[Compute | Step]:
    for op in ops:
        if isinstance(op, Step) and op.stage == stage:
            yield op
        yield from (part for part in computes(op) if part.stage == stage)


def averagers(schedule: Schedule) -> Mapping[int, tuple[int, ...]]:
    """Return, for each stage that is averaged, in order of the stages, the ranks that average it.

    Raises:
        ExecutionError: The ranks that average a stage are on several devices, which share no memory.
    """
    for stage, ranks in schedule.averagers.items():
        devices = sorted({schedule.rank_to_device[rank] for rank in ranks})
        if len(devices) > 1:
            raise ExecutionError(
                f"{Average(stage)}: got its ranks {', '.join(map(str, ranks))} on devices "
                f"{', '.join(map(str, devices))}, expected one device, whose memory the pipelines share; put these "
                "ranks on one device"
            )
    return schedule.averagers


def channels(schedule: Schedule) -> list[tuple[int, int]]:
    """Return the (sender, receiver) of every channel of the lowered lists, in ascending order."""
    if schedule.is_held and schedule.is_lowered:
        return sorted({(rank, op.peer) for rank, ops in enumerate(schedule.ops) for op in ops if isinstance(op, Send)})
    pairs = set()
    for stage in range(schedule.num_stages - 1):
        for microbatch in range(lcm(len(schedule.homes[stage]), len(schedule.homes[stage + 1]))):
            ends = schedule.home(stage, microbatch), schedule.home(stage + 1, microbatch)
            if ends[0] != ends[1]:
                pairs |= {ends, ends[::-1]}
    return sorted(pairs)
