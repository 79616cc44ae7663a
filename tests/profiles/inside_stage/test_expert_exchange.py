"""Exchanges of experts: copies of a token that DeepEP sends once; exchanges beside computation."""

from itertools import product

import pytest

from pipesched.profiles.clusters import Link
from pipesched.profiles.costs import LayerSharding
from pipesched.profiles.inside_stage import Fabric, estimated_profile
from pipesched.profiles.inside_stage.collective_time import collective_s
from pipesched.profiles.inside_stage.fabric import GpuGroup
from pipesched.profiles.inside_stage.operators import Collective
from pipesched.profiles.io import load_gpu, model_shape

FAST, SLOW = Link(0.0, 1e15), Link(0.0, 50e9)
NUM_BYTES = 2**30


def seconds(num_nodes, copies, num_bytes=NUM_BYTES):
    exchange = Collective("all_to_all", num_bytes, "expert", copies=copies)
    empty = Collective("all_to_all", 0, "expert", copies=copies)
    group = GpuGroup(8, num_nodes, SLOW)
    return collective_s(exchange, group, FAST) - collective_s(empty, group, FAST)


@pytest.mark.parametrize(("num_nodes", "copies"), [(2, 1), (2, 2), (2, 8), (4, 2), (4, 6)])
def test_each_other_node_gets_one_copy_of_a_token(num_nodes, copies):
    # all equally likely choices of the nodes of the copies; the token is on node 0
    choices = list(product(range(num_nodes), repeat=copies))
    sent = sum(len(set(choice) - {0}) for choice in choices) / len(choices)
    assert seconds(num_nodes, copies) == pytest.approx(NUM_BYTES / copies * sent / (0.85 * 50e9))


def test_without_merging_every_copy_for_another_node_is_sent():
    assert seconds(2, 1) == pytest.approx(NUM_BYTES / 2 / (0.85 * 50e9))


def test_an_exchange_of_experts_beside_another_micro_batch_takes_the_longer_of_both():
    shape, gpu = model_shape("mixtral-8x7b"), load_gpu("h100")
    node = Fabric(8, Link(5e-6, 900e9), Link(1e-5, 50e9))

    def forward_s(**software):
        split = LayerSharding(expert=8, data=8, has_graphs=True, **software)
        return estimated_profile(shape, split, gpu, node, [1]).cost_of_layers(1, 2).forward_s

    tokens_bytes = 2 * shape.sequence * shape.experts.topk * shape.hidden
    exchanges_s = 2 * collective_s(
        Collective("all_to_all", tokens_bytes, "expert"), GpuGroup(8, 1, node.inter), node.intra
    )
    kernels_s = forward_s() - exchanges_s
    assert forward_s(hides_experts=True) == pytest.approx(max(kernels_s, exchanges_s))
    assert exchanges_s < kernels_s
