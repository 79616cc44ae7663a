"""Cuts of a graph of layers: its antichains, as in PipeDream's optimizer.

The layers before a cut are a prefix of the graph: a set that contains all inputs of its layers. The ends of a prefix
are an antichain. A chain of n layers has n + 1 prefixes; parallel branches multiply their numbers of prefixes.

    0 ─┬─ 1 ── 2 ─┬─ 4        prefixes: none, 0, 01, 03, 012, 013, 0123, 01234
       └──── 3 ───┘

If a graph has over 1,000 prefixes, only one of the prefixes that differ in layers without time and weights is kept: the
prefix whose cut sends the fewest bytes, and the smallest among equals. No stage with time or weights is lost: the bytes
of a cut are submodular, so the kept prefixes are nested wherever the dropped ones are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, islice, pairwise
from typing import TYPE_CHECKING, TypeVar

from pipesched.profiles.costs import CostSource, LayerGraph
from pipesched.profiles.partitioning.minimax import cheapest_by_table, parse_partition

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NumberT = TypeVar("NumberT", int, float)
CostsT = TypeVar("CostsT", bound=CostSource)

MAX_PREFIXES = 20_000
"""Limit of enumerated prefixes of a graph; with more, it is cut along one chain."""

_MAX_KEPT = 1000
"""Limit of prefixes at which a graph may be cut."""


@dataclass(frozen=True, slots=True)
class Prefixes:
    """The prefixes of a graph at which it may be cut, by rising size, from no layers to all.

    Attributes:
        masks: Layers of each prefix, one bit per layer.
        cut_bytes: Bytes that cross the cut behind each prefix; the first entry is the data.
        are_all: Whether these prefixes include the best cuts of the graph.
    """

    masks: tuple[int, ...]
    cut_bytes: tuple[int, ...]
    are_all: bool

    def is_stage(self, first: int, last: int) -> bool:
        """Return whether a stage may lie between two prefixes: the second contains the first and further layers."""
        return first < last and not self.masks[first] & ~self.masks[last]

    def are_stages(self) -> NDArray[np.bool_]:
        """Return `is_stage` of every two prefixes, shape (prefixes, prefixes)."""
        import numpy as np

        places = range(len(self.masks))
        return np.array([[self.is_stage(first, last) for last in places] for first in places])

    def sums(self, values: Sequence[NumberT]) -> list[NumberT]:
        """Return the sum of `values`, one per layer, over each prefix."""
        return [sum(values[layer] for layer in _bits(mask)) for mask in self.masks]

    def order(self, ends: Sequence[int]) -> tuple[int, ...]:
        """Return all layers, stage by stage; `ends` are the numbers of the prefixes behind each stage."""
        masks = [0, *(self.masks[end] for end in ends)]
        return tuple(layer for before, after in pairwise(masks) for layer in _bits(after & ~before))


def prefixes_of(costs: CostSource) -> Prefixes | None:
    """Return the prefixes of a profile's graph, or None if they all lie along the chain of its layers."""
    if costs.graph is None:
        return None
    antichains = _prefixes(costs.graph, _counting(costs))
    return None if len(antichains.masks) == costs.num_layers + 1 else antichains


def has_too_many_prefixes(costs: CostSource) -> bool:
    """Return whether a profile's graph has too many prefixes, so that it is cut along one chain."""
    return costs.graph is not None and not _prefixes(costs.graph, _counting(costs)).are_all


def arranged(costs: CostsT, num_stages: int) -> CostsT:
    """Return costs with layers in the order of the graph's best cut, the one whose slowest stage is fastest.

    Args:
        costs: Costs of a chain, which are returned unchanged, or of a graph.
        num_stages: At least 1.
    """
    order = arranged_order(costs, num_stages)
    return costs if order == (*range(costs.num_layers),) else costs.in_order(order, num_stages)


def arranged_order(costs: CostSource, num_stages: int, speeds: Sequence[float] | None = None) -> tuple[int, ...]:
    """Return the layers in the order of `arranged`, for devices of these speeds (default: all 1)."""
    prefixes = prefixes_of(costs)
    is_arranged = costs.graph is not None and costs.graph.arranged_for == num_stages
    if prefixes is None or is_arranged or num_stages > costs.num_layers:
        return tuple(range(costs.num_layers))
    seconds = costs.seconds_of_layers()
    rates = (1.0,) * num_stages if speeds is None else tuple(speeds)
    return _fastest_order(prefixes, seconds, rates)


