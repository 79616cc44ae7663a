"""AvgPipe's three workloads and its cluster: seconds and bytes of the layers at each micro-batch size.

| workload | seconds | of the paper's text |
|---|---|---|
| GNMT | published with PipeDream for one size (V100); other sizes by the estimate below | batch 128, Adam, 6 GPUs |
| BERT | `estimated_profile` of its shape | batch 32, Adam, 6 GPUs |
| AWD  | the estimate below, from the shapes of AWD-LSTM on Penn Treebank | batch 40, SGD, 4 GPUs |

A layer of LSTM multiplies the inputs of all tokens at once, and the states token by token. A product takes a launch,
then the longer of its operations and its bytes, with the shares of peak and bandwidth of `profiles/data`. So small
micro-batches take nearly as long as larger ones: each token reads all weights. PipeDream's LSTM of 32 samples took
2.5 and 4.2 ms; the estimate is 2.3 and 4.4 ms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import accumulate
from pathlib import Path
from typing import TypeAlias

import pipesched
from pipesched.profiles.clusters import Cluster, Device, Gpu, Link
from pipesched.profiles.costs import UNSAID, LayerCost, LayerMeasurement, LayerWork, Profile, StageCosts
from pipesched.profiles.inside_stage import ModelShape
from pipesched.profiles.io import load_gpu
from pipesched.profiles.partitioning import cheapest_partition
from pipesched.schedules import Schedule
from pipesched.simulator import USUAL_NETWORK, NetworkOptions
from pipesched.simulator.tuner import Problem

Bounds: TypeAlias = tuple[tuple[int, int], ...]
"""First layer of each stage, and the layer behind its last."""
ETHERNET_BYTES_PER_S = 125e6
"""1 Gb/s, the paper's network."""
_TOKENS = {"gnmt": 48, "awd": 70}
_GNMT = Path(__file__).parents[3] / "profiles/data/pipedream/gnmt.graph.txt"
_GNMT_SIZE = 32
"""Samples of PipeDream's measurement of GNMT: its states have 131,072 bytes, 1024 numbers of 4 bytes a sample."""
_FLOAT_BYTES = 4
_LSTM_SAVED = 6
"""Numbers that an LSTM keeps for each of its outputs: four gates, the cell, and the output."""


