"""Cut layers into stages of neighbours so that the slowest stage takes the least time, or as a user writes.

    3,3,4                counts
    Et*2|(tt|)*3t*2L     ``--pipeline-model-parallel-layout``: a letter for each layer, a bar between stages
                         (E embedding, t transformer layer, m multi-token prediction, L output layer)

``t*3`` is ``ttt``, ``(tt|)*2`` is ``tt|tt|``, and commas have no effect, as in megatron-core 0.16.1
(`transformer/pipeline_parallel_layer_layout.py`). Stages follow the model; interleaved, stage s is on rank s mod p.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pipesched.profiles import ProfileError
from pipesched.schedules.columns import machine_code

_LAYOUT = re.compile(r"[EtmL|()*0-9, ]*[EtmL|][EtmL|()*0-9, ]*")
_GROUP = re.compile(r"\(([^()]+)\)\*([0-9]{1,6})")
_LETTER = re.compile(r"([EtmL|])\*([0-9]{1,6})")
_ORDER = re.compile(r"E?t*m*L?")
_MAX_LETTERS = 100_000


def stage_sizes(text: str, others: str = "") -> list[int]:
    """Return the number of layers of each stage.

    Args:
        text: Counts or a layout.
        others: Other accepted words in a message, such as ``uniform, balanced, ``.

    Raises:
        ProfileError: `text` is neither counts nor a layout.
    """
    if _LAYOUT.fullmatch(text):
        return [len(stage) for stage in _letters(text).split("|")]
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ProfileError(
            f"partition: got {text[:60]!r}, expected {others}layers per stage or a layout of Megatron-LM; "
            "try 3,3,4 or Ettt|ttt|tttL"
        ) from None


def _letters(text: str) -> str:
    """Return a layout letter by letter, without repetitions."""
    letters = re.sub("[, ]", "", text)
    for repeated in (_GROUP, _LETTER):
        if sum(len(unit) * int(count) for unit, count in repeated.findall(letters)) > _MAX_LETTERS:
            raise ProfileError(
                f"partition: got {text[:60]!r}, expected a layout of at most {_MAX_LETTERS} layers; try fewer"
            )
        letters = repeated.sub(lambda match: match[1] * int(match[2]), letters)
    if not _ORDER.fullmatch(letters.replace("|", "")):
        raise ProfileError(
            f"partition: got {text[:60]!r}, expected a layout of Megatron-LM: E first, t, m and L last, with a bar "
            "between stages and *3 or (tt|)*3 to repeat; try Ettt|ttt|tttL"
        )
    return letters


StageCostOf: TypeAlias = Callable[[int, int, int], float]
"""Cost of (stage, first layer, layer behind the last)."""

CostTable: TypeAlias = Callable[[int], npt.NDArray[np.float64]]
"""Function of a stage that returns the table of its costs, by first layer and layer behind the last."""


def uniform_partition(num_layers: int, num_stages: int) -> tuple[tuple[int, int], ...]:
    """Return stages with numbers of layers that differ by at most one, the larger stages first.

    Raises:
        ProfileError: There are more stages than layers, or no stages.
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
    """Return the stages that minimize the time of the slowest stage; among equals, the most even, large ones first.

    Args:
        seconds: Forward plus backward of each layer on a device of speed 1.
        num_stages: At least 1.
        speeds: Speed of the device of each stage (default: all 1).
        fits: Returns whether a stage (its number, its first layer, the layer behind its last) fits its device (default:
            every stage fits).

    Raises:
        ProfileError: There are more stages than layers, a time is negative or not finite, there is not one speed
            above 0 for each stage, or in every partition a stage does not fit.
    """
    _check_seconds(seconds, num_stages)
    rates = (1.0,) * num_stages if speeds is None else tuple(speeds)
    if len(rates) != num_stages or not all(math.isfinite(speed) and speed > 0 for speed in rates):
        raise ProfileError(
            f"partition: got speeds {rates[:8]}, expected {num_stages} speeds above 0, one per stage; correct the "
            "cluster"
        )
    sums = [0.0, *accumulate(seconds)]
    if fits is None:
        return cheapest_by_table(partial(_of_sums, sums, rates), len(seconds), num_stages)[0]

    def stage_s(stage: int, first: int, last: int) -> float:
        return (sums[last] - sums[first]) / rates[stage] if fits(stage, first, last) else math.inf

    return cheapest_partition(stage_s, len(seconds), num_stages)


def balanced_partitions(seconds: Sequence[float], num_stages: int) -> list[tuple[tuple[int, int], ...]]:
    """Return the stages of `balanced_partition` with the large stages first and, if that differs, last.

    Raises:
        ProfileError: There are more stages than layers, or a time is negative or not finite.
    """
    _check_seconds(seconds, num_stages)
    table = partial(_of_sums, [0.0, *accumulate(seconds)], (1.0,) * num_stages)
    return [*dict.fromkeys(cheapest_by_table(table, len(seconds), num_stages, (False, True)))]


def cheapest_partition(cost: StageCostOf, num_layers: int, num_stages: int) -> tuple[tuple[int, int], ...]:
    """Return the stages whose largest cost is least; among equals the most even stages, large ones first.

    Exact, by dynamic programming over (stages, layers): first the smallest possible maximum, then within it the
    smallest sum of squares. Takes num_stages x layers^2 steps.

    Args:
        cost: Cost of (stage, its first layer, the layer behind its last), 0 or more: seconds, or bytes; infinite for an
            impossible stage.
        num_layers: At least `num_stages`.
        num_stages: At least 1.

    Raises:
        ProfileError: There are more stages than layers, or every partition has an impossible stage.
    """
    _check(num_layers, num_stages)

    def table(stage: int) -> npt.NDArray[np.float64]:
        ends = range(num_layers + 1)
        costs = [cost(stage, first, last) if first < last else 0.0 for first in ends for last in ends]
        return np.array(costs, np.float64)

    return cheapest_by_table(table, num_layers, num_stages)[0]


