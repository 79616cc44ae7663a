"""The work of ranks and channels for cuts of the layers, and a cut with little work of the busiest rank.

stages   0  1  2  3        rank 0 of interleaved 1F1B has stages 0 and 2, rank 1 has 1 and 3:
layers   2  1  1  2        a rank's work is the sum over its stages, here 3 layers each
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TypeAlias, final

import numpy as np
import numpy.typing as npt

from pipesched.profiles.partitioning.minimax import balanced_partitions, uniform_partition
from pipesched.schedules.columns import Float64s

Layers: TypeAlias = tuple[int, ...]
"""Layers of each stage."""
CutTable: TypeAlias = npt.NDArray[np.intp]
"""Layers of each stage, for several cuts: cuts x stages."""
Stages: TypeAlias = tuple[tuple[int, Sequence[float]], ...]
"""Stages of a rank or channel, each with seconds by layer."""

_MOST_STAGES = 8
"""Stages up to which a layer moves between any two; with more, between neighbours and from the busiest rank."""
_MOST_MOVES = 200
"""Largest number of moves of a layer to balance the ranks."""


@final
class RankWork:
    """The work of each rank on its stages, for any cuts of the layers.

    Args:
        num_stages: Stages of the schedule.
        ranks: For each rank that has stages, these with prefix sums: entry k is the work of the layers before layer k
            on this rank [s].
        channels: For each channel, the stages whose outputs it carries, with the seconds of their messages: entry k is
            for a next stage that begins at layer k [s]; entry 0 is 0.
    """

    def __init__(self, num_stages: int, ranks: Sequence[Stages], channels: Sequence[Stages] = ()) -> None:
        self.num_stages, self.ranks, self.channels = num_stages, ranks, channels
        owners = [*ranks, *channels]
        self._stages_of = [[stage for stage, _ in owner] for owner in owners]
        self._stages = np.array([stage for stages in self._stages_of for stage in stages], np.intp)
        self._firsts = np.array([*accumulate(map(len, self._stages_of), initial=0)][:-1], np.intp)
        self._seconds = np.array([seconds for owner in owners for _, seconds in owner], np.float64)
        self._rows = np.arange(len(self._stages))
        self._is_work = np.repeat([1] * len(ranks) + [0] * len(channels), [*map(len, owners)])

    def loads_s(self, cuts: CutTable) -> Float64s:
        """Return the work of each rank, and then of each channel [s]: cuts x (ranks and channels)."""
        begins, ends = bounds_of(cuts)
        befores_s = self._seconds[self._rows, begins[:, self._stages] * self._is_work]
        return self._sums(self._seconds[self._rows, ends[:, self._stages]] - befores_s)

    def over_stages(self, values: Float64s) -> Float64s:
        """Add values of stages, cuts x stages, over the stages of each rank, and then of each channel."""
        return self._sums(values[:, self._stages])

    def at_first_stage(self, values: Float64s) -> Float64s:
        """Return the values, cuts x stages, of the first stage of each rank, and then of each channel."""
        return values[:, self._stages[self._firsts]]

    def moves(self, layers: Layers, costliest: int) -> CutTable:
        """Return the cuts with one layer moved from one stage to another; other stages keep their number of layers.

        Args:
            layers: Layers of each stage.
            costliest: Number of the costliest rank, or channel behind the ranks. With many stages, its layers move to
                any stage, and other layers only to neighbours.
        """
        stages = range(self.num_stages)
        wide = self._stages_of[costliest] if self.num_stages > _MOST_STAGES else stages
        pairs = [
            (source, target)
            for source in stages
            if layers[source] > 1
            for target in (stages if source in wide else (source - 1, source + 1))
            if target != source and target in stages
        ]
        cuts, numbers = np.full((len(pairs), len(layers)), layers, np.intp), range(len(pairs))
        cuts[numbers, [source for source, _ in pairs]] -= 1
        cuts[numbers, [target for _, target in pairs]] += 1
        return cuts

    def _sums(self, values: Float64s) -> Float64s:
        sums: Float64s = np.add.reduceat(values, self._firsts, axis=1)
        return sums


def bounds_of(cuts: CutTable) -> tuple[CutTable, CutTable]:
    """Return the first layer of each stage, and the layer behind its last: cuts x stages each."""
    ends = cuts.cumsum(axis=1)
    return ends - cuts, ends


def balanced_over_ranks(work: RankWork, layers: Layers) -> Layers:
    """Return a cut with little work of the busiest rank: improve `layers` by moving one layer at a time."""
    key = busiest_first(work, np.array([layers]))[0]
    for _ in range(_MOST_MOVES):
        cuts = work.moves(layers, int(work.loads_s(np.array([layers])).argmax()))
        least, number = min(zip(busiest_first(work, cuts), range(len(cuts)), strict=True), default=(key, 0))
        if least >= key:
            break
        key, layers = least, tuple(cuts[number].tolist())
    return layers


def busiest_first(work: RankWork, cuts: CutTable) -> list[list[float]]:
    """Return the work of all ranks and channels for each cut, the largest first [s]."""
    sorted_s: list[list[float]] = (-np.sort(-work.loads_s(cuts))).tolist()
    return sorted_s


def first_cuts(work: RankWork, seconds: Sequence[float]) -> list[Layers]:
    """Return the initial cuts of a search: balanced, uniform, with least messages; and these balanced over ranks.

    Raises:
        ProfileError: There are more stages than layers, or a time is negative or not finite.
    """
    cuts = [*balanced_partitions(seconds, work.num_stages), uniform_partition(len(seconds), work.num_stages)]
    simple = [tuple(last - first for first, last in cut) for cut in cuts]
    if work.channels:
        simple.append(_least_messages(work, len(seconds)))
    return [*dict.fromkeys([*simple, *(balanced_over_ranks(work, cut) for cut in simple)])]


def _least_messages(work: RankWork, num_layers: int) -> Layers:
    """Return the cut with the least total time of messages over all channels."""
    all_s = [[0.0] * (num_layers + 1) for _ in range(work.num_stages)]
    for channel in work.channels:
        for stage, seconds in channel:
            all_s[stage] = [sum(pair) for pair in zip(all_s[stage], seconds, strict=True)]
    best: list[tuple[float, Layers]] = [(0.0, ())]  # least seconds of the layers before each layer, and their stages
    for stage, seconds in enumerate(all_s):
        ends = range(stage + 1, num_layers - (work.num_stages - stage - 1) + 1)
        before, best = best, []
        for end in ends:
            firsts = before[: end - stage]
            cost_s, layers = min(firsts, key=lambda cut: cut[0])
            best.append((cost_s + seconds[end], (*layers, end - sum(layers))))
    return best[-1][1]
