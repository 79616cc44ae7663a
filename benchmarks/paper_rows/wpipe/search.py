"""The fastest setting of a pipeline within the memory of the GPUs: d : w, micro-batches, recomputation, placement.

Equation 3 of the paper: a batch has b M w samples, M >= d. One copy of the pipeline is simulated. Its w - 1 other
copies share the network interfaces evenly, and sums of gradients are part of a Step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from pipesched import Cluster, Link, Schedule, build
from pipesched.profiles.clusters import Device
from pipesched.profiles.costs import Profile, StageCost, StageCosts
from pipesched.profiles.partitioning import balanced_partition
from pipesched.schedules.transforms import recompute
from pipesched.simulator import Estimate, Scenario
from pipesched.simulator.fast import predict_scenario

GPUS_PER_NODE = 8
_NODE_BYTES_PER_S, _NETWORK_BYTES_PER_S = 300e9, 3.125e9
"""NVLink and Ethernet of 25 Gb/s, as the paper prints them."""
_PERIODS = 2
"""Steps of a run; a run of twice this number shows the pace without the ramps."""
_NEAR = 1.002
"""Throughputs of choices whose difference does not matter, as a quotient."""

ProfileOf = Callable[[int], Profile]
"""A function from the samples of a micro-batch to the profile of a model."""


def any_size(profile: Profile) -> ProfileOf:
    """Return the function of a profile that has all sizes."""
    return lambda _: profile


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting of a pipeline.

    Attributes:
        scheme: Schedule of the catalogue.
        depth: GPUs of a copy, d.
        width: Copies, w.
        size: Samples of a micro-batch, b.
        microbatches: Micro-batches of a Step, M.
        recomputes: Whether activations are recomputed.
        spans_nodes: Whether the copies of a stage share a node, so that the pipeline crosses nodes (placement B).
        keeps_period: Whether worker k of 2BW holds M - k micro-batches, as the paper's Table 1 counts them. By
            2BW's own order it holds d - k.
    """

    scheme: str
    depth: int
    width: int
    size: int
    microbatches: int
    recomputes: bool
    spans_nodes: bool
    keeps_period: bool = False

    def __str__(self) -> str:
        placement = "B" if self.spans_nodes else "A"
        recomputing = "R" if self.recomputes else "no R"
        return f"{self.depth}:{self.width} {placement}, M = {self.microbatches}, b = {self.size}, {recomputing}"

    @property
    def samples(self) -> int:
        """Samples between two Steps of a stage, over all copies."""
        return self.size * self.microbatches * self.width


@dataclass(frozen=True, slots=True)
class Best:
    """The fastest choice that fits.

    Attributes:
        choice: The choice.
        throughput: Samples per second.
        peak_bytes: Peak memory of the fullest GPU.
    """

    choice: Choice
    throughput: float
    peak_bytes: int


def fastest(tried: Iterable[Choice], profile_of: ProfileOf, memory_bytes: float) -> Best | None:
    """Return the fastest of the choices that fits into the memory of a GPU, to 0.2 %, or None if nothing fits.

    Choices are tried in the order of a bound, the work of the busiest GPU.
    """
    pipelines = [Pipeline(choice, profile_of) for choice in tried]
    best: Best | None = None
    for pipeline in sorted(pipelines, key=lambda pipeline: pipeline.least_s):
        choice = pipeline.choice
        if best is not None and choice.samples / pipeline.least_s <= _NEAR * best.throughput:
            break
        if pipeline.least_bytes > memory_bytes:
            continue
        seconds, peak_bytes = pipeline.simulated()
        if peak_bytes <= memory_bytes and (best is None or choice.samples / seconds > best.throughput):
            best = Best(choice, choice.samples / seconds, peak_bytes)
    return best


