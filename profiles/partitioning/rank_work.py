"""The work of ranks and channels for a cut of the layers, and a cut with little work of the busiest rank.

stages   0  1  2  3        rank 0 of interleaved 1F1B has stages 0 and 2, rank 1 has 1 and 3:
layers   2  1  1  2        a rank's work is the sum over its stages, here 3 layers each
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

from pipesched.profiles.partitioning.minimax import balanced_partitions, uniform_partition

Layers: TypeAlias = tuple[int, ...]
"""Layers of each stage."""

_MOST_STAGES = 8
"""Stages up to which a layer moves between any two; with more, between neighbours and from the busiest rank."""
_MOST_MOVES = 200
"""Largest number of moves of a layer to balance the ranks."""


@dataclass(frozen=True, slots=True)
class RankWork:
    """The work of each rank on its stages, for any cut of the layers.

    Attributes:
        num_stages: Stages of the schedule.
        ranks: For each rank, its stages with prefix sums: entry k is the work of the layers before layer k on this rank
            [s].
        channels: For each channel, the stages whose outputs it carries, with the seconds of their messages: entry k is
            for a next stage that begins at layer k [s].
    """

    num_stages: int
    ranks: tuple[tuple[tuple[int, Sequence[float]], ...], ...]
    channels: tuple[tuple[tuple[int, Sequence[float]], ...], ...] = ()

    def loads_s(self, layers: Layers) -> list[float]:
        """Return the work of each rank, and then of each channel [s]."""
        ends = (0, *accumulate(layers))
        return [
            *[sum([sums[ends[stage + 1]] - sums[ends[stage]] for stage, sums in stages]) for stages in self.ranks],
            *[sum([seconds[ends[stage + 1]] for stage, seconds in stages]) for stages in self.channels],
        ]

    def moves(self, layers: Layers, costs: Sequence[float]) -> Iterator[Layers]:
        """Yield the cuts with one layer moved from one stage to another; other stages keep their number of layers.

        Args:
            layers: Layers of each stage.
            costs: Cost of each rank and channel. With many stages, layers of the costliest rank or channel move to any
                stage, and other layers only to neighbours.
        """
        stages = range(self.num_stages)
        costliest = {stage for stage, _ in (*self.ranks, *self.channels)[max(range(len(costs)), key=costs.__getitem__)]}
        for source in stages:
            if layers[source] == 1:
                continue
            is_wide = self.num_stages <= _MOST_STAGES or source in costliest
            for target in stages if is_wide else (source - 1, source + 1):
                if target != source and 0 <= target < self.num_stages:
                    moved = [*layers]
                    moved[source] -= 1
                    moved[target] += 1
                    yield tuple(moved)


def balanced_over_ranks(work: RankWork, layers: Layers) -> Layers:
    """Return a cut with little work of the busiest rank: improve `layers` by moving one layer at a time."""
    loads_s = work.loads_s(layers)
    key = sorted(loads_s, reverse=True)
    for _ in range(_MOST_MOVES):
        best = None
        for moved in work.moves(layers, loads_s):
            moved_key = sorted(work.loads_s(moved), reverse=True)
            if moved_key < key:
                best, key = moved, moved_key
        if best is None:
            break
        layers, loads_s = best, work.loads_s(best)
    return layers


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
