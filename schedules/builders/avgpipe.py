"""AvgPipe: N pipelines on the same devices, averaged elastically (PPoPP 2023, doi:10.1145/3572848.3577484).

Two pipelines of two stages on two devices: ranks 0 and 2 share device 0, ranks 1 and 3 device 1.

    rank 0  F0 F1 F2 B0 .. B1 .. B2
    rank 1  .. F0 B0 F1 B1 F2 B2 ..
    rank 2  F3 F4 F5 B3 .. B4 .. B5
    rank 3  .. F3 B3 F4 B4 F5 B5 ..

Each pipeline is a full copy of the model with a batch and an optimizer of its own, in 1F1B with advance forward
propagation (`builders.one_f_one_b`). After its Step, an Average moves the stage towards the reference model.
Gradients of the copies are not summed. A pipeline uses the idle time of the others on its device. Small micro-batches
seldom fill a device, so N of them side by side may take little more time than one.

A single pipeline has no Averages: it is plain training.
"""

from __future__ import annotations

from pipesched.schedules import Schedule, ScheduleError, make_schedule
from pipesched.schedules.builders._spelling import Letter, spelled, stage_letters
from pipesched.schedules.builders.one_f_one_b import pipeline_rows, require_advance
from pipesched.schedules.columns import OpColumns
from pipesched.schedules.common import positive, require_cells
from pipesched.schedules.ops import Average


def avgpipe(num_ranks: int, num_microbatches: int, pipelines: int = 2, advance: int = 1) -> Schedule:
    """Build N pipelines: rank ``n * num_ranks + k`` holds stage k of pipeline n, on device k.

    Args:
        num_ranks: K, the ranks of one pipeline; N of them share every device.
        num_microbatches: Micro-batches of all pipelines together; each pipeline takes an equal part, its own batch.
        pipelines: N.
        advance: Extra forwards ahead, compared with 1F1B, of every rank but the last of a pipeline.

    Raises:
        ScheduleError: A count is below 1, or the micro-batches cannot be divided evenly.
    """
    positive(num_ranks=num_ranks, num_microbatches=num_microbatches, pipelines=pipelines)
    require_advance(advance)
    per_pipeline, left = divmod(num_microbatches, pipelines)
    if left:
        near = f"{per_pipeline * pipelines} or {(per_pipeline + 1) * pipelines}" if per_pipeline else f"{pipelines}"
        raise ScheduleError(
            f"avgpipe: got {num_microbatches} micro-batches on {pipelines} pipelines, expected the same number on "
            f"each; try {near}"
        )
    columns = _averaged(num_ranks, per_pipeline, range(pipelines), pipelines, advance)
    return make_schedule("avgpipe", num_ranks, num_microbatches, columns, tuple(range(num_ranks)) * pipelines)


def one_pipeline(num_ranks: int, num_microbatches: int, pipelines: int = 2, advance: int = 1) -> Schedule:
    """Build the first pipeline of `avgpipe` alone; the others have the same lists with other micro-batches.

    Args:
        num_ranks: K.
        num_microbatches: Micro-batches of this one pipeline.
        pipelines: N; a single one has no Average.
        advance: Number of forwards that run ahead of the backwards, as in `avgpipe`.

    Raises:
        ScheduleError: A count is below 1, or the lists do not fit into memory.
    """
    positive(num_ranks=num_ranks, num_microbatches=num_microbatches, pipelines=pipelines)
    require_cells("schedule avgpipe", num_ranks, num_ranks, num_microbatches)
    require_advance(advance)
    columns = _averaged(num_ranks, num_microbatches, range(1), pipelines, advance)
    return make_schedule("avgpipe", num_ranks, num_microbatches, columns)


def _averaged(num_ranks: int, per_pipeline: int, numbers: range, pipelines: int, advance: int) -> OpColumns:
    """Return the lists of the pipelines in `numbers`, with Averages if `pipelines` is above 1."""
    rows = [row + "A" * (pipelines > 1) for row in pipeline_rows(num_ranks, per_pipeline, advance)]
    stages = [*range(num_ranks)] * len(numbers)
    firsts = [number * per_pipeline for number in numbers for _ in range(num_ranks)]
    letters = stage_letters(stages, firsts) | {"A": Letter(Average, stages)}
    return spelled(rows * len(numbers), letters)
