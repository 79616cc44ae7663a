"""WPipe's findings from its own figures: placements, compression and depth, simulated beside what the paper measured.

    python benchmarks/wpipe.py [placements] [depths]

The cluster is the paper's (appendix A.2): eight nodes of eight V100, 25 Gb/s between nodes, 300 GB/s inside. Its
models are BERT with hidden_size 768, 12 heads and sequences of 128, and ResNeXt with 32 groups of width 4. Seconds are
FLOPs by a share of a V100's peak, which is calibrated on one number of the paper: 607.8 samples/s of ResNeXt500 in
d x w = 4 x 16 with batches of 3328, pipelines inside the nodes (Table 3, A). Everything else is predicted.

Messages pass the shared interfaces in pieces of 4 MB, one of each in turn, as the connections of a network share it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pipesched
from pipesched import Cluster, NetworkOptions, Schedule, StageCosts
from pipesched.profiles.clusters import of_nodes
from pipesched.profiles.costs import (
    Compression,
    LayerShape,
    bert,
    computed_profile,
    costs_of_stages,
    layer_seconds,
    resnext,
)
from pipesched.profiles.io import load_machine
from pipesched.profiles.partitioning import balanced_partition
from pipesched.schedules.transforms import Placement, place_copies, recompute, replicate
from pipesched.simulator.engine import simulate_lists

PEAK_FLOPS_PER_S, MEMORY_BYTES_PER_S = 15.7e12, 900e9
"""Of a V100 in float32: NVIDIA's data sheet of the V100 SXM2."""

COMPRESSION = Compression(4, MEMORY_BYTES_PER_S * 4 / 10)
"""To convert four bytes, ten go through the memory: read for the largest, read again, and two are written."""

PAPER_A, PAPER_B, PAPER_COMPRESSED, BATCH = 607.8, 497.3, 732.6, 3328
"""Tables 3 and 4: samples/s with pipelines inside the nodes, across them, and the first with compressed messages."""

PIECES = NetworkOptions(chunk_bytes=4_000_000)
NETWORKS = {
    "in pieces": PIECES,
    "one whole after the other": NetworkOptions(),
    "in pieces, sends wait": replace(PIECES, sends="blocking"),
}

BLOCKS = {"3, 24, 136, 3": (3, 24, 136, 3), "8, 60, 90, 8": (8, 60, 90, 8)}
"""Of ResNeXt500; 166 in all, and the paper does not say where: ResNet-200 with a longer third stage, or all longer."""


@dataclass(frozen=True, slots=True)
class Layout:
    """`width` pipelines of `depth` devices, each with so many micro-batches between two Steps of a stage."""

    depth: int
    width: int
    microbatches: int
    placement: Placement = "pipeline"


@dataclass(frozen=True, slots=True)
class Case:
    """A case of the benchmark: the model that is trained, and the machines.

    Attributes:
        layers: In order.
        batch: Samples of a Step, over all pipelines.
        share: Of the peak that the devices reach.
        cluster: Theirs.
        compressed: The messages between stages are in half precision.
        network: How messages go.
    """

    layers: Sequence[LayerShape]
    batch: int
    share: float
    cluster: Cluster
    compressed: bool = False
    network: NetworkOptions = PIECES

    def microbatch_size(self, layout: Layout) -> int:
        """Return the samples of a micro-batch."""
        size, rest = divmod(self.batch, layout.width * layout.microbatches)
        assert not rest, "the layouts here divide their batches"
        return size

    def costs(self, layout: Layout) -> StageCosts:
        """Return those of the two stages per device, balanced by time."""
        size = self.microbatch_size(layout)
        profile = computed_profile("", self.layers, size, self.share * PEAK_FLOPS_PER_S, MEMORY_BYTES_PER_S)
        costs = costs_of_stages(profile, balanced_partition(layer_seconds(profile, size), 2 * layout.depth), size)
        return replace(costs, compression=COMPRESSION if self.compressed else None)

    def throughput(self, layout: Layout, steps: int = 4) -> float:
        """Return samples per second in the steady state: from so many Steps, and as many more.

        Only the makespans are needed: `pipesched.simulate` would take seven times as long for all that it says.
        """
        costs = self.costs(layout)
        short_s, long_s = (
            simulate_lists(schedule(layout, times), costs, self.cluster, network=self.network).makespan_s
            for times in (steps, 2 * steps)
        )
        return self.batch * steps / (long_s - short_s)

    def peak_bytes(self, layout: Layout) -> int:
        """Return the most that a device holds; one pipeline is enough to know."""
        result = pipesched.simulate(schedule(replace(layout, width=1), 3), self.costs(layout))
        return max(device.peak_memory_bytes or 0 for device in result.metrics.devices)


