"""AvgPipe: N pipelines on the same devices, averaged elastically (PPoPP 2023, doi:10.1145/3572848.3577484).

Two pipelines of two stages on two devices: ranks 0 and 2 share device 0, ranks 1 and 3 device 1.

    rank 0  F0 F1 F2 B0 .. B1 .. B2
    rank 1  .. F0 B0 F1 B1 F2 B2 ..
    rank 2  F3 F4 F5 B3 .. B4 .. B5
    rank 3  .. F3 B3 F4 B4 F5 B5 ..

Each pipeline is a full copy of the model with a batch and an optimizer of its own, in 1F1B with advance forward
propagation (`builders.one_f_one_b`). After its Step a stage is drawn towards the reference model by an Average; so
the copies are no replicas whose gradients are summed. What one pipeline leaves idle of a device, another uses: since
small micro-batches seldom fill a device, N of them side by side may cost little more than one.

One pipeline alone has nothing to average with, and is plain training.
"""

from __future__ import annotations

from pipesched.schedules import Average, Op, Schedule, ScheduleError, make_schedule, positive
from pipesched.schedules.builders.one_f_one_b import pipeline_rows, require_advance


def avgpipe(num_ranks: int, num_microbatches: int, pipelines: int = 2, advance: int = 1) -> Schedule:
    """Build N pipelines: rank ``n * num_ranks + k`` holds stage k of pipeline n, on device k.

    Args:
        num_ranks: K, the ranks of one pipeline; there are N of them on every device.
        num_microbatches: Micro-batches of all pipelines together; pipeline n has the n-th N-th of them, its own batch.
        pipelines: N.
        advance: Forwards that every rank but the last of a pipeline runs further ahead than in 1F1B.

    Raises:
        ScheduleError: Counts below 1, or micro-batches that cannot be shared out evenly.
    """
    positive(num_ranks=num_ranks, num_microbatches=num_microbatches, pipelines=pipelines)
    require_advance(advance)
    per_pipeline, left = divmod(num_microbatches, pipelines)
    if left:
        near = f"{per_pipeline * pipelines} or {(per_pipeline + 1) * pipelines}" if per_pipeline else f"{pipelines}"
        raise ScheduleError(
            f"avgpipe: got {num_microbatches} micro-batches on {pipelines} pipelines, expected as many on each; "
            f"try {near}"
        )
    starts = range(0, num_microbatches, per_pipeline)
    rows = [
        row for start in starts for row in _averaged(num_ranks, range(start, start + per_pipeline), pipelines, advance)
    ]
    devices = tuple(range(num_ranks)) * pipelines
    return make_schedule("avgpipe", num_ranks, num_microbatches, rows, devices)


def one_pipeline(num_ranks: int, num_microbatches: int, pipelines: int = 2, advance: int = 1) -> Schedule:
    """Build the first of the pipelines that `avgpipe` builds, alone; the others differ in their micro-batches only.

    Args:
        num_ranks: K.
        num_microbatches: Micro-batches of this one pipeline.
        pipelines: N; with one there is no Average.
        advance: How many forwards run ahead of the backwards, as in `avgpipe`.

    Raises:
        ScheduleError: Counts below 1.
    """
    positive(num_ranks=num_ranks, num_microbatches=num_microbatches, pipelines=pipelines)
    require_advance(advance)
    rows = _averaged(num_ranks, range(num_microbatches), pipelines, advance)
    return make_schedule("avgpipe", num_ranks, num_microbatches, rows)


def _averaged(num_ranks: int, microbatches: range, pipelines: int, advance: int) -> list[list[Op]]:
    """Return the lists of one pipeline, averaged if there are others."""
    rows = pipeline_rows(num_ranks, microbatches, advance)
    return [[*row, Average(stage)] if pipelines > 1 else row for stage, row in enumerate(rows)]
