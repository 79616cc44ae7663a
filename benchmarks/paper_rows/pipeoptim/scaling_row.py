"""Throughput of BERT-48 on one, two and three nodes: Fig. 8.

Costs are estimated from the operators of the transformer and the data sheet of a P100.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pipesched
from paper_rows.figure import Outcome, Verdict
from paper_rows.pipeoptim.throughput_rows import node_of, pace_s, with_optimizer
from pipesched.profiles.clusters import Gpu, of_nodes
from pipesched.profiles.io import load_gpu
from pipesched.profiles.partitioning import balanced_partition
from pipesched.schedules.builders import build

_MODEL = "transformer:layers=48,hidden=1024,heads=16,vocab=30522,seq=128"
_NODES, _PER_NODE = (1, 2, 3), 4
_SIZES = (4, 16)
"""Samples of a micro-batch; the paper does not state them."""
_LINK_BYTES_PER_S, _INTER_BYTES_PER_S = 12e9, 12.5e9
_ADAM_MOMENTS = 2
_ORDER = ("Vanilla-1F1B", "PipeDream-2BW", "PipeOptim", "PipeDream", "GPipe")
"""Approaches by throughput in the paper, the fastest first."""


def _p100() -> Gpu:
    return replace(
        load_gpu("v100"),
        name="P100",
        memory_bytes=16_280 * 2**20,
        flops_per_s={"float32": 10.6e12, "float16": 21.2e12},
        memory_bandwidth_bytes_per_s=732e9,
        multiprocessors=56,
    )


@cache
def _rate(approach: str, nodes: int, size: int) -> float:
    """Return samples per second."""
    stages = nodes * _PER_NODE
    made = pipesched.analytic_profile(
        _MODEL, gpu=_p100(), precision="float32", microbatch_sizes=[size], optimizer="adam"
    )
    measured = [layer.measurements[0] for layer in made.profile.layers]
    bounds = balanced_partition([layer.forward_s + layer.backward_s for layer in measured], stages)
    costs = made.profile.stage_costs(build("gpipe", stages, 4), bounds, size)
    costs = replace(costs, stages=tuple(with_optimizer(stage, _ADAM_MOMENTS) for stage in costs.stages))
    cluster = of_nodes(node_of(_PER_NODE, _LINK_BYTES_PER_S, _INTER_BYTES_PER_S), nodes)
    return size / pace_s(approach, stages, pipesched.Setup(costs, cluster))


def fig_8() -> Outcome:
    rates = {name: [[_rate(name, nodes, size) for nodes in _NODES] for size in _SIZES] for name in _ORDER}
    last = [rates[name][0][-1] for name in _ORDER]
    is_ordered = all(before > after for before, after in pairwise(last))
    grows = all(before < after for sizes in rates.values() for row in sizes for before, after in pairwise(row))
    is_gpipe_last = all(
        rates["GPipe"][size][nodes] == min(rates[name][size][nodes] for name in _ORDER)
        for size in range(len(_SIZES))
        for nodes in range(len(_NODES))
    )
    verdict = Verdict.SHAPE if grows and is_gpipe_last else Verdict.DIFFERS
    behind = 1 - last[_ORDER.index("PipeOptim")] / last[_ORDER.index("PipeDream")]
    return Outcome(
        "Vanilla-1F1B > 2BW > PipeOptim > PipeDream > GPipe; all grow with the nodes",
        f"on 12 GPUs {', '.join(f'{rate:.1f}' for rate in last)} samples/s in this order",
        Verdict.AGREES if is_ordered and verdict is Verdict.SHAPE else verdict,
        "Estimated from operators; agrees if the order holds and all grow, the shape if all grow and GPipe is the "
        f"slowest everywhere. PipeOptim is behind PipeDream by {behind:.1%}: a prediction moves the bytes of eight "
        "copies of the weights, a stash of two. 2BW steps once in 12 micro-batches, the others after each.",
        [
            f"Samples per second with micro-batches of {_SIZES[0]}, {_SIZES[1]}, on 4, 8 and 12 GPUs.",
            "",
            "| | 4 | 8 | 12 |",
            "|---|---:|---:|---:|",
            *(f"| {name} | {' | '.join(_cells(rates[name]))} |" for name in _ORDER),
        ],
    )


def _cells(by_size: Sequence[Sequence[float]]) -> list[str]:
    return [", ".join(f"{rate:.1f}" for rate in rates) for rates in zip(*by_size, strict=True)]