def schedule(layout: Layout, steps: int) -> Schedule:
    """Return WPipe with recomputation, which the paper calls WPipe-R, in this layout."""
    single = pipesched.build("wpipe", layout.depth, steps * layout.microbatches, accumulate=layout.microbatches)
    return place_copies(replicate(recompute(single), layout.width), layout.placement, layout.width)


def calibrated(case: Case, layout: Layout, throughput: float) -> Case:
    """Return `case` with the share of the peak at which `layout` has this throughput, to 0.01 %."""
    while not math.isclose(predicted := case.throughput(layout), throughput, rel_tol=1e-4):
        case = replace(case, share=case.share * throughput / predicted)
    return case


def resnext500(blocks: Sequence[int]) -> Case:
    """Return the case of Table 3 with a share that is not calibrated yet."""
    return Case(resnext(blocks), BATCH, 0.1854, of_nodes(load_machine("wpipe-v100"), 8))


A = Layout(4, 16, 4)
B = replace(A, placement="data")


def _placements() -> Iterator[str]:
    yield "| blocks | messages | micro-batches | placement A | B | A : B | A, compressed | B, compressed |"
    yield "|---|---|---|---|---|---|---|---|"
    yield f"| paper | | not said | {PAPER_A} | {PAPER_B} | {PAPER_A / PAPER_B:.3f} | {PAPER_COMPRESSED} | |"
    for blocks, numbers in BLOCKS.items():
        case = calibrated(resnext500(numbers), A, PAPER_A)
        for how, m in (*((how, 4) for how in NETWORKS), ("in pieces", 8), ("in pieces", 16)):
            own = replace(case, network=NETWORKS[how])
            a, b = (replace(layout, microbatches=m) for layout in (A, B))
            plain = [own.throughput(layout) for layout in (a, b)]
            compressed = [replace(own, compressed=True).throughput(layout) for layout in (a, b)]
            yield (
                f"| {blocks} | {how} | {m} of {own.microbatch_size(a)} | {plain[0]:.1f} | {plain[1]:.1f} "
                f"| {plain[0] / plain[1]:.3f} | {compressed[0]:.1f} | {compressed[1]:.1f} |"
            )
        yield f"| | | share of the peak {case.share:.4f} | {case.peak_bytes(A) / 1e9:.1f} GB per device | | | | |"


def _depths() -> Iterator[str]:
    """As many micro-batches as devices in a pipeline, so that they are equally large in every layout."""
    node, nodes = load_machine("wpipe-v100"), of_nodes(load_machine("wpipe-v100"), 8)
    known = calibrated(resnext500(BLOCKS["3, 24, 136, 3"]), A, PAPER_A)
    cases = [
        ("ResNeXt200, one node", Case(resnext((3, 24, 36, 3)), 512, known.share, node), (2, 4, 8)),
        ("BERT96, one node", Case(bert(96), 512, known.share, node), (2, 4, 8)),
        ("ResNeXt500", known, (4, 8, 16)),
        ("BERT384", Case(bert(384), 512, known.share, nodes), (4, 8, 16, 32, 64)),
    ]
    yield "| model | batch | d x w | placement A | B | a device holds |"
    yield "|---|---|---|---|---|---|"
    for name, case, depths in cases:
        for depth in depths:
            a, b = (
                Layout(depth, len(case.cluster.devices) // depth, depth, placement)
                for placement in ("pipeline", "data")
            )
            both = " | ".join(f"{case.throughput(layout, 2):.2f}" for layout in (a, b))
            held = f"{case.peak_bytes(a) / 1e9:.1f} GB"
            yield f"| {name} | {case.batch} | {depth} x {a.width} | {both} | {held} |"


TABLES = {"placements": _placements, "depths": _depths}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", choices=[*TABLES, []], default=[])
    for name in parser.parse_args().tables or TABLES:
        for line in TABLES[name]():
            print(line, flush=True)
        print()


if __name__ == "__main__":
    main()
