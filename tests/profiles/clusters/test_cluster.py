import json
from dataclasses import replace

import pytest

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import (
    Cluster,
    Device,
    Gpu,
    Link,
    dealt,
    flat,
    of_nodes,
    with_slow_device,
    with_slow_link,
)
from pipesched.profiles.io import cluster_text, gpu_names, load_gpu, load_machine, machine_names, read_cluster

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


GPUS = [load_gpu(name) for name in gpu_names()]


@pytest.mark.parametrize("gpu", [gpu for gpu in GPUS if gpu.machine is not None], ids=lambda gpu: gpu.name)
def test_the_usual_node_of_a_gpu_has_its_memory_and_links(gpu):
    node = load_machine(gpu.machine)
    assert node.nics
    assert node.intra.bandwidth_bytes_per_s == gpu.link_bandwidth_bytes_per_s or gpu.name == "a10"
    same = {device.memory_bytes for device in node.devices} == {gpu.memory_bytes}
    assert same == (gpu.name not in ("a10", "v100"))  # the cloud has A10G, and V100 of 16 GB


@pytest.mark.parametrize(("machine", "count"), [("dgx-h100", 8), ("dgx-b200", 8), ("gb200-nvl72", 72)])
def test_a_machine_has_an_interface_for_each_gpu(machine, count):
    assert load_machine(machine).nics == tuple((device,) for device in range(count))


def test_an_unknown_machine_is_refused_with_those_there_are():
    with pytest.raises(ProfileError, match=r"expected one of aws-g5.48xlarge, aws-p3.16xlarge, dgx-a100, "):
        load_machine("../../etc/passwd")


def test_a_machine_and_a_gpu_are_read_from_files_too(tmp_path):
    (tmp_path / "mine.json").write_text(cluster_text(load_machine("dgx-a100"), "mine"))
    assert load_machine(tmp_path / "mine.json") == load_machine("dgx-a100")
    two = of_nodes(load_machine("dgx-a100"), 2)
    (tmp_path / "two.json").write_text(cluster_text(two, "two"))
    with pytest.raises(ProfileError, match=r"two.json: got 2 nodes, expected one"):
        load_machine(str(tmp_path / "two.json"))
    figures = {
        "memory_bytes": 8,
        "flops_per_s": {"float32": 2.0},
        "memory_bandwidth_bytes_per_s": 3.0,
        "link_bandwidth_bytes_per_s": 4.0,
        "efficiency": 0.5,
    }
    (tmp_path / "tiny.json").write_text(json.dumps(figures))
    assert load_gpu(tmp_path / "tiny.json") == Gpu("tiny", 8, {"float32": 2.0}, 3.0, 4.0, 0.5, "")
    for key, value in {"efficiency": 2, "flops_per_s": {}, "memory_bytes": 0, "cores": 1}.items():
        (tmp_path / "bad.json").write_text(json.dumps(figures | {key: value}))
        with pytest.raises(ProfileError, match=rf"bad.json: {key}: got "):
            load_gpu(str(tmp_path / "bad.json"))
    with pytest.raises(ProfileError, match=r"gpu: got 'h999', expected one of .* or a file"):
        load_gpu("h999")


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


HANDED = Link(1e-3, 1e9, send_s=1e-4, send_s_per_byte=1e-10, post_s=5e-5, receive_s=6e-5, receive_s_per_byte=2e-10)


def test_a_file_that_says_nothing_of_handing_over_costs_the_ranks_nothing():
    text = cluster_text(of_nodes(NODE, 2), "F")
    assert not {"send_s", "receive_s", "op_s"} & set(json.dumps(json.loads(text)).replace('"', " ").split())
    assert not read_cluster(text, "F").has_hand_over


def test_a_message_keeps_both_ranks_for_a_constant_and_for_its_bytes():
    assert flat(2, HANDED).has_hand_over
    assert HANDED.sending_s(10**6) == pytest.approx(2e-4)
    assert HANDED.receiving_s(10**6) == pytest.approx(2.6e-4)


def test_a_slow_link_leaves_the_ranks_as_quick_as_they_are():
    slow = with_slow_link(flat(2, HANDED), 0, 1, 2.0).link(0, 1)
    assert slow == replace(HANDED, latency_s=2e-3, bandwidth_bytes_per_s=5e8)


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
