"""The partitions of a request's model and their costs, each worked out once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import final

from pipesched.profiles import MessagePrecision, ProfileError, element_bytes
from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import Compression, Profile, StageCosts
from pipesched.profiles.partitioning import (
    RankWork,
    balanced_over_ranks,
    balanced_partition,
    flushed_bytes,
    held_bytes,
    uniform_partition,
)
from pipesched.schedules import Schedule
from pipesched.simulator import NetworkOptions
from pipesched.simulator.search import CutTask, Setting, costs_of_cuts, fastest_cut

Partition = tuple[int, ...]
"""Layers of each stage."""


@final
class Cuts:
    """Partitions of one profile.

    Args:
        profile: Profile of the whole model.
        convert_bytes_per_s: Compression throughput of a device, in uncompressed bytes/s, or None for free compression.
    """

    def __init__(self, profile: Profile, convert_bytes_per_s: float | None = None) -> None:
        self._profile = profile
        self._half = Compression(element_bytes(profile.provenance.dtype), convert_bytes_per_s)
        self._balanced: dict[tuple[object, ...], Partition] = {}
        self._smallest: dict[tuple[object, ...], Partition] = {}
        self._within: dict[tuple[object, ...], Partition | None] = {}

    def costs(self, partition: Partition, size: int, compression: MessagePrecision | None = None) -> StageCosts:
        """Return the costs of the stages for micro-batches of `size` samples.

        Raises:
            ProfileError: The profile does not cover the size.
        """
        return self._of_cuts(len(partition), size, compression)(tuple(pairwise(accumulate(partition, initial=0))))

    def costs_of(self, candidate: Setting) -> StageCosts:
        """Return the costs of a candidate's stages."""
        return self.costs(candidate.partition, candidate.size, candidate.compression)

    def balanced(self, size: int, speeds: tuple[float, ...], stages: tuple[tuple[int, ...], ...]) -> Partition:
        """Return stages with little work on the busiest rank, found by moving single layers between stages.

        Args:
            size: Samples in a micro-batch.
            speeds: Speed of the device of each stage.
            stages: The stages of each rank.
        """
        key = (size, speeds, stages)
        if key not in self._balanced:
            layers_s = self._seconds(size, len(speeds))
            sums = [[0.0, *accumulate(seconds / speed for seconds in layers_s)] for speed in speeds]
            work = RankWork(len(speeds), tuple(tuple((stage, sums[stage]) for stage in of) for of in stages))
            first = _sizes(balanced_partition(layers_s, len(speeds), speeds))
            self._balanced[key] = balanced_over_ranks(work, first)
        return self._balanced[key]

    def smallest(self, size: int, stages: tuple[tuple[int, ...], ...]) -> Partition:
        """Return stages with few bytes on the fullest rank, found by moving single layers between stages."""
        key = (size, stages)
        if key not in self._smallest:
            num_stages = 1 + max(map(max, stages))
            held = [sum(flushed_bytes(layer)) for layer in self._of_layers(size, num_stages).stages]
            sums = [0.0, *accumulate(map(float, held))]
            work = RankWork(num_stages, tuple(tuple((stage, sums) for stage in of) for of in stages))
            self._smallest[key] = balanced_over_ranks(work, _sizes(uniform_partition(len(held), num_stages)))
        return self._smallest[key]

    def fastest(self, candidate: Setting, lists: Schedule, cluster: Cluster, network: NetworkOptions) -> Partition:
        """Return the fastest cut of a candidate that a short search finds for one of its copies.

        Args:
            candidate: The candidate.
            lists: The lists of one copy, on its devices.
            cluster: Devices and links.
            network: How messages go.
        """
        costs_of = self._of_cuts(len(candidate.partition), candidate.size, candidate.compression)
        return fastest_cut(CutTask(lists, len(self._profile.layers), costs_of, cluster, network))

    def fits(self, partition: Partition, size: int, limits: Sequence[int | None], in_flight: Sequence[int]) -> bool:
        """Whether every stage certainly fits on its device, with this many micro-batches in flight."""
        stages = zip(self.costs(partition, size).stages, in_flight, limits, strict=True)
        return all(limit is None or held_bytes(cost, count) <= limit for cost, count, limit in stages)

    def within(
        self, size: int, speeds: tuple[float, ...], limits: tuple[int | None, ...], in_flight: tuple[int, ...]
    ) -> Partition | None:
        """Return the cut that fits and minimizes the time of the slowest stage, or None if no cut fits.

        Bytes of layers are added up: a storage that two layers keep counts for both.

        Args:
            size: Samples in a micro-batch.
            speeds: Speed of the device of each stage.
            limits: Memory of the device of each stage [bytes].
            in_flight: Micro-batches that it holds at once.
        """
        layers = self._of_layers(size, len(speeds)).stages
        always, for_microbatch = ([0, *accumulate(sizes)] for sizes in zip(*map(flushed_bytes, layers), strict=True))
        inside = [layer.working_bytes + saved for layer, saved in zip(layers, for_microbatch[1:], strict=True)]
        if None not in limits and always[-1] + min(in_flight) * for_microbatch[-1] > sum(filter(None, limits)):
            return None

        def fits(stage: int, first: int, last: int) -> bool:
            limit = limits[stage]
            held = always[last] - always[first] + in_flight[stage] * (for_microbatch[last] - for_microbatch[first])
            working = max(0, max(inside[first:last], default=0) - for_microbatch[last])  # as `working_bytes` has it
            return limit is None or held + working <= limit

        key = (size, speeds, limits, in_flight)
        if key not in self._within:
            try:
                self._within[key] = _sizes(
                    balanced_partition(self._seconds(size, len(speeds)), len(speeds), speeds, fits)
                )
            except ProfileError:
                self._within[key] = None
        return self._within[key]

    def _seconds(self, size: int, num_stages: int) -> tuple[float, ...]:
        return tuple(cost.both_s for cost in self._of_layers(size, num_stages).stages)

    def _of_layers(self, size: int, num_stages: int) -> StageCosts:
        """Return each layer as one stage, in the order of layers for a number of stages."""
        return self._of_cuts(num_stages, size)(tuple((i, i + 1) for i in range(len(self._profile.layers))))

    def _of_cuts(
        self, num_stages: int, size: int, compression: MessagePrecision | None = None
    ) -> Callable[[tuple[tuple[int, int], ...]], StageCosts]:
        half = None if compression is None else self._half
        return costs_of_cuts(self._profile, num_stages, size, compression=half)


def _sizes(bounds: Sequence[tuple[int, int]]) -> Partition:
    return tuple(last - first for first, last in bounds)
