"""Weight prediction: SpecTrain (arXiv:1809.02839), XPipe (arXiv:1911.04610), PipeOptim (arXiv:2312.00839).

PipeDream's order with a Step after every B and no old weights: an op reads the newest weights, or predicts the
weights of a later step from them. F2@0+2 looks 2 steps ahead of version 0. PipeOptim on p = 3 ranks:

    rank 0  F0@0+2 F1@0+2 F2@0+2 ..     ..     B0@0   F3@1+2 B1@1   F4@2+2 B2@2
    rank 1  ..     F0@0+1 F1@0+1 ..     B0@0   F2@1+1 B1@1   F3@2+1 B2@2   F4@3+1
    rank 2  ..     ..     F0@0   B0@0   F1@1   B1@1   F2@2   B2@2   F3@3   B3@3

PipeOptim (section III-A): F predicts the version of its B, s = p - 1 - k steps ahead, and B reads the newest weights
without a prediction. The last stage needs no prediction. The authors' code looks one step further on every stage:
`extra` = 1.

SpecTrain (section 3.2): F and B both predict the weights of the moment when the micro-batch returns to stage 0. From
B of stage k, k backwards remain until then, which take the time of floor(k / 2) steps. F looks p - 1 - k steps
further ahead than B. XPipe looks equally far ahead; only its prediction rule differs.

The list does not contain the prediction itself: `PredictionRule` names it.
"""

from __future__ import annotations

from pipesched.schedules import Schedule, ScheduleError
from pipesched.schedules.builders._held_builder import held_builder
from pipesched.schedules.builders.pipedream import unflushed
from pipesched.schedules.ops import Compute, Phase


def generated_spectrain(num_ranks: int, num_microbatches: int) -> Schedule:
    """Build a run with SpecTrain's look-ahead and a Step after each micro-batch."""
    return _ahead_twice("spectrain", num_ranks, num_microbatches)


def generated_xpipe(num_ranks: int, num_microbatches: int) -> Schedule:
    """Build a run with XPipe's look-ahead, which is SpecTrain's."""
    return _ahead_twice("xpipe", num_ranks, num_microbatches)


def generated_pipeoptim(num_ranks: int, num_microbatches: int, extra: int = 0) -> Schedule:
    """Build a run with PipeOptim's look-ahead: in forwards only, `extra` steps beyond their backward.

    Raises:
        ScheduleError: A count is below 1, or `extra` is below 0.
    """
    if not isinstance(extra, int) or isinstance(extra, bool) or extra < 0:
        raise ScheduleError(f"pipeoptim: got extra {extra!r}, expected 0 or more steps; try extra=1")

    def forward(stage: int, i: int) -> Compute:
        ahead = num_ranks - 1 - stage
        return Compute(Phase.FORWARD, stage, i, max(0, i - ahead), ahead + extra)

    def backward(stage: int, i: int) -> Compute:
        return Compute(Phase.BACKWARD, stage, i, i)

    return unflushed("pipeoptim", num_ranks, num_microbatches, forward, backward)


def _ahead_twice(name: str, num_ranks: int, num_microbatches: int) -> Schedule:
    def forward(stage: int, i: int) -> Compute:
        ahead = num_ranks - 1 - stage
        return Compute(Phase.FORWARD, stage, i, max(0, i - ahead), stage // 2 + ahead)

    def backward(stage: int, i: int) -> Compute:
        return Compute(Phase.BACKWARD, stage, i, i, stage // 2)

    return unflushed(name, num_ranks, num_microbatches, forward, backward)


spectrain = held_builder(generated_spectrain)
xpipe = held_builder(generated_xpipe)
pipeoptim = held_builder(generated_pipeoptim)
