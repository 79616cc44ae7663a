"""Copies of a token for several experts of one node or GPU, which DeepEP sends once."""

from itertools import product

import pytest

from pipesched.profiles.clusters import Link
from pipesched.profiles.inside_stage.collective_time import collective_s
from pipesched.profiles.inside_stage.operators import Collective

FAST, SLOW = Link(0.0, 1e15), Link(0.0, 50e9)
NUM_BYTES = 2**30


def seconds(num_nodes, copies, num_bytes=NUM_BYTES):
    exchange = Collective("all_to_all", num_bytes, "expert", copies=copies)
    empty = Collective("all_to_all", 0, "expert", copies=copies)
    return collective_s(exchange, 8, num_nodes, FAST, SLOW) - collective_s(empty, 8, num_nodes, FAST, SLOW)


@pytest.mark.parametrize(("num_nodes", "copies"), [(2, 1), (2, 2), (2, 8), (4, 2), (4, 6)])
def test_each_other_node_gets_one_copy_of_a_token(num_nodes, copies):
    # all equally likely choices of the nodes of the copies; the token is on node 0
    choices = list(product(range(num_nodes), repeat=copies))
    sent = sum(len(set(choice) - {0}) for choice in choices) / len(choices)
    assert seconds(num_nodes, copies) == pytest.approx(NUM_BYTES / copies * sent / (0.85 * 50e9))


def test_without_merging_every_copy_for_another_node_is_sent():
    assert seconds(2, 1) == pytest.approx(NUM_BYTES / 2 / (0.85 * 50e9))
