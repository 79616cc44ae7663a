"""WPipe's two findings, on links like its own: which placement, and how deep."""

from dataclasses import replace

import pytest

from benchmarks.wpipe import Case, Layout, bert, resnext
from pipesched.profiles.clusters import of_nodes
from pipesched.profiles.io import load_machine

NODE = load_machine("wpipe-v100")
FOUR_BY_FOUR = of_nodes(replace(NODE, devices=NODE.devices[:4], nics=((0, 1, 2, 3),)), 4)
CONVOLUTIONS = Case(resnext((3, 24, 136, 3)), 1664, 0.19, of_nodes(NODE, 4))
BERT = Case(bert(96), 128, 0.19, FOUR_BY_FOUR)


def test_pipelines_inside_the_nodes_beat_gradients_inside_for_large_activations():
    """Table 3: 607.8 against 497.3 samples/s on twice as many; compressed messages bring some of it back."""
    pipelines = Layout(4, 8, 4)
    gradients = replace(pipelines, placement="data")
    inside, across = CONVOLUTIONS.throughput(pipelines, 2), CONVOLUTIONS.throughput(gradients, 2)
    assert inside > 1.1 * across
    assert inside > replace(CONVOLUTIONS, compressed=True).throughput(gradients, 2) > 1.05 * across


def test_deeper_is_better_for_bert():
    """Section 4.2: its gradients are large and its activations small. The better placement of each depth counts."""
    throughputs = [
        max(BERT.throughput(Layout(depth, 16 // depth, depth, placement), 2) for placement in ("pipeline", "data"))
        for depth in (2, 4, 8)
    ]
    assert throughputs == sorted(throughputs)
    assert throughputs[-1] > 1.05 * throughputs[0]


def test_without_transfers_a_period_takes_the_work_of_the_slowest_device():
    """One node, one pipeline, no bytes: R and the rest of WPipe leave no bubble."""
    case = replace(CONVOLUTIONS, cluster=NODE, batch=64)
    layout = Layout(4, 1, 8)
    costs = case.costs(layout)
    silent = replace(costs, stages=tuple(replace(cost, output_bytes=0) for cost in costs.stages))
    work_s = max(
        sum(8 * (2 * cost.forward_s + cost.backward_s) + cost.step_s for cost in silent.stages[rank::4])
        for rank in range(4)
    )
    assert case.throughput(layout, 2) == pytest.approx(64 / work_s, rel=0.01)