@dataclass(frozen=True, eq=False)  # without slots: computed properties are kept beside the fields
class Workload:
    """A model on the paper's cluster.

    Attributes:
        name: As in the paper.
        profile: Seconds and bytes of the layers.
        batch: Samples of a batch.
        num_devices: GPUs, two in each node.
        bytes_per_s: Bandwidth between the nodes.
        network: How messages go.
    """

    name: str
    profile: Profile
    batch: int
    num_devices: int
    bytes_per_s: float = ETHERNET_BYTES_PER_S
    network: NetworkOptions = USUAL_NETWORK

    @property
    def cluster(self) -> Cluster:
        """Nodes of two V100 with NVLink; one network interface each."""
        gpu = _v100()
        return Cluster(
            tuple(Device(memory_bytes=gpu.memory_bytes, node=index // 2) for index in range(self.num_devices)),
            intra=Link(10e-6, gpu.link_bandwidth_bytes_per_s),
            inter=Link(50e-6, self.bytes_per_s),
            nics=tuple((first, first + 1) for first in range(0, self.num_devices, 2)),
        )

    @property
    def usual_size(self) -> int:
        """Samples of a micro-batch if the batch is cut into as many as there are GPUs, rounded down."""
        return self.batch // self.num_devices

    @cached_property
    def bounds(self) -> Bounds:
        """The layers of each stage, one GPU for each.

        As in PipeDream the slowest of all stages and cuts is as fast as can be. Where a cut is the slowest, the slowest
        stage is.
        """
        cluster, size, layers = self.cluster, self.usual_size, range(len(self.profile.layers))
        ends_s = [0.0, *accumulate(self.profile.seconds_of_layers(size))]
        outputs = [self.profile.cost_of_layers(layer, layer + 1, size).output_bytes for layer in layers]

        def cut_s(stage: int, last: int) -> float:
            if stage == self.num_devices - 1:
                return 0.0
            return 2 * cluster.link(stage, stage + 1).transfer_s(outputs[last - 1])

        def cut(limit_s: float | None = None) -> Bounds:
            def cost(stage: int, first: int, last: int) -> float:
                message_s, work_s = cut_s(stage, last), ends_s[last] - ends_s[first]
                if limit_s is None:
                    return max(work_s, message_s)
                return work_s if message_s <= limit_s else math.inf

            return cheapest_partition(cost, len(layers), self.num_devices)

        bounds = cut()
        slowest_s = max(
            max(ends_s[last] - ends_s[first], cut_s(stage, last)) for stage, (first, last) in enumerate(bounds)
        )
        return cut(slowest_s * (1 + 1e-9))

    @cached_property
    def problem(self) -> Problem:
        """The problem of the tuner, with these stages."""
        sizes = ",".join(str(last - first) for first, last in self.bounds)
        return Problem(self.profile, self.batch, self.cluster, sizes, self.network)

    def fits(self, held: Sequence[int]) -> bool:
        """Return whether these bytes fit into each GPU."""
        return max(held) <= _v100().memory_bytes

    def costs(self, microbatch_size: int) -> StageCosts:
        """Return the costs of the stages."""
        return self.profile.costs_of_layers(self.bounds, microbatch_size)

    def whole(self, microbatch_size: int) -> StageCosts:
        """Return the costs of the whole model as one stage, for data parallelism."""
        return self.profile.costs_of_layers(((0, len(self.profile.layers)),), microbatch_size)

    def with_saved(self, factor: float) -> Workload:
        """Return the workload with `factor` times the bytes that layers keep for their backward."""
        layers = tuple(
            replace(
                layer,
                measurements=tuple(
                    replace(of, saved_bytes=round(factor * of.saved_bytes)) for of in layer.measurements
                ),
            )
            for layer in self.profile.layers
        )
        return replace(self, profile=replace(self.profile, layers=layers))

    def simulate(self, schedule: Schedule, costs: StageCosts) -> pipesched.workflows.simulating.Simulation:
        """Return the prediction of a schedule on the cluster."""
        return pipesched.simulate(schedule, pipesched.Setup(costs, self.cluster, network=self.network))


@cache
def gnmt() -> Workload:
    """Return GNMT: PipeDream's measured layers, and 128 sentences."""
    sizes = (1, 2, 4, 8, 16, 21, 32, 64, 128, 256)
    measured = pipesched.load_profile(_GNMT)
    return Workload("GNMT", replace(measured, layers=_sized(measured, sizes), graph=None, provenance=_ON_GPU), 128, 6)


@cache
def bert(layers: int = 24, hidden: int = 1024, tokens: int = 256) -> Workload:
    """Return BERT for pairs of sentences. The classifier of two outputs behind the blocks takes no time."""
    shape = ModelShape(
        name=f"bert of {layers} blocks", layers=layers, hidden=hidden, ffn=4 * hidden, heads=hidden // 64,
        kv_heads=hidden // 64, head_size=64, vocab=30_522, sequence=tokens, has_bias=True, has_dropout=True,
        has_positions=True, has_embedding_norm=True, has_layer_norm=True,
    )  # fmt: skip
    estimate = pipesched.analytic_profile(
        shape, "v100", microbatch_sizes=(1, 2, 4, 5, 8, 16, 32), precision="float32", attention="unfused",
        optimizer="adam", has_graphs=True, has_fused_gradients=False,
    ).profile  # fmt: skip
    blocks = [replace(layer, work=_work(layer.weight_bytes)) for layer in estimate.layers[:-1]]
    last = tuple(replace(measured, output_bytes=0) for measured in blocks[-1].measurements)
    blocks[-1] = replace(blocks[-1], measurements=last)
    return Workload("BERT", replace(estimate, layers=tuple(blocks), tied_bytes=0, is_tied=False), 32, 6)


@cache
def awd() -> Workload:
    """Return AWD-LSTM: widths 400, 1150, 1150, 400, tied to 10,000 words, 70 tokens of 40 texts."""
    sizes, tokens, widths = (1, 2, 4, 5, 8, 10, 20, 40), _TOKENS["awd"], (400, 1150, 1150, 400)
    words, embedding = 10_000, widths[0]
    layers = [_layer("embedding", words * embedding, [(b, 0.0, 0.0, b * tokens * embedding, 0) for b in sizes])]
    for inputs, width in zip(widths, (*widths[1:], embedding), strict=True):
        if len(layers) == 4:
            break
        numbers = [(b, *_lstm_s(b, tokens, inputs, width), b * tokens * width, _LSTM_SAVED) for b in sizes]
        layers.append(_layer(f"lstm {inputs} {width}", 4 * width * (inputs + width + 2), numbers))
    head = [(_product_s(b * tokens, embedding, words), b) for b in sizes]
    layers.append(_layer("decoder", words, [(b, s, 2 * s, 0, 0) for s, b in head], saved=tokens * words))
    profile = Profile("awd-lstm", tuple(layers), _ON_GPU)
    return Workload("AWD", profile, 40, 4)


WORKLOADS = (gnmt, bert, awd)
_ON_GPU = replace(UNSAID, kind="cuda", dtype="float32", device="V100")


@cache
def _v100() -> Gpu:
    return load_gpu("v100")


def _product_s(rows: int, inner: int, columns: int) -> float:
    """Return the seconds of a product of matrices in float32."""
    gpu = _v100()
    assert gpu.kernels is not None, "its data sheet names a curve"
    flops_per_s = gpu.efficiency * gpu.flops_per_s["float32"]
    bytes_per_s = gpu.kernels.memory * gpu.memory_bandwidth_bytes_per_s
    num_bytes = _FLOAT_BYTES * (rows * inner + inner * columns + rows * columns)
    return gpu.kernels.launch_s + max(2 * rows * inner * columns / flops_per_s, num_bytes / bytes_per_s)


def _lstm_s(size: int, tokens: int, inputs: int, width: int) -> tuple[float, float]:
    """Return the seconds of forward and backward of one layer of LSTM."""
    of_inputs = _product_s(size * tokens, inputs, 4 * width)
    of_states = tokens * _product_s(size, width, 4 * width)
    of_weights = _product_s(inputs + width, size * tokens, 4 * width)
    return of_inputs + of_states, of_inputs + of_states + of_weights


def _work(weight_bytes: int) -> LayerWork:
    """Return the work on weights besides the step, at the bandwidth of the memory: 2, 4 and 6 passes over them."""
    gpu = _v100()
    assert gpu.kernels is not None, "its data sheet names a curve"
    pass_s = weight_bytes / (gpu.kernels.memory * gpu.memory_bandwidth_bytes_per_s)
    return LayerWork(2 * pass_s, 4 * pass_s, 6 * pass_s)


def _layer(
    name: str, parameters: int, numbers: Sequence[tuple[int, float, float, int, int]], saved: int = 0
) -> LayerCost:
    """Return a layer of (size, forward [s], backward [s], outputs, numbers kept for each output) rows; SGD.

    Args:
        name: Its name.
        parameters: Numbers of its weights.
        numbers: The rows.
        saved: Numbers that it keeps for a sample, besides.
    """
    measured, weight_bytes = [], _FLOAT_BYTES * parameters
    for size, forward_s, backward_s, outputs, kept in numbers:
        num_bytes = _FLOAT_BYTES * outputs
        saved_bytes = kept * num_bytes + _FLOAT_BYTES * size * saved
        measured.append(_measurement(size, forward_s, backward_s, num_bytes, num_bytes, saved_bytes))
    step_s = 5 / 6 * _work(weight_bytes).average_s
    return LayerCost(name, weight_bytes, 0, step_s, tuple(measured), _work(weight_bytes))


def _measurement(
    size: int, forward_s: float, backward_s: float, input_bytes: int, output_bytes: int, saved_bytes: int
) -> LayerMeasurement:
    return LayerMeasurement(
        size, forward_s, backward_s, input_bytes, output_bytes, output_bytes, saved_bytes,
        input_saved=False, output_saved=False, output_is_input=False,
    )  # fmt: skip


def _sized(measured: Profile, sizes: Sequence[int]) -> tuple[LayerCost, ...]:
    """Return GNMT's layers at `sizes`, with Adam."""
    layers = []
    for layer in measured.layers:
        at, is_recurrent = layer.measurements[0], "LSTM" in layer.name
        backward_s = at.backward_s
        if "EmuBidirLSTM" in layer.name:  # published as 0.016 ms; the ratio of the LSTM behind it
            backward_s = at.forward_s * 5.348 / 3.190
        saved_bytes = at.saved_bytes * (_LSTM_SAVED if is_recurrent else 1)
        rows = []
        for size in sizes:
            forward, backward = (size / _GNMT_SIZE,) * 2
            if is_recurrent:
                now, then = (_lstm_s(b, _TOKENS["gnmt"], 1024, 1024) for b in (size, _GNMT_SIZE))
                forward, backward = (seconds / known_s for seconds, known_s in zip(now, then, strict=True))
            elif "Classifier" in layer.name:
                of = [_product_s(b * _TOKENS["gnmt"], 1024, 32_320) for b in (size, _GNMT_SIZE)]
                forward = backward = of[0] / of[1]
            share = size / _GNMT_SIZE
            input_bytes, output_bytes, kept_bytes = (
                round(share * number) for number in (at.input_bytes, at.output_bytes, saved_bytes)
            )
            seconds = at.forward_s * forward, backward_s * backward
            rows.append(_measurement(size, *seconds, input_bytes, output_bytes, kept_bytes))
        work = _work(layer.weight_bytes)
        step_s = 7 / 6 * work.average_s
        layers.append(LayerCost(layer.name, layer.weight_bytes, 2 * layer.weight_bytes, step_s, tuple(rows), work))
    return tuple(layers)
