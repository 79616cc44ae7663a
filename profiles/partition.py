"""Layers into stages: each stage a run of neighbouring layers, as (first, last) with last exclusive."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

from profiles.errors import ProfileError


def uniform_partition(num_layers: int, num_stages: int) -> tuple[tuple[int, int], ...]:
    """Return stages whose numbers of layers differ by at most one, the larger ones first.

    Raises:
        ProfileError: There are more stages than layers, or none.
    """
    _check(num_layers, num_stages)
    share, larger = divmod(num_layers, num_stages)
    return _bounds([share + (stage < larger) for stage in range(num_stages)])


def balanced_partition(seconds: Sequence[float], num_stages: int) -> tuple[tuple[int, int], ...]:
    """Return the stages whose slowest is as fast as can be; among those, the most even ones.

    Exact, by dynamic programming over (stages, layers): first the smallest possible maximum, then within it the
    smallest sum of squares. Takes num_stages x layers^2 steps.

    Args:
        seconds: Forward plus backward of each layer.
        num_stages: At least 1.

    Raises:
        ProfileError: There are more stages than layers, or a time is negative or not finite.
    """
    _check(len(seconds), num_stages)
    for layer, value in enumerate(seconds):
        if not math.isfinite(value) or value < 0:
            raise ProfileError(
                f"partition: layer {layer}: got {value} s, expected a finite time, 0 or more; measure the profile again"
            )
    sums = [0.0, *accumulate(seconds)]
    limit = _smallest_maximum(sums, num_stages)
    return _most_even(sums, num_stages, limit)


def parse_partition(text: str, seconds: Sequence[float], num_stages: int) -> tuple[tuple[int, int], ...]:
    """Return the partition that `text` names: ``uniform``, ``balanced``, or layers per stage as in ``3,3,4``.

    Args:
        text: As a user wrote it.
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


def _smallest_maximum(sums: Sequence[float], num_stages: int) -> float:
    """Return the least possible time of the slowest stage; ``sums[i]`` is the time of the layers before i."""
    best = list(sums)
    for stage in range(1, num_stages):
        best = [
            min((max(best[cut], sums[end] - sums[cut]) for cut in range(stage, end)), default=math.inf)
            for end in range(len(sums))
        ]
    return best[-1]


def _most_even(sums: Sequence[float], num_stages: int, limit: float) -> tuple[tuple[int, int], ...]:
    """Return the stages of least sum of squares among those where none takes longer than `limit`."""
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, (0,))] + [(math.inf, ())] * (len(sums) - 1)
    for _ in range(num_stages):
        step: list[tuple[float, tuple[int, ...]]] = [(math.inf, ())] * len(sums)
        for end in range(1, len(sums)):
            for cut in range(end):
                stage_s = sums[end] - sums[cut]
                squares = best[cut][0] + stage_s**2
                if stage_s <= limit and squares < step[end][0]:
                    step[end] = (squares, (*best[cut][1], end))
        best = step
    return tuple(pairwise(best[-1][1]))
