"""Cut layers into stages of neighbours so that the slowest stage takes the least time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import TypeAlias

from pipesched.profiles import ProfileError

StageCostOf: TypeAlias = Callable[[int, int, int], float]
"""What (stage, first layer, layer behind the last) costs."""


def uniform_partition(num_layers: int, num_stages: int) -> tuple[tuple[int, int], ...]:
    """Return stages whose numbers of layers differ by at most one, the larger ones first.

    Raises:
        ProfileError: There are more stages than layers, or none.
    """
    _check(num_layers, num_stages)
    share, larger = divmod(num_layers, num_stages)
    return _bounds([share + (stage < larger) for stage in range(num_stages)])


def balanced_partition(
    seconds: Sequence[float],
    num_stages: int,
    speeds: Sequence[float] | None = None,
    fits: Callable[[int, int, int], bool] | None = None,
) -> tuple[tuple[int, int], ...]:
    """Return the stages whose slowest is as fast as can be; among those, the most even ones.

    Args:
        seconds: Forward plus backward of each layer on a device of speed 1.
        num_stages: At least 1.
        speeds: Speed of the device of each stage; None: all 1.
        fits: Whether a stage (its number, its first layer, the layer behind its last) has room on its device; None:
            every stage has.

    Raises:
        ProfileError: There are more stages than layers, a time is negative or not finite, there is not one speed
            above 0 for each stage, or in every partition a stage does not fit.
    """
    _check(len(seconds), num_stages)
    for layer, value in enumerate(seconds):
        if not math.isfinite(value) or value < 0:
            raise ProfileError(
                f"partition: layer {layer}: got {value} s, expected a finite time, 0 or more; measure the profile again"
            )
    rates = (1.0,) * num_stages if speeds is None else tuple(speeds)
    if len(rates) != num_stages or not all(math.isfinite(speed) and speed > 0 for speed in rates):
        raise ProfileError(
            f"partition: got speeds {rates[:8]}, expected {num_stages}, one above 0 for each stage; correct the cluster"
        )
    sums = [0.0, *accumulate(seconds)]

    def stage_s(stage: int, first: int, last: int) -> float:
        if fits is not None and not fits(stage, first, last):
            return math.inf
        return (sums[last] - sums[first]) / rates[stage]

    return cheapest_partition(stage_s, len(seconds), num_stages)


def cheapest_partition(cost: StageCostOf, num_layers: int, num_stages: int) -> tuple[tuple[int, int], ...]:
    """Return the stages whose costliest costs as little as can be; among those, the most even ones.

    Exact, by dynamic programming over (stages, layers): first the smallest possible maximum, then within it the
    smallest sum of squares. Takes num_stages x layers^2 steps.

    Args:
        cost: Cost of (stage, its first layer, the layer behind its last), 0 or more: seconds, or bytes; infinite for a
            stage that cannot be.
        num_layers: At least `num_stages`.
        num_stages: At least 1.

    Raises:
        ProfileError: There are more stages than layers, or every partition has a stage that cannot be.
    """
    _check(num_layers, num_stages)
    limit = _smallest_maximum(cost, num_layers, num_stages)
    if not math.isfinite(limit):
        raise ProfileError(
            f"partition: got no way to cut {num_layers} layers into {num_stages} stages that are all possible, "
            "expected one; use more stages, more memory or smaller micro-batches"
        )
    return _most_even(cost, num_layers, num_stages, limit)


def parse_partition(text: str, seconds: Sequence[float], num_stages: int) -> tuple[tuple[int, int], ...]:
    """Return the partition that `text` names: ``uniform``, ``balanced``, or layers per stage as in ``3,3,4``.

    Args:
        text: The partition, as a user wrote it.
        seconds: Forward plus backward of each layer; only their number counts unless `text` is ``balanced``.
        num_stages: At least 1.

    Raises:
        ProfileError: `text` is none of these, or does not fit the layers or the stages.
    """
    if text == "uniform":
        return uniform_partition(len(seconds), num_stages)
    if text == "balanced":
        return balanced_partition(seconds, num_stages)
    _check(len(seconds), num_stages)
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ProfileError(
            f"partition: got {text[:60]!r}, expected uniform, balanced or layers per stage; try 3,3,4"
        ) from error
    if len(sizes) != num_stages or min(sizes) < 1 or sum(sizes) != len(seconds):
        raise ProfileError(
            f"partition: got {text[:60]!r}, {len(sizes)} stages of {sum(sizes)} layers in all, expected {num_stages} "
            f"stages of at least 1 layer, {len(seconds)} in all; try balanced"
        )
    return _bounds(sizes)


def _check(num_layers: int, num_stages: int) -> None:
    if not 1 <= num_stages <= num_layers:
        raise ProfileError(
            f"partition: got {num_stages} stages for {num_layers} layers, expected 1 to {num_layers} stages; "
            f"{'use fewer stages or a deeper model' if num_stages > num_layers else 'use at least one stage'}"
        )


def _bounds(sizes: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple(pairwise(accumulate(sizes, initial=0)))


def _smallest_maximum(cost: StageCostOf, num_layers: int, num_stages: int) -> float:
    """Return the least possible cost of the costliest stage."""
    best = [0.0] + [math.inf] * num_layers
    for stage in range(num_stages):
        best = [
            min((max(best[cut], cost(stage, cut, end)) for cut in range(stage, end)), default=math.inf)
            for end in range(num_layers + 1)
        ]
    return best[-1]


def _most_even(cost: StageCostOf, num_layers: int, num_stages: int, limit: float) -> tuple[tuple[int, int], ...]:
    """Return the stages of least sum of squares among those where none costs more than `limit`."""
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, (0,))] + [(math.inf, ())] * num_layers
    for stage in range(num_stages):
        step: list[tuple[float, tuple[int, ...]]] = [(math.inf, ())] * (num_layers + 1)
        for end in range(stage + 1, num_layers + 1):
            for cut in range(stage, end):
                own = cost(stage, cut, end)
                squares = best[cut][0] + own**2
                if own <= limit and squares < step[end][0]:
                    step[end] = (squares, (*best[cut][1], end))
        best = step
    return tuple(pairwise(best[-1][1]))
