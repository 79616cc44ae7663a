"""WPipe's findings from its own figures: placements, compression and depth, simulated beside the paper's measurements.

    python benchmarks/wpipe.py [placements] [depths]

The cluster is the paper's (appendix A.2): eight nodes of eight V100, 25 Gb/s between nodes, 300 GB/s inside. Its
models are BERT with hidden_size 768, 12 heads and sequences of 128, and ResNeXt with 32 groups of width 4. Seconds are
FLOPs by a share of a V100's peak, which is calibrated on one number of the paper: 607.8 samples/s of ResNeXt500 in
d x w = 4 x 16 with batches of 3328, pipelines inside the nodes (Table 3, A). Everything else is predicted.

Messages pass the shared interfaces in pieces of 4 MB, one piece of each message in turn, as on shared connections.

A layer is the smallest unit of a cut: a block of ResNeXt (arXiv:1611.05431), or an encoder layer of BERT
(arXiv:1810.04805). Its parameters, activations and FLOPs follow from the shapes and are exact. FLOPs count only matrix
products and convolutions, two per multiplication.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pipesched
from pipesched import Cluster, NetworkOptions, Schedule, StageCosts
from pipesched.profiles import FLOAT32_BYTES
from pipesched.profiles.clusters import of_nodes
from pipesched.profiles.costs import (
    Compression,
    LayerCost,
    LayerMeasurement,
    Profile,
    Provenance,
)
from pipesched.profiles.io import load_machine
from pipesched.profiles.partitioning import balanced_partition
from pipesched.schedules.transforms import Placement, place_copies, recompute, replicate
from pipesched.simulator.engine import simulate_lists

_GROUPS, _GROUP_WIDTH = 32, 4
_HIDDEN, _HEADS, _TOKENS, _VOCABULARY, _POSITIONS = 768, 12, 128, 30522, 512


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The shape of one layer, per sample.

    Attributes:
        forward_flops: Operations of the forward; a backward has twice as many.
        parameters: The number of parameters.
        outputs: Numbers in the output.
        saved: Numbers that autograd keeps inside, besides the input.
    """

    name: str
    forward_flops: int
    parameters: int
    outputs: int
    saved: int


