import json
from dataclasses import replace

import pytest

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Cluster, Device, Link, dealt, flat, of_nodes, with_slow_device, with_slow_link
from pipesched.profiles.io import cluster_text, load_machine, machine_names, read_cluster

INSIDE, BETWEEN, ODD = Link(1e-6, 1e11), Link(1e-5, 1e9), Link(1e-3, 1.0)
NODE = Cluster((Device(), Device(speed=2.0)), INSIDE, BETWEEN, links=((0, 1, ODD),), nics=((0, 1),))


def test_nodes_are_copies_numbered_one_after_the_other():
    cluster = of_nodes(NODE, 3)
    assert [device.node for device in cluster.devices] == [0, 0, 1, 1, 2, 2]
    assert [device.speed for device in cluster.devices] == [1.0, 2.0] * 3
    assert cluster.link(2, 3) == ODD
    assert cluster.link(3, 2) == INSIDE
    assert cluster.link(1, 2) == BETWEEN
    assert cluster.nics == ((0, 1), (2, 3), (4, 5))


def test_a_message_between_nodes_goes_through_the_nics_at_its_ends():
    cluster = of_nodes(NODE, 3)
    assert cluster.nics_between(1, 4) == (0, 2)
    assert cluster.nics_between(4, 5) == (None, None)
    assert replace(cluster, nics=((4, 5),)).nics_between(1, 4) == (None, 0)


@pytest.mark.parametrize(
    ("num_devices", "num_nics", "nics"),
    [
        (4, 1, ((0, 1, 2, 3),)),
        (4, 2, ((0, 1), (2, 3))),
        (3, 2, ((0,), (1, 2))),
        (2, 4, ((0,), (1,))),
        (1, 1, ((0,),)),
    ],
)
def test_devices_are_dealt_out_to_nics_as_evenly_as_can_be(num_devices, num_nics, nics):
    assert dealt(num_devices, num_nics) == nics


def test_nics_survive_json():
    cluster = of_nodes(NODE, 2)
    assert read_cluster(cluster_text(cluster, "F"), "F") == cluster


@pytest.mark.parametrize(
    ("nics", "said"),
    [
        ([[0, 9]], "nics.0: got devices [0, 9], expected some of 0 to 3"),
        ([[]], "nics.0: got devices []"),
        ([[0, 2]], "nics.0: got devices of several nodes"),
        ([[0], [1, 0]], "nics.1: got a device again"),
        ([[1, 1]], "nics.0: got a device again"),
        ([[-1]], "nics.0.0: got -1"),
    ],
)
def test_nics_that_cannot_be_are_refused_in_one_line(nics, said):
    fields = json.loads(cluster_text(of_nodes(NODE, 2), "F"))
    with pytest.raises(ProfileError) as caught:
        read_cluster(json.dumps({**fields, "nics": nics}), "F")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", machine_names())
def test_a_machine_is_one_node_with_the_source_of_its_numbers(name):
    node = load_machine(name)
    assert {device.node for device in node.devices} == {0}
    assert all(device.memory_bytes is not None for device in node.devices)
    assert node.inter is not None
    assert node.inter.bandwidth_bytes_per_s < node.intra.bandwidth_bytes_per_s
    assert any(source in node.origin for source in (".com/", ".cn/", "ICLR"))


def test_wpipes_machine_has_the_figures_of_its_paper():
    """25 Gb/s between machines, 300 GB/s inside, 96 times as much; eight devices of 16 GB."""
    node = load_machine("wpipe-v100")
    assert node.inter is not None
    assert node.intra.bandwidth_bytes_per_s / node.inter.bandwidth_bytes_per_s == 96
    assert [device.memory_bytes for device in node.devices] == [16_000_000_000] * 8
    assert node.nics == (tuple(range(8)),)


def test_an_unknown_machine_is_refused_with_those_there_are():
    with pytest.raises(ProfileError, match=r"expected one of aws-g5.48xlarge, aws-p3.16xlarge, dgx-a100, "):
        load_machine("../../etc/passwd")


def test_without_nics_nothing_is_shared():
    assert flat(3).nics_between(0, 2) == (None, None)


def test_a_straggler_is_slower_by_its_factor_and_a_slow_link_both_ways():
    cluster = with_slow_link(with_slow_device(NODE, 1, 4.0), 1, 0, 2.0)
    assert [device.speed for device in cluster.devices] == [1.0, 0.5]
    assert cluster.link(0, 1) == Link(2e-3, 0.5)
    assert cluster.link(1, 0) == Link(2e-6, 5e10)
    twice = with_slow_link(flat(3, Link(1.0, 8.0)), 0, 1, 2.0)
    twice = with_slow_link(twice, 0, 1, 2.0)
    assert (twice.link(1, 0), twice.link(0, 2)) == (Link(4.0, 2.0), Link(1.0, 8.0))


def test_the_list_of_links_and_nics_is_gone_through_once_however_many_links_are_asked_for():
    class Watched(tuple):
        walks = 0

        def __iter__(self):
            Watched.walks += 1
            return super().__iter__()

        def __reversed__(self):
            Watched.walks += 1
            return iter(self[::-1])

    slow, slower = Link(1.0), Link(2.0)
    cluster = replace(flat(3), links=Watched([(0, 1, slow), (1, 2, slow), (0, 1, slower)]))
    assert [cluster.link(0, 1) for _ in range(9)] == [slow] * 9
    assert cluster.link(1, 0) == Link()
    assert Watched.walks == 1
