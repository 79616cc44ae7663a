"""Reductions on real links, worked out by hand."""

from dataclasses import replace

import pytest

from pipesched.profiles.clusters import Link, flat, of_nodes
from pipesched.profiles.clusters.reduction_time import all_reduce, possible_hops, ring_hops
from tests.strategies import node_of_two

NODE = node_of_two(Link(0.25, 20.0))
TWO_LATENT_NODES = of_nodes(NODE, 2)


def test_a_ring_takes_the_slowest_of_its_own_hops_in_every_round():
    # Three devices: 4 rounds of a third of 60 bytes; from 1 to 2 at 10 bytes/s and 0.5 s. The ring never goes 2 -> 1.
    links = ((1, 2, Link(0.5, 10.0)), (2, 1, Link(9.0, 1.0)))
    plan = all_reduce(60, (0, 1, 2), replace(flat(3), links=links))
    assert (plan.way, plan.seconds, plan.occupied_s) == ("ring", 4 * (2.0 + 0.5), 4 * 2.0)
    assert plan.hops == ((0, 1), (1, 2), (2, 0))


def test_bytes_and_latency_may_be_slowest_on_different_hops():
    # 40 bytes: 20 a round. 0 -> 1 takes 2 + 0.5, 1 -> 0 takes 0.5 + 1: two rounds of 2.5, in which bytes flow for 2.
    links = ((0, 1, Link(0.5, 10.0)), (1, 0, Link(1.0, 40.0)))
    plan = all_reduce(40, (0, 1), replace(flat(2), links=links))
    assert (plan.seconds, plan.occupied_s) == (5.0, 4.0)


def test_one_replica_has_nothing_to_sum():
    plan = all_reduce(60, (3,), flat(4, Link(1.0)))
    assert (plan.seconds, plan.hops, plan.occupied_s) == (0.0, (), 0.0)


def test_the_order_of_the_ring_decides_how_often_it_crosses():
    """40 bytes over 4: 10 a round, 1 s between nodes. Zigzag two hops share each NIC."""
    lone = of_nodes(replace(NODE, intra=Link(9.0)), 2)  # so that the way through the node is not worth it
    along, zigzag = all_reduce(40, (0, 1, 2, 3), lone), all_reduce(40, (0, 2, 1, 3), lone)
    assert (along.way, along.seconds) == ("hierarchical", 9.0 + 2 * 2.5 + 9.0)
    assert (zigzag.way, zigzag.seconds) == ("ring", 6 * (2 * 1.0 + 0.5))


def test_replicas_two_by_two_on_two_nodes_are_summed_inside_first():
    """40 bytes. Inside: 20 at 20 bytes/s and 0.25 s. Across: two rings at once, each with 10 bytes through one NIC."""
    plan = all_reduce(40, (0, 1, 2, 3), TWO_LATENT_NODES)
    assert (plan.way, plan.seconds) == ("hierarchical", 1.25 + 2 * (2 * 1.0 + 0.5) + 1.25)
    assert plan.until_s() == {
        **dict.fromkeys(ring_hops((0, 1)) + ring_hops((2, 3)), 1.25 + 5.0 + 1.0),
        **dict.fromkeys(ring_hops((0, 2)) + ring_hops((1, 3)), 1.25 + 2 * 2.0),
    }
    # with a NIC for each device the two rings do not share
    assert all_reduce(40, (0, 1, 2, 3), replace(TWO_LATENT_NODES, nics=())).seconds == 1.25 + 2 * 1.5 + 1.25


def test_the_ring_is_taken_where_it_is_quicker():
    """As slow inside as between, and no latency: 6 rounds of 1 s against 2 + 2 * 2 + 2."""
    slow = of_nodes(replace(NODE, intra=Link(0.0, 10.0), inter=Link(0.0, 10.0)), 2)
    plan = all_reduce(40, (0, 1, 2, 3), slow)
    assert (plan.way, plan.seconds) == ("ring", 6.0)


@pytest.mark.parametrize("devices", [(0, 1), (0, 2), (0, 1, 2)])
def test_there_is_but_the_ring_inside_a_node_alone_on_nodes_and_unevenly_on_them(devices):
    assert all_reduce(40, devices, TWO_LATENT_NODES).way == "ring"
    assert set(possible_hops(devices, TWO_LATENT_NODES)) == set(ring_hops(devices))
