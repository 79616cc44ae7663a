"""Set up the reference models of a run by several processes: one more process per device whose stages are averaged.

    rank 0 (of pipeline 0) -- starts --> reference process <-- connects -- rank 2 (of pipeline 1)
              `-------------- memory of the device, mapped by all three --------------'

The first rank of a device starts its process, so that it is the same under torchrun.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from pipesched.executor import Averaging, RankFailed
from pipesched.executor.averaging import (
    Averaged,
    ElasticAverager,
    SharedPool,
    averaged,
    come_to,
    memory_bytes,
    stage_tensors,
)
from pipesched.executor.core import ModuleStage, Stage, averagers
from pipesched.executor.launch.meeting import gather_texts
from pipesched.executor.launch.rank_context import RankContext
from pipesched.schedules import Schedule


@contextmanager
def references(
    schedule: Schedule, context: RankContext, stages: Mapping[int, Stage], averaging: Averaging
) -> Iterator[None]:
    """Attach the averaged stages of this rank to their reference inside the block; all ranks call this together.

    Args:
        stages: Stages of this rank, with the weights that all pipelines begin with.
        averaging: The form of elastic averaging.

    Raises:
        ExecutionError: A stage is averaged on several devices, or the ranks of a device are on several machines.
        RankFailed: The process that this rank started ended too early.
    """
    ranks_of = averagers(schedule)
    if not ranks_of:
        yield
        return
    device = schedule.rank_to_device[context.rank]
    held = [
        averaged
        for averaged in _everyones(ranks_of, stages, context)
        if schedule.rank_to_device[averaged.ranks[0]] == device
    ]
    ranks = sorted({rank for averaged in held for rank in averaged.ranks})
    process = context.reference
    attached: list[ElasticAverager] = []
    try:
        addresses = gather_texts("" if process is None else process.address)
        if process is not None:
            attached = _attach(process.hold(held, context.timeout_s), held, stages, context.rank, averaging)
        elif context.rank in ranks:
            address, size = addresses[ranks[0]], memory_bytes(held)
            pool = come_to(address, device, ranks[0], context.rank, size, context.timeout_s)
            attached = _attach(pool, held, stages, context.rank, averaging)
        context.meet()  # all have come, and the references hold their first weights
        if process is not None:
            process.all_have_come()
        yield
        for averager in attached:
            averager.is_complete()  # waits: if it never is, that is to be known
        context.meet()
    except RankFailed as error:
        death = None if process is None else process.death()
        if death is None or death in str(error):
            raise
        raise RankFailed(f"{death}; {error}") from error


def _everyones(
    ranks_of: Mapping[int, Sequence[int]], stages: Mapping[int, Stage], context: RankContext
) -> Iterator[Averaged]:
    """Yield all averaged stages; the first rank of each stage sends its tensor names and sizes to the others."""
    first_stages = {
        index: averaged(index, ranks_of[index], stage.parameters).tensors
        for index, stage in stages.items()
        if isinstance(stage, ModuleStage) and index in ranks_of and context.rank == ranks_of[index][0]
    }
    told = [json.loads(text) for text in gather_texts(json.dumps(first_stages))]
    for index, ranks in ranks_of.items():
        yield Averaged(index, tuple(ranks), tuple((name, count) for name, count in told[ranks[0]][str(index)]))


def _attach(
    pool: SharedPool, held: Sequence[Averaged], stages: Mapping[int, Stage], rank: int, averaging: Averaging
) -> list[ElasticAverager]:
    """Give the stages of this rank their averagers, and return the averagers."""
    shared = stage_tensors(pool.memory, held)
    made = []
    for index, stage in stages.items():
        if isinstance(stage, ModuleStage) and index in shared:
            averager = ElasticAverager(index, rank, stage.parameters, shared[index], pool, averaging)
            stage.averager = averager
            made.append(averager)
            if averager.is_first:
                averager.begin(stage.first_reference)
    return made