def resnext(blocks: Sequence[int], image: int = 224, classes: int = 1000) -> list[LayerShape]:
    """Return a ResNeXt in 32 groups of width 4.

    Args:
        blocks: Blocks of the four stages: 3, 4, 6, 3 is ResNeXt-50.
        image: Height and width of an image in pixels.
        classes: Number of classes.
    """
    size = image // 2
    stem = LayerShape("stem", 2 * 49 * 3 * 64 * size**2, 49 * 3 * 64 + 128, 64 * (size // 2) ** 2, 2 * 64 * size**2)
    layers, inputs, size = [stem], 64, size // 2
    for stage, count in enumerate(blocks):
        width, outputs = _GROUPS * _GROUP_WIDTH << stage, 256 << stage
        for index in range(count):
            stride = 2 if stage and not index else 1
            layers.append(_block(f"{stage + 1}.{index}", inputs, width, outputs, size, stride, has_shortcut=not index))
            inputs, size = outputs, size // stride
    layers.append(LayerShape("head", 2 * inputs * classes, inputs * classes + classes, 0, inputs + classes))
    return layers


def _block(
    name: str, inputs: int, width: int, outputs: int, size: int, stride: int, *, has_shortcut: bool
) -> LayerShape:
    """Return 1x1, grouped 3x3 and 1x1 convolutions with batch norms; the inputs of all of them are kept."""
    small = size // stride
    narrow, grouped, wide = inputs * width, 9 * width * width // _GROUPS, width * outputs
    shortcut = inputs * outputs if has_shortcut else 0
    return LayerShape(
        name,
        2 * (narrow * size**2 + (grouped + wide + shortcut) * small**2),
        narrow + grouped + wide + shortcut + 2 * (2 * width + outputs + (outputs if has_shortcut else 0)),
        outputs * small**2,
        2 * width * size**2 + (2 * width + outputs + (outputs if has_shortcut else 0)) * small**2,
    )


def bert(num_layers: int) -> list[LayerShape]:
    """Return BERT with encoder layers of width 768 on 128 tokens and a pooler; 12 layers are the base model."""
    embeddings = (_VOCABULARY + _POSITIONS + 2 + 2) * _HIDDEN
    states = _TOKENS * _HIDDEN
    matrices = 12 * _HIDDEN**2  # query, key, value, output: 4; up and down: 4 each
    scores = 2 * _TOKENS * states  # query times key, and the weights times value
    encoder = LayerShape(
        "encoder",
        2 * (_TOKENS * matrices + scores),
        matrices + 13 * _HIDDEN,  # biases: 4 + 4 + 1; two norms: 4
        states,
        15 * states + 2 * _HEADS * _TOKENS**2,  # query, key, value, context, two norms, 4 before GELU, 4 behind, ...
    )
    pooler = LayerShape("pooler", 2 * _HIDDEN**2, _HIDDEN**2 + _HIDDEN, 0, 2 * _HIDDEN)
    return [LayerShape("embeddings", 0, embeddings, states, states), *[encoder] * num_layers, pooler]


def computed_profile(
    model: str, layers: Sequence[LayerShape], microbatch_size: int, flops_per_s: float, step_bytes_per_s: float
) -> Profile:
    """Return the profile of a model in float32 on a device of the given speed.

    Args:
        model: The model's name.
        layers: The layers, in order.
        microbatch_size: Samples; the only size in the profile.
        flops_per_s: Operations per second, in forward and backward.
        step_bytes_per_s: The rate at which a Step of SGD with momentum reads weights, gradients and momentum, and
            writes two.
    """
    provenance = Provenance(
        device=f"computed from shapes for {flops_per_s:.4g} FLOP/s",
        dtype="float32",
        threads=1,
        companions=0,
        optimizer="sgd",
        warmup=0,
        repeats=1,
        seed=0,
        host_cores=1,
        versions=(),
        date="2022-04-25T00:00:00+00:00",
    )
    costs = _costs(layers, microbatch_size, flops_per_s, step_bytes_per_s)
    return Profile(model, tuple(costs), provenance)


def _costs(
    layers: Sequence[LayerShape], microbatch_size: int, flops_per_s: float, step_bytes_per_s: float
) -> Iterator[LayerCost]:
    input_bytes = 0
    for layer in layers:
        forward_s = microbatch_size * layer.forward_flops / flops_per_s
        output_bytes = microbatch_size * layer.outputs * FLOAT32_BYTES
        measured = LayerMeasurement(
            microbatch_size,
            forward_s,
            2 * forward_s,
            input_bytes,
            output_bytes,
            output_bytes,
            saved_bytes=microbatch_size * layer.saved * FLOAT32_BYTES,
            input_saved=True,
            output_saved=False,
            output_is_input=False,
        )
        weight_bytes = layer.parameters * FLOAT32_BYTES
        yield LayerCost(layer.name, weight_bytes, weight_bytes, 5 * weight_bytes / step_bytes_per_s, (measured,))
        input_bytes = output_bytes


PEAK_FLOPS_PER_S, MEMORY_BYTES_PER_S = 15.7e12, 900e9
"""Of a V100 in float32: NVIDIA's data sheet of the V100 SXM2."""

COMPRESSION = Compression(4, MEMORY_BYTES_PER_S * 4 / 10)
"""The conversion of four bytes moves ten: four are read for the maximum, four are read again, two are written."""

PAPER_A, PAPER_B, PAPER_COMPRESSED, BATCH = 607.8, 497.3, 732.6, 3328
"""Tables 3 and 4: samples/s with pipelines inside the nodes, across them, and the first with compressed messages."""

PIECES = NetworkOptions(chunk_bytes=4_000_000)
NETWORKS = {
    "in pieces": PIECES,
    "one whole after the other": NetworkOptions(),
    "in pieces, sends wait": replace(PIECES, sends="blocking"),
}

BLOCKS = {"3, 24, 136, 3": (3, 24, 136, 3), "8, 60, 90, 8": (8, 60, 90, 8)}
"""Blocks of ResNeXt500, 166 in all. The paper does not give the blocks of each stage: they are a ResNet-200 with a
longer third stage, or with four longer stages."""


@dataclass(frozen=True, slots=True)
class Layout:
    """`width` pipelines of `depth` devices, with the number of micro-batches between two Steps of a stage."""

    depth: int
    width: int
    microbatches: int
    placement: Placement = "pipeline"


@dataclass(frozen=True, slots=True)
class Case:
    """A case of the benchmark: the trained model, and the machines.

    Attributes:
        layers: The layers, in order.
        batch: Samples of a Step, over all pipelines.
        share: Share of the peak that the devices reach.
        cluster: The machines.
        compressed: Whether the messages between stages are in half precision.
        network: Options of the network.
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
        """Return the costs of the stages, two per device, balanced by time."""
        size = self.microbatch_size(layout)
        profile = computed_profile("", self.layers, size, self.share * PEAK_FLOPS_PER_S, MEMORY_BYTES_PER_S)
        costs = profile.costs_of_layers(balanced_partition(profile.seconds_of_layers(size), 2 * layout.depth), size)
        return replace(costs, compression=COMPRESSION if self.compressed else None)

    def throughput(self, layout: Layout, steps: int = 4) -> float:
        """Return samples per second in the steady state: from runs of `steps` Steps and of twice this number.

        Only the makespans are computed: `pipesched.simulate` would take seven times as long for its other results.
        """
        costs = self.costs(layout)
        short_s, long_s = (
            simulate_lists(schedule(layout, times), costs, self.cluster, network=self.network).makespan_s
            for times in (steps, 2 * steps)
        )
        return self.batch * steps / (long_s - short_s)

    def peak_bytes(self, layout: Layout) -> int:
        """Return the peak memory of a device [bytes], from one pipeline."""
        result = pipesched.simulate(schedule(replace(layout, width=1), 3), self.costs(layout))
        return max(device.peak_memory_bytes or 0 for device in result.metrics.devices)


def schedule(layout: Layout, steps: int) -> Schedule:
    """Return WPipe with recomputation (WPipe-R in the paper) in this layout."""
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
    """Yield the table of depths; each pipeline has as many micro-batches as devices, so that all sizes are equal."""
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
