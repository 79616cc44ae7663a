"""Estimated costs of GPTs beside published measurements on A100s: seconds of passes and iterations, and bytes.

    python benchmarks/analytic.py [--out benchmarks/results/analytic.md]

No number is fitted to these rows: the GPU's figures come from its data sheet, and its kernels have the curve of
`profiles/data/kernels/a100.json`. All published runs are of Megatron-LM on A100s of 80 GB, in nodes of eight
with 200 Gb/s for each GPU (`--machine dgx-a100`).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from textwrap import fill
from typing import Any

from report import arguments_of, show

import pipesched
from pipesched import Profile, Schedule
from pipesched.profiles.clusters import of_nodes
from pipesched.profiles.costs import LayerSharding
from pipesched.profiles.inside_stage import ModelShape, estimated_profile, fabric_of
from pipesched.profiles.io import load_gpu, load_machine, model_shape
from pipesched.schedules.transforms import recompute
from pipesched.workflows.simulating import Simulation

GPU = "a100"
VOCAB = 51200
"""In the runs of Narayanan and Korthikanti; that of the zero-bubble paper is not printed and taken to be the same."""
NODE = load_machine("dgx-a100")
ONE_OF_A_NODE = replace(NODE, devices=NODE.devices[:1], nics=((0,),))


@dataclass(frozen=True, slots=True)
class Row:
    """A published number beside the estimate, in seconds or in bytes."""

    what: str
    published: float
    estimated: float

    @property
    def error(self) -> float:
        """The error of the estimate, as a share of the published number."""
        return self.estimated / self.published - 1


def gpt(layers: int, width: int, heads: int, context: int) -> ModelShape:
    """Return the shape of a GPT with dropout."""
    name = f"gpt:layers={layers},width={width},heads={heads},context={context},vocab={VOCAB}"
    return replace(model_shape(name), has_dropout=True)


ZERO_BUBBLE = {
    "1.5B": (gpt(22, 2304, 24, 1024), 8, 6),
    "6.2B": (gpt(30, 4096, 32, 1024), 8, 3),
    "14.6B": (gpt(46, 5120, 40, 1024), 16, 1),
    "28.3B": (gpt(62, 6144, 48, 1024), 32, 1),
}
"""arXiv:2401.10241v1, table 3: model, stages, samples of a micro-batch. The outer two stages have a layer less."""

PASSES = {
    ("1.5B", 24): (18.522, 18.086, 9.337),
    ("1.5B", 32): (18.513, 18.086, 9.331),
    ("1.5B", 64): (18.546, 18.097, 9.321),
    ("6.2B", 24): (29.718, 29.444, 19.927),
    ("6.2B", 32): (29.802, 29.428, 19.530),
    ("6.2B", 64): (29.935, 29.621, 19.388),
    ("14.6B", 48): (11.347, 11.248, 8.132),
    ("14.6B", 64): (11.307, 11.254, 8.101),
    ("14.6B", 128): (11.325, 11.308, 8.109),
    ("28.3B", 96): (10.419, 10.207, 7.715),
    ("28.3B", 128): (10.408, 10.204, 7.703),
    ("28.3B", 256): (10.402, 10.248, 7.698),
}
"""Ibid., table 9: milliseconds of F, I and W of a stage, by model and micro-batches."""

MEMORY_GB = {
    ("1.5B", 2): 11,
    ("1.5B", 4): 18,
    ("1.5B", 8): 29,
    ("6.2B", 2): 21,
    ("6.2B", 4): 28,
    ("6.2B", 8): 39,
    ("14.6B", 4): 19,
    ("14.6B", 8): 24,
    ("14.6B", 16): 32,
}
"""Ibid., table 12: the fullest GPU under 1F1B, by model and micro-batches."""

LAYER_MS: dict[str, tuple[dict[str, Any], float, float]] = {
    "as it is": ({}, 7.7, 11.9),
    "sequence parallelism": ({"has_sequence": True}, 7.2, 11.8),
    "selective recomputation": ({"recompute": "selective"}, 7.7, 13.2),
    "both": ({"has_sequence": True, "recompute": "selective"}, 7.2, 13.1),
}
"""arXiv:2205.05198, table 4: a layer of the model of 22B, four samples on 8 GPUs: forward and backward."""

RECOMPUTING = {
    "22B": (gpt(48, 6144, 64, 2048), 1, 1, 1, 4, 1.42, 1.10),
    "175B": (gpt(96, 12288, 96, 2048), 8, 3, 64, 1, 18.13, 13.75),
    "530B": (gpt(105, 20480, 128, 2048), 35, 3, 280, 1, 49.05, 37.83),
    "1T": (gpt(128, 25600, 160, 2048), 64, 1, 512, 1, 94.42, 71.49),
}
"""Ibid., tables 3 and 5: stages, chunks, micro-batches, samples of each; seconds of an iteration when everything is
computed again, and when attention alone is, with sequence parallelism. Eight GPUs share every layer."""

SCALING = (
    ("1.7B", gpt(24, 2304, 24, 2048), 1, 1, 32, 512, 137),
    ("3.6B", gpt(30, 3072, 32, 2048), 2, 1, 64, 512, 138),
    ("7.5B", gpt(36, 4096, 32, 2048), 4, 1, 128, 512, 142),
    ("18.4B", gpt(40, 6144, 48, 2048), 8, 1, 256, 1024, 135),
    ("39.1B", gpt(48, 8192, 64, 2048), 8, 2, 512, 1536, 138),
    ("76.1B", gpt(60, 10240, 80, 2048), 8, 4, 1024, 1792, 140),
    ("145.6B", gpt(80, 12288, 96, 2048), 8, 8, 1536, 2304, 148),
    ("310.1B", gpt(96, 16384, 128, 2048), 8, 16, 1920, 2160, 155),
    ("529.6B", gpt(105, 20480, 128, 2048), 8, 35, 2520, 2520, 163),
    ("1008B", gpt(128, 25600, 160, 2048), 8, 64, 3072, 3072, 163),
)
"""arXiv:2104.04473, table 1: GPUs that share a layer, stages, all GPUs, batch, TFLOP/s of each in an iteration."""


def estimated(shape: ModelShape, samples: int, tensor: int = 1, **how: Any) -> Profile:
    """Return the profile of a GPT on one of `tensor` A100s that share its layers.

    Megatron-LM of these papers keeps float16 gradients of float16 weights, and has no FlashAttention.
    """
    sharding = LayerSharding(tensor=tensor, precision="float16", gradient_bytes=2, attention="unfused", **how)
    fabric = fabric_of(NODE)
    return estimated_profile(shape, sharding, load_gpu(GPU), fabric, [samples], "adam")


def iteration(profile: Profile, schedule: Schedule, partition: Sequence[int], num_ranks: int) -> Simulation:
    """Predict an iteration; each rank is on a separate node, where other GPUs share its layers."""
    cluster = of_nodes(ONE_OF_A_NODE, num_ranks)
    return pipesched.simulate(schedule, pipesched.Setup(profile, cluster, partition=list(partition)))


def blocks_per_stage(num_blocks: int, num_stages: int) -> list[int]:
    """Return the number of layers of each stage: equal blocks, plus the embedding first and the head last."""
    sizes = [num_blocks // num_stages] * num_stages
    for index in range(num_blocks % num_stages):
        sizes[index] += 1
    sizes[0] += 1
    sizes[-1] += 1
    return sizes


def passes() -> Iterator[Row]:
    """Yield the passes of a middle stage in the zero-bubble paper."""
    for (name, num_microbatches), published_ms in PASSES.items():
        shape, stages, samples = ZERO_BUBBLE[name]
        cost = estimated(shape, samples).cost_of_layers(1, 1 + (shape.layers + 2) // stages, samples)
        assert cost.backward_input_s is not None
        assert cost.backward_weight_s is not None
        pass_s = cost.forward_s, cost.backward_input_s, cost.backward_weight_s
        for phase, milliseconds, seconds in zip("FIW", published_ms, pass_s, strict=True):
            yield Row(f"{name}, p = {stages}, m = {num_microbatches} {phase}", milliseconds / 1e3, seconds)


def memory() -> Iterator[Row]:
    """Yield the memory of the fullest GPU under 1F1B in the zero-bubble paper."""
    for (name, num_microbatches), gigabytes in MEMORY_GB.items():
        shape, stages, samples = ZERO_BUBBLE[name]
        inner = (shape.layers + 2) // stages
        schedule = pipesched.build("1f1b", stages, num_microbatches)
        run = iteration(estimated(shape, samples), schedule, [inner] * stages, stages)
        peak = max(device.peak_memory_bytes or 0 for device in run.metrics.devices)
        yield Row(f"{name}, p = {stages}, m = {num_microbatches}", gigabytes * 1e9, peak)


def layers() -> Iterator[Row]:
    """Yield the passes of a layer that eight GPUs share."""
    shape = RECOMPUTING["22B"][0]
    for what, (how, forward_ms, backward_ms) in LAYER_MS.items():
        cost = estimated(shape, 4, 8, **how).cost_of_layers(1, 2, 4)
        assert cost.backward_s is not None
        yield Row(f"{what}, F", forward_ms / 1e3, cost.forward_s)
        yield Row(f"{what}, B", backward_ms / 1e3, cost.backward_s)


def recomputing() -> Iterator[Row]:
    """Yield the iterations with full recomputation, late as Megatron-LM's, and with recomputation of attention only."""
    for name, (shape, stages, chunks, microbatches, samples, full_s, selective_s) in RECOMPUTING.items():
        partition = blocks_per_stage(shape.layers, stages * chunks)
        if chunks > 1:
            schedule = pipesched.build("interleaved", stages, microbatches, num_chunks=chunks)
        else:
            schedule = pipesched.build("1f1b", stages, microbatches)
        full = iteration(estimated(shape, samples, 8), recompute(schedule, None, "late"), partition, stages)
        profile = estimated(shape, samples, 8, has_sequence=True, recompute="selective")
        selective = iteration(profile, schedule, partition, stages)
        yield Row(f"{name}, all again", full_s, full.makespan_s)
        yield Row(f"{name}, attention again", selective_s, selective.makespan_s)


