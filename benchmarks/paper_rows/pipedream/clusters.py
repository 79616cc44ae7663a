"""PipeDream's servers, models and data parallelism, as the simulator takes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from pipesched import Cluster, Link, Schedule
from pipesched.profiles.clusters import Device, of_nodes
from pipesched.profiles.costs import Profile, StageCost, StageCosts
from pipesched.profiles.io import load_profile
from pipesched.schedules import make_schedule
from pipesched.schedules.ops import Op, Reduce, Step, backward, forward
from pipesched.simulator.fast import simulate_arrays

SHARES = (1.0, 0.5, 0.35, 0.2)
"""Shares of the line rate that an all-reduce reaches, none of which the paper states."""

_PROFILES = Path(__file__).parents[3] / "profiles" / "data" / "pipedream"

_PCIE_BYTES_PER_S, _NVLINK_BYTES_PER_S = 10e9, 150e9
_BUCKET_BYTES = 25e6
"""Gradients that PyTorch's DistributedDataParallel sums together [bytes] (arXiv:2006.15704)."""


@dataclass(frozen=True, slots=True)
class Server:
    """A type of servers.

    Attributes:
        gpus: GPUs of a server.
        intra_bytes_per_s: Bandwidth between two of them.
        inter_bytes_per_s: Line rate of the server's network interface.
        slowdown: Seconds of a layer over those of the profile.
    """

    gpus: int
    intra_bytes_per_s: float
    inter_bytes_per_s: float
    slowdown: float = 1.0

    def cluster(self, num_gpus: int, share: float = 1.0) -> Cluster:
        """Return the first `num_gpus` GPUs, of one server or of whole servers, with this share of the line rate."""
        per_node = min(self.gpus, num_gpus)
        intra, inter = Link(0.0, self.intra_bytes_per_s), Link(0.0, share * self.inter_bytes_per_s)
        node = Cluster((Device(),) * per_node, intra, inter, nics=(tuple(range(per_node)),))
        return of_nodes(node, num_gpus // per_node)


SERVERS = {
    "8 x 1080 Ti, PCIe, 25 Gb/s": Server(8, _PCIE_BYTES_PER_S, 3.125e9, slowdown=15.7 / 11.3),
    "4 x V100, PCIe, 10 Gb/s": Server(4, _PCIE_BYTES_PER_S, 1.25e9),
    "8 x V100, NVLink, 25 Gb/s": Server(8, _NVLINK_BYTES_PER_S, 3.125e9),
}
"""The servers of Fig. 1. The profiles count as V100's; a 1080 Ti is slower by its float32 peak."""

CLUSTER_A, CLUSTER_B = [*SERVERS.values()][1:]


@dataclass(frozen=True, slots=True)
class Workload:
    """A model with the batch of one GPU.

    Attributes:
        profile: PipeDream's profile.
        factor: Batch over the profiled one, for times and activations.
        slowdown: Further factor on times.
        share: Share of the line rate that an all-reduce reaches.
    """

    profile: Profile
    factor: float = 1.0
    slowdown: float = 1.0
    share: float = 1.0

    def stage(self, first: int, last: int) -> StageCost:
        """Return the cost of layers; a sum at a share of the rate counts as more bytes at the whole rate."""
        cost = self.profile.cost_of_layers(first, last)
        assert cost.backward_s is not None, "a profile has whole backwards"
        return replace(
            cost,
            forward_s=self.slowdown * self.factor * cost.forward_s,
            backward_s=self.slowdown * self.factor * cost.backward_s,
            output_bytes=round(self.factor * cost.output_bytes),
            weight_bytes=round(cost.weight_bytes / self.share),
        )

    def stages(self, cuts: tuple[int, ...]) -> StageCosts:
        """Return the costs of stages with these numbers of layers."""
        ends = [sum(cuts[: index + 1]) for index in range(len(cuts))]
        return StageCosts(tuple(self.stage(end - count, end) for end, count in zip(ends, cuts, strict=True)))

    @property
    def work_s(self) -> float:
        """Seconds of forward and backward of a batch on one GPU."""
        return self.stage(0, len(self.profile.layers)).both_s

    def buckets(self) -> tuple[int, ...]:
        """Return the numbers of layers whose gradients are summed together, filled from the last layer on."""
        counts, num_bytes = [0], 0
        for index, layer in reversed([*enumerate(self.profile.layers)]):
            counts[0] += 1
            num_bytes += layer.weight_bytes
            if num_bytes >= _BUCKET_BYTES and index:
                counts, num_bytes = [0, *counts], 0
        return tuple(counts)

    def data_parallel_s(self, cluster: Cluster) -> float:
        """Return the seconds of an iteration in which each GPU of the cluster takes one batch."""
        buckets = self.buckets()
        schedule = overlapped_data_parallel(len(cluster.devices), len(buckets))
        return simulate_arrays(schedule, self.stages(buckets), cluster).makespan_s


@cache
def profile_of(model: str) -> Profile:
    """Return PipeDream's published profile of a model."""
    return load_profile(_PROFILES / f"{model}.graph.txt")


def overlapped_data_parallel(num_ranks: int, num_buckets: int) -> Schedule:
    """Return data parallelism that posts the sum of a bucket's gradients as soon as they are ready.

    A stage is a bucket, and each rank holds all of them.
    """

    def row(rank: int) -> Iterator[Op]:
        yield from (forward(stage, rank) for stage in range(num_buckets))
        for stage in reversed(range(num_buckets)):
            yield backward(stage, rank)
            if num_ranks > 1:
                yield Reduce(stage)
        yield from (Step(stage) for stage in range(num_buckets))

    return make_schedule("data_parallel", num_buckets, num_ranks, [[*row(rank)] for rank in range(num_ranks)])
