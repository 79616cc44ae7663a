"""The due date of the first W or B of each stage, if gradients are large beside the activations of a micro-batch.

A stage holds its gradients from its first W on, and until its Step. Before that W its rank has room for more:

    gradients 2.5, limit 3.5     F0 F1 F2 I0 I1 I2 W0 W1 W2 F3 I3 W3        three micro-batches before W0, then one
    two stages on a rank         .. all I of both .. W0 W1 .. Step of one stage, W0 W1 .. Step of the other

The same holds for the first B of stages that share a rank. A lag is the delay of the first W or B of a stage against
its usual due date (a W right after its I, a B in its turn), in intervals from micro-batch to micro-batch. All other W
and B keep their due dates, or are due right after the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple, TypeAlias, final

from pipesched.schedules.ops import Compute, Phase
from pipesched.simulator.optimum.order_problem import OrderProblem

Lags: TypeAlias = tuple[float, ...]
"""The lag of each stage; none: a B is due as ever, and each W fills the time in which there is nothing else."""
_SOONER = 1e-6
"""How much sooner than the F of a micro-batch the ops before it are due [intervals]."""
_CHANGES = (-2.0, -1.0, -0.5, -0.25, 0.25, 0.5, 1.0, 2.0)
"""By how much a lag is changed [intervals]."""


class LaggingStage(NamedTuple):
    """A stage whose gradients may come later, and its kinds.

    Attributes:
        stage: The stage.
        forward: F.
        backward: The kind that makes the gradient of the input: I, or B.
        gradients: The kind that makes the gradients of the weights: W, or B.
    """

    stage: int
    forward: int
    backward: int
    gradients: int


@final
class GradientLags:
    """The lags that are tried for one problem.

    Args:
        stages: The stages that may lag, the first one first.
        num_microbatches: Micro-batches.
        num_ranks: Ranks, and stages of a chunk.
    """

    def __init__(self, stages: Sequence[LaggingStage], num_microbatches: int, num_ranks: int) -> None:
        self._num_microbatches = float(num_microbatches)
        self._chunks = [stage.stage // num_ranks for stage in stages]
        self._num_chunks = max(self._chunks, default=-1) + 1

    def even(self, lag: float) -> Lags:
        """Return the same lag for every stage."""
        return (lag,) * len(self._chunks)

    def at_the_end(self) -> Iterator[Lags]:
        """Yield lags by which gradients come after the last forward, the gradients of one chunk last."""
        for last in range(self._num_chunks):
            yield tuple((3.0 if chunk == last else 2.0) * self._num_microbatches for chunk in self._chunks)

    def before(self, microbatch: float, spans: Sequence[float]) -> Lags:
        """Return lags by which the gradients of a stage come right before the F of a micro-batch.

        Args:
            microbatch: The micro-batch; with a fraction, between two.
            spans: From the F of a micro-batch to its backward, by stage [intervals].
        """
        return tuple(max(0.0, microbatch - span - _SOONER) for span in spans)

    def of_one_chunk(self, lags: Lags) -> Iterator[Lags]:
        """Yield lags for all chunks, and for each of several chunks alone."""
        yield lags
        for late in range(self._num_chunks if self._num_chunks > 1 else 0):
            yield tuple(lag if chunk == late else 0.0 for lag, chunk in zip(lags, self._chunks, strict=True))

    def drawn(self, draw: Random, spans: Sequence[float]) -> Lags:
        """Return lags that are drawn: before one micro-batch, by stage, or by chunk."""
        lag = draw.randint(0, int(self._num_microbatches)) + draw.choice((0.0, 0.5))
        chance = draw.random()
        if chance < 0.3:
            return self.before(lag, spans)
        lags = (0.0, lag, lag, lag / 2, 2 * self._num_microbatches, 3 * self._num_microbatches)
        if chance < 0.5:
            return tuple(draw.choice(lags) for _ in self._chunks)
        of_chunks = [draw.choice(lags) for _ in range(self._num_chunks)]
        return tuple(of_chunks[chunk] for chunk in self._chunks)

    def changed(self, lags: Lags, draw: Random, spans: Sequence[float]) -> Lags:
        """Return the same with one or all of them changed, others, or now and then none."""
        chance = draw.random()
        if chance < 0.1 and lags:
            return ()
        if chance < 0.4 or not lags:
            return self.drawn(draw, spans)
        more, only = draw.choice(_CHANGES), draw.randrange(len(lags)) if draw.random() < 0.7 else None
        return tuple(lag if only not in {None, at} else max(0.0, lag + more) for at, lag in enumerate(lags))


def lagging_stages(problem: OrderProblem) -> list[LaggingStage]:
    """Return the stages with W, and the stages with B if ranks have several stages, in order of the stages."""
    kinds = {op: kind for op, kind in problem.index_of.items() if isinstance(op, Compute)}
    phases = {Phase.BACKWARD_WEIGHT: Phase.BACKWARD_INPUT}
    if len(problem.room.saved) > problem.num_ranks:
        phases[Phase.BACKWARD] = Phase.BACKWARD
    stages = [
        LaggingStage(
            op.stage, kinds[Compute(Phase.FORWARD, op.stage, 0)], kinds[Compute(phases[op.phase], op.stage, 0)], kind
        )
        for op, kind in kinds.items()
        if op.phase in phases
    ]
    return sorted(stages)