def cut_layers(
    costs: CostsT, partition: str | None, microbatch_size: int | None, num_stages: int
) -> tuple[CostsT, tuple[tuple[int, int], ...]]:
    """Return costs with layers in the order of the stages, and (first, last) layers of each stage, last exclusive.

    Args:
        costs: Costs of a chain of layers, or of a graph.
        partition: Partition as in `parse_partition` (default: the stages in the graph's file if their number is
            `num_stages`, else balanced).
        microbatch_size: Samples, for a profile (default: the smallest measured size).
        num_stages: At least 1.

    Raises:
        ProfileError: The partition does not fit the layers or the stages.
    """
    graph = costs.graph
    if partition is None and graph is not None and len(graph.given_counts) == num_stages:
        order = sorted(range(costs.num_layers), key=graph.stages.__getitem__)
        return costs.in_order(order, num_stages), tuple(pairwise(accumulate(graph.given_counts, initial=0)))
    best = arranged(costs, num_stages)
    return best, parse_partition(partition or "balanced", best.seconds_of_layers(microbatch_size), num_stages)


def is_searched(costs: CostSource, partition: str | None, num_stages: int) -> bool:
    """Return whether `cut_layers` searches the fastest cut: neither `partition` nor the graph's file gives a cut."""
    is_given = costs.graph is not None and len(costs.graph.given_counts) == num_stages
    return partition == "balanced" or (partition is None and not is_given)


@lru_cache(maxsize=64)
def _fastest_order(prefixes: Prefixes, seconds: Sequence[float], rates: Sequence[float]) -> tuple[int, ...]:
    """Return the layers, stage by stage, of the cut that minimizes the slowest stage, then the sum of squares."""
    import numpy as np

    sums = np.array(prefixes.sums(seconds))
    stage_s = np.where(prefixes.are_stages(), sums - sums[:, None], np.inf).ravel()
    (bounds,) = cheapest_by_table(lambda stage: stage_s / rates[stage], len(sums) - 1, len(rates))
    return prefixes.order([last for _, last in bounds])


def _counting(costs: CostSource) -> tuple[bool, ...]:
    """Return whether each layer has time or weights."""
    return tuple(map(bool, map(max, costs.seconds_of_layers(), costs.weights_of_layers)))


@lru_cache(maxsize=16)
def _prefixes(graph: LayerGraph, counting: Sequence[bool]) -> Prefixes:
    """Return the prefixes at which a graph may be cut: all, or the prefixes along the chain if all are too many."""
    count = len(graph.needs)
    kept = {(1 << size) - 1: num_bytes for size, num_bytes in enumerate(graph.cut_bytes())}
    prefixes = {prefix: cut_bytes for prefix, cut_bytes in islice(_enumerated(graph), MAX_PREFIXES + 2) if prefix}
    are_all = len(prefixes) <= MAX_PREFIXES
    if are_all and len(prefixes) > _MAX_KEPT:
        mask = sum(1 << layer for layer in range(count) if counting[layer])
        best: dict[int, tuple[int, int, int]] = {}
        for prefix, cut_bytes in prefixes.items():
            rank = (cut_bytes, prefix.bit_count(), prefix)
            best[prefix & mask] = min(rank, best.get(prefix & mask, rank))
        prefixes = {prefix: cut_bytes for cut_bytes, _, prefix in best.values()}
        are_all = len(prefixes) <= _MAX_KEPT
    kept |= prefixes if are_all else {}
    masks = sorted(kept, key=lambda prefix: (prefix.bit_count(), prefix))
    return Prefixes(tuple(masks), tuple(kept[prefix] for prefix in masks), are_all)


def _enumerated(graph: LayerGraph) -> Iterator[tuple[int, int]]:
    """Yield each prefix, by rising size, and the bytes that cross the cut after it."""
    count = len(graph.needs)
    needs = [sum(1 << source for source in needed) for needed in graph.needs]
    readers = [[layer for layer in range(count) if needs[layer] >> source & 1] for source in range(count)]
    read_by = [sum(1 << layer for layer in layers) for layers in readers]
    level = {0: (sum(1 << layer for layer in range(count) if not needs[layer]), 0)}
    while level:
        longer: dict[int, tuple[int, int]] = {}
        for prefix, (ready, cut_bytes) in level.items():
            yield prefix, cut_bytes
            for layer in _bits(ready):
                more = prefix | 1 << layer
                if more in longer:
                    continue
                new = sum(1 << reader for reader in readers[layer] if not needs[reader] & ~more)
                spent = sum(graph.output_bytes[s] for s in graph.needs[layer] if not read_by[s] & ~more)
                own = graph.output_bytes[layer] if read_by[layer] else 0
                longer[more] = (ready & ~(1 << layer) | new, cut_bytes + own - spent)
        level = longer


def _bits(mask: int) -> Iterator[int]:
    """Yield the layers of a set, rising."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