def scaling() -> Iterator[Row]:
    """Yield the iterations of the weak scaling: full recomputation, late, and micro-batches of one sample."""
    for name, shape, gpus_per_layer, stages, gpus, batch, teraflops in SCALING:
        published_s = published_flops(shape, batch) / (gpus * teraflops * 1e12)
        whole = pipesched.build("1f1b", stages, batch * gpus_per_layer * stages // gpus)
        schedule = recompute(whole, None, "late")
        partition = blocks_per_stage(shape.layers, stages)
        run = iteration(estimated(shape, 1, gpus_per_layer), schedule, partition, stages)
        yield Row(f"{name}, {gpus} GPUs, t = {gpus_per_layer}, p = {stages}", published_s, run.makespan_s)


def published_flops(shape: ModelShape, batch: int) -> float:
    """Return the operations of an iteration with full recomputation (arXiv:2104.04473, equation 3)."""
    s, h, depth = shape.sequence, shape.hidden, shape.layers
    return 96 * batch * s * depth * h**2 * (1 + s / (6 * h) + shape.vocab / (16 * depth * h))


SECTIONS: tuple[tuple[str, Callable[[], Iterator[Row]], str, float], ...] = (
    (
        """## Passes of a stage: zero-bubble paper, tables 3 and 9 (arXiv:2401.10241v1)

GPUs share no layer; a stage in the middle. W is nothing but products of matrices. Between those of F and I much is
moved, and the paper does not say what was fused.""",
        passes,
        "ms",
        1e-3,
    ),
    (
        """## A layer that eight GPUs share: Korthikanti et al., table 4 (arXiv:2205.05198)

The model of 22B, four samples.""",
        layers,
        "ms",
        1e-3,
    ),
    (
        """## Iterations: Korthikanti et al., tables 3 and 5

Eight GPUs share every layer; interleaved 1F1B with three chunks for 175B and 530B, else 1F1B; with the step of the
optimizer. Everything is computed again without sequence parallelism, attention alone with it.""",
        recomputing,
        "s",
        1.0,
    ),
    (
        """## Iterations: Narayanan et al., table 1 (arXiv:2104.04473)

Published seconds are the operations of their equation 3 by the TFLOP/s that they print. What they do not print is
supposed: micro-batches of one sample, 1F1B without chunks. Sums of gradients over replicas are left out.""",
        scaling,
        "s",
        1.0,
    ),
    (
        """## Memory of the fullest GPU under 1F1B: zero-bubble paper, table 12

16 bytes per parameter, nothing computed again, pooled buffers.""",
        memory,
        "GB",
        1e9,
    ),
)


def report() -> Iterator[str]:
    """Yield the page line by line."""
    gpu = load_gpu(GPU)
    peak, bandwidth = gpu.flops_per_s["float16"] / 1e12, gpu.memory_bandwidth_bytes_per_s / 1e12
    link = gpu.link_bandwidth_bytes_per_s / 1e9
    yield "# Estimated costs beside measured ones"
    yield ""
    yield fill(
        f"`python benchmarks/analytic.py`, {datetime.now(UTC):%Y-%m-%d}. Nothing was measured here: published numbers "
        "are those of the papers that are named, and ours are estimated for an A100 of 80 GB: "
        f"{peak:.4g} TFLOP/s x {gpu.efficiency}, {bandwidth:.4g} TB/s, {link:.4g} GB/s each way inside a node, 25 GB/s "
        "between nodes. The curves of its kernels are in profiles/data/kernels, and not fitted to any row. An error of "
        "-20% is an estimate that is a fifth too low.",
        118,
    )
    for text, rows_of, unit, scale in SECTIONS:
        yield f"\n{text}\n\n| | published | estimated | error |\n|---|---|---|---|"
        errors = []
        for row in rows_of():
            published, estimate = (f"{number / scale:.4g} {unit}" for number in (row.published, row.estimated))
            yield f"| {row.what} | {published} | {estimate} | {row.error:+.1%} |"
            errors.append(row.error)
        yield f"\nErrors: {min(errors):+.1%} to {max(errors):+.1%}, median {statistics.median(errors):+.1%}."


if __name__ == "__main__":
    show(report(), arguments_of(__doc__).parse_args().out)