def choices(scheme: str, num_gpus: int, batch: int) -> Iterator[Choice]:
    """Yield every choice for a batch; a scheme that steps after each micro-batch has M = 1."""
    depth = 2 if num_gpus <= GPUS_PER_NODE else 4
    while depth <= num_gpus:
        width = num_gpus // depth
        share, rest = divmod(batch, width)
        counts = [1] if scheme == "pipedream" else [share >> power for power in range(8) if share % (1 << power) == 0]
        for count in () if rest else counts:
            if not count or share % count or (count < depth and scheme != "pipedream"):
                continue
            for recomputes in (False, True) if scheme != "pipedream" else (False,):
                for spans_nodes in (False, True) if num_gpus > GPUS_PER_NODE and width > 1 else (False,):
                    yield Choice(scheme, depth, width, share // count, count, recomputes, spans_nodes)
        depth *= 2


class Pipeline:
    """One copy of the pipeline of a choice, with its costs."""

    def __init__(self, choice: Choice, profile_of: ProfileOf) -> None:
        self.choice = choice
        profile = profile_of(choice.size)
        num_stages = choice.depth * (2 if choice.scheme == "wpipe" else 1)
        cuts = _cuts(profile, choice.size, num_stages)
        stages = [profile.cost_of_layers(first, last, choice.size) for first, last in cuts]
        self.costs = StageCosts(tuple(replace(stage, step_s=stage.step_s + self._sum_s(stage)) for stage in stages))

    def _sum_s(self, stage: StageCost) -> float:
        """Return the seconds of the sum of a stage's gradients; interfaces carry the sums of a node in turn."""
        choice = self.choice
        if choice.width == 1:
            return 0.0
        together = choice.width if choice.spans_nodes else max(1, GPUS_PER_NODE // choice.depth)
        in_node = min(together, GPUS_PER_NODE, choice.width)
        nodes = choice.width // in_node
        stages_here = GPUS_PER_NODE // in_node
        inside_s = 2 * (in_node - 1) / in_node * stage.weight_bytes / _NODE_BYTES_PER_S
        across_s = 2 * (nodes - 1) / nodes * stage.weight_bytes * stages_here / _NETWORK_BYTES_PER_S
        return inside_s + across_s

    @property
    def least_s(self) -> float:
        """A bound on the seconds of a Step: the work of the busiest GPU, and GPipe's ramps."""
        work_s = max(map(self._rank_s, range(self.choice.depth)))
        return work_s * (1 + (self.choice.depth - 1) / self.choice.microbatches * (self.choice.scheme == "gpipe") * 0.5)

    def _rank_s(self, rank: int) -> float:
        choice, stages = self.choice, self.costs.stages[rank :: self.choice.depth]
        passes_s = sum(stage.both_s + choice.recomputes * stage.forward_s for stage in stages)
        return choice.microbatches * passes_s + sum(stage.step_s for stage in stages)

    @property
    def least_bytes(self) -> int:
        """A bound on the peak memory of the fullest GPU: its training state."""
        stages = self.costs.stages
        return max(
            sum(stage.weight_bytes + stage.optimizer_bytes for stage in stages[rank :: self.choice.depth])
            for rank in range(self.choice.depth)
        )

    def simulated(self) -> tuple[float, int]:
        """Return the seconds of a Step in steady state, and the peak memory of the fullest GPU."""
        if self.choice.scheme == "gpipe":
            estimate = self._estimate(self._lists(1))
            return estimate.seconds, max(estimate.peak_bytes.values())
        count = _PERIODS if self.choice.scheme != "pipedream" else 2 * self.choice.depth
        short, long = (self._estimate(self._lists(steps)) for steps in (count, 2 * count))
        pace_s = max(self.least_s, (long.seconds - short.seconds) / count)
        more = self._more_in_flight()
        return pace_s, max(held + more.get(rank, 0) for rank, held in long.peak_bytes.items())

    def peaks(self) -> tuple[int, ...]:
        """Return the peak memory of each GPU [bytes]."""
        lists = self._lists(1 if self.choice.scheme == "gpipe" else _PERIODS)
        return tuple(self._estimate(lists).peak_bytes.values())

    def _more_in_flight(self) -> dict[int, int]:
        """Return the bytes of M - d further micro-batches on each GPU but the last, by 1F1B with this advance."""
        depth, microbatches = self.choice.depth, self.choice.microbatches
        if not self.choice.keeps_period or microbatches == depth:
            return {}
        ahead, plain = (
            self._estimate(self._recomputed(build("1f1b_afp", depth, microbatches, advance=advance))).peak_bytes
            for advance in (microbatches - depth, 0)
        )
        return {rank: held - plain[rank] for rank, held in ahead.items()}

    def _estimate(self, lists: Schedule) -> Estimate:
        estimate = predict_scenario(Scenario(lists, self.costs, self._cluster()))
        assert isinstance(estimate, Estimate), "plain costs and lists are predicted exactly"
        return estimate

    def _lists(self, steps: int) -> Schedule:
        choice = self.choice
        takes_period = choice.scheme in ("wpipe", "pipedream_2bw")
        parameters = {"accumulate": choice.microbatches} if takes_period else {}
        return self._recomputed(build(choice.scheme, choice.depth, steps * choice.microbatches, **parameters))

    def _recomputed(self, lists: Schedule) -> Schedule:
        return recompute(lists) if self.choice.recomputes else lists

    def _cluster(self) -> Cluster:
        choice = self.choice
        in_node = GPUS_PER_NODE // min(choice.width, GPUS_PER_NODE) if choice.spans_nodes else GPUS_PER_NODE
        sharing = min(choice.width, GPUS_PER_NODE) if choice.spans_nodes else 1
        devices = tuple(Device(node=rank // in_node) for rank in range(choice.depth))
        return Cluster(devices, Link(0.0, _NODE_BYTES_PER_S), Link(0.0, _NETWORK_BYTES_PER_S / sharing))


@cache
def _cuts(profile: Profile, size: int, num_stages: int) -> tuple[tuple[int, int], ...]:
    return tuple(balanced_partition(profile.seconds_of_layers(size), num_stages))