def cheapest_by_table(
    table: CostTable, num_layers: int, num_stages: int, orders: Sequence[bool] = (False,)
) -> list[tuple[tuple[int, int], ...]]:
    """Return the most even partition with the least largest cost of a stage, for each of `orders`.

    Args:
        table: Costs of each stage.
        num_layers: At least `num_stages`.
        num_stages: At least 1.
        orders: For each returned partition, whether the large stages come last.

    Raises:
        ProfileError: Every partition has an impossible stage.
    """
    begun, num_steps = np.array([0.0] + [math.inf] * num_layers), num_layers * num_layers
    best, is_empty = begun, np.tri(num_layers + 1, dtype=bool)
    for stage in range(num_stages):
        costs = np.where(is_empty, math.inf, table(stage).reshape(is_empty.shape))
        best = np.maximum(best[:, None], costs).min(axis=0)
    limit = float(best[-1])
    if not math.isfinite(limit):
        raise ProfileError(
            f"partition: got no cut of {num_layers} layers into {num_stages} stages that all fit, expected one; use "
            "more stages, more memory or smaller micro-batches"
        )
    partitions = []
    for large_last in orders:
        sums, cuts = begun.copy(), []
        most = limit if large_last else limit * (1 + 1e-12)  # sums of equal layers differ by roundings
        for stage in range(num_stages):
            cuts.append(machine_code.int32s(num_layers + 1))
            machine_code.run_loop(
                add_squares, table(stage), stage, most, sums, cuts[-1], large_last, num_steps=num_steps
            )
        ends = [num_layers]
        for cuts_of in reversed(cuts):
            ends.append(int(cuts_of[ends[-1]]))
        partitions.append(tuple(pairwise(reversed(ends))))
    return partitions


def _of_sums(sums: Sequence[float], rates: Sequence[float], stage: int) -> npt.NDArray[np.float64]:
    """Return the table of a stage's seconds from prefix sums of the layers' seconds and the speeds of devices."""
    values: npt.NDArray[np.float64] = np.array(sums, np.float64)
    seconds: npt.NDArray[np.float64] = (values[None, :] - values[:, None]) / rates[stage]
    return seconds.ravel()


def parse_partition(text: str, seconds: Sequence[float], num_stages: int) -> tuple[tuple[int, int], ...]:
    """Return a partition from its text: ``uniform``, ``balanced``, or sizes as in `stage_sizes`, such as ``3,3,4``.

    Args:
        text: The partition, as a user wrote it.
        seconds: Forward plus backward of each layer; only their number matters unless `text` is ``balanced``.
        num_stages: At least 1.

    Raises:
        ProfileError: `text` is invalid, or does not fit the layers or the stages.
    """
    if text == "uniform":
        return uniform_partition(len(seconds), num_stages)
    if text == "balanced":
        return balanced_partition(seconds, num_stages)
    _check(len(seconds), num_stages)
    sizes = stage_sizes(text, "uniform, balanced, ")
    if len(sizes) != num_stages or min(sizes) < 1 or sum(sizes) != len(seconds):
        letters = " (E and L too are layers of the model)" if text.strip("0123456789,") else ""
        raise ProfileError(
            f"partition: got {text[:60]!r}, {len(sizes)} stages of {sum(sizes)} layers in all, expected {num_stages} "
            f"stages of at least 1 layer, {len(seconds)} in all{letters}; try balanced"
        )
    return _bounds(sizes)


def _check_seconds(seconds: Sequence[float], num_stages: int) -> None:
    _check(len(seconds), num_stages)
    for layer, value in enumerate(seconds):
        if not math.isfinite(value) or value < 0:
            raise ProfileError(
                f"partition: layer {layer}: got {value} s, expected a finite time, 0 or more; measure the profile again"
            )


def _check(num_layers: int, num_stages: int) -> None:
    if not 1 <= num_stages <= num_layers:
        raise ProfileError(
            f"partition: got {num_stages} stages for {num_layers} layers, expected 1 to {num_layers} stages; "
            f"{'use fewer stages or a deeper model' if num_stages > num_layers else 'use at least one stage'}"
        )


def _bounds(sizes: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple(pairwise(accumulate(sizes, initial=0)))


def add_squares(costs: Any, stage: int, limit: float, best: Any, cuts: Any, large_last: bool) -> None:
    """Add a stage to the least sums of squared costs, where each stage costs at most a limit.

    Args:
        costs: Costs of the stage by first layer and layer behind the last, n x n numbers.
        stage: Number of the stage.
        limit: Largest cost of the stage.
        best: n least sums, by layer behind the last stage; updated.
        cuts: First layer of the stage, by layer behind its last; written.
        large_last: Whether the sum with the largest last stage counts among equal sums.
    """
    count = len(best)
    for end in range(count - 1, -1, -1):
        least = math.inf
        for cut in range(stage, end):
            own = costs[cut * count + end]
            square = best[cut] + own * own
            is_less = square < least if large_last else square <= least * (1 + 1e-12)
            if own <= limit and square < math.inf and is_less:
                least, cuts[end] = square, cut
        best[end] = least
