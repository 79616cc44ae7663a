"""PipeDream, asynchronous 1F1B with weight stashing: arXiv:1806.03377, sections 3.2 and 3.3.

p = 3 ranks; F2@1 reads the weights after one optimizer step, a Step follows every B:

    rank 0  F0@0 F1@0 F2@0 ..   ..   B0@0 F3@1 B1@0 F4@2 B2@0
    rank 1  ..   F0@0 F1@0 ..   B0@0 F2@1 B1@0 F3@2 B2@1 F4@3
    rank 2  ..   ..   F0@0 B0@0 F1@1 B1@1 F2@2 B2@2 F3@3 B3@3

No flush. F of micro-batch i reads the newest weights of its stage, version max(0, i - w) with w = p - 1 - k forwards
ahead on rank k; B of i reads the same version, which is kept (stashed) until then: rank k holds w + 1 versions. As a
recurrence, with W_k for the weights of stage k: W(t+1) = W(t) - lr grad f(W_0(t-p+1), ..., W_{p-1}(t)).

PipeDream-2BW, double-buffered weights (arXiv:2006.09503, section 3.1): the same order, and a Step after every
`accumulate` micro-batches, at least p. Here p = 2, accumulate = 2:

    rank 0  F0@0 F1@0 ..   B0@0 F2@0 B1@0 F3@0 B2@0 F4@1 B3@0 F5@1 B4@1
    rank 1  ..   F0@0 B0@0 F1@0 B1@0 F2@0 B2@0 F3@0 B3@0 F4@1 B4@1 F5@1

All micro-batches of period b read version max(0, b - 1), on every stage: W(t+1) = W(t) - lr grad f(W(t-1)). Two
versions are held. Fewer than p micro-batches per Step are refused: a period would begin before the Step that makes
its version. A single rank runs nothing ahead: its period b reads version b, as in ordinary training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice

from pipesched.schedules import Schedule, ScheduleError, make_generated_schedule
from pipesched.schedules.builders._held_builder import held_builder
from pipesched.schedules.common import positive
from pipesched.schedules.ops import Compute, Op, Reduce, Step, backward, forward


def generated_pipedream(num_ranks: int, num_microbatches: int) -> Schedule:
    """Build a run with a Step of every stage after each micro-batch."""

    def version(stage: int, i: int) -> int:
        return max(0, i - (num_ranks - 1 - stage))

    return unflushed(
        "pipedream",
        num_ranks,
        num_microbatches,
        lambda stage, i: forward(stage, i, version(stage, i)),
        lambda stage, i: backward(stage, i, version(stage, i)),
    )


def generated_pipedream_2bw(num_ranks: int, num_microbatches: int, accumulate: int | None = None) -> Schedule:
    """Build a run in which every stage steps after each `accumulate` micro-batches (default: the number of ranks).

    Raises:
        ScheduleError: A count is below 1, a Step has fewer micro-batches than ranks, or the last period is not full.
    """
    period = update_period("pipedream_2bw", num_ranks, num_microbatches, accumulate)
    delay = 1 if num_ranks > 1 else 0
    return unflushed(
        "pipedream_2bw",
        num_ranks,
        num_microbatches,
        lambda stage, i: forward(stage, i, max(0, i // period - delay)),
        lambda stage, i: backward(stage, i, max(0, i // period - delay)),
        accumulate=period,
    )


pipedream = held_builder(generated_pipedream)
pipedream_2bw = held_builder(generated_pipedream_2bw)

Made = Callable[[int, int], Compute]
"""A function from (stage, micro-batch) to an op."""


def unflushed(
    name: str,
    num_ranks: int,
    num_microbatches: int,
    forward_of: Made,
    backward_of: Made,
    *,
    slack: int = 1,
    accumulate: int = 1,
) -> Schedule:
    """Build a run in PipeDream's order, stage k on rank k, whose ops name the weights that they read.

    Args:
        slack: Rank k runs slack (p - 1 - k) forwards ahead.
        accumulate: Micro-batches per Step.
    """
    positive(num_ranks=num_ranks, num_microbatches=num_microbatches)

    def ops(rank: int) -> Iterator[Op]:
        forwards = (forward_of(rank, i) for i in range(num_microbatches))
        backwards = (backward_of(rank, i) for i in range(num_microbatches))
        return without_flush(forwards, backwards, slack * (num_ranks - 1 - rank), accumulate)

    return make_generated_schedule(name, num_ranks, num_microbatches, [partial(ops, rank) for rank in range(num_ranks)])


def without_flush(
    forwards: Iterable[Compute | None],
    backwards: Iterable[Compute | None],
    warmup: int,
    accumulate: int = 1,
    *,
    is_replicated: bool = False,
) -> Iterator[Op]:
    """Yield `warmup` forwards, then a forward and a backward in turn, then the remaining backwards.

    A Step follows the backward that ends a period of `accumulate` micro-batches; with replicas, a Reduce comes
    between them. None stands for an idle place.
    """
    ahead = iter(forwards)
    yield from filter(None, islice(ahead, warmup))
    for op in backwards:
        yield from filter(None, islice(ahead, 1))
        if op is None:
            continue
        yield op
        if (op.microbatch + 1) % accumulate == 0:
            if is_replicated:
                yield Reduce(op.stage)
            yield Step(op.stage)


def update_period(name: str, num_ranks: int, num_microbatches: int, accumulate: int | None) -> int:
    """Return the micro-batches per Step of schedule `name`: `accumulate`, or the number of ranks by default.

    Raises:
        ScheduleError: The number is below 1 or below the number of ranks, or does not divide the micro-batches of the
            run.
    """
    positive(num_ranks=num_ranks, num_microbatches=num_microbatches)
    period = num_ranks if accumulate is None else accumulate
    positive(accumulate=period)
    if period < num_ranks:
        raise ScheduleError(
            f"{name}: got accumulate {period} on {num_ranks} ranks, expected at least {num_ranks} micro-batches per "
            f"Step, so that a period begins after the Step that makes its weights; try accumulate={num_ranks}"
        )
    if num_microbatches % period:
        above = num_microbatches + period - num_microbatches % period
        near = f"{above - period} or {above}" if above > period else f"{above}"
        raise ScheduleError(
            f"{name}: got {num_microbatches} micro-batches, expected a multiple of the {period} per Step (accumulate): "
            f"every Step averages the same number; try {near} micro-batches"
        )
    return period
