"""Which cores, or which GPU, a rank runs on."""

import os

import pytest

from pipesched.executor import ExecutionError
from pipesched.executor.launch.rank_device import GpuView, gpu_places
from pipesched.profiles.processes import pin


@pytest.fixture
def _all_cores():
    before = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
@pytest.mark.usefixtures("_all_cores")
def test_a_device_is_as_many_cores_as_a_rank_has_threads():
    cores = sorted(os.sched_getaffinity(0))
    last = len(cores) - 1
    assert pin(0, len(cores) + 1, 1) == tuple(cores)  # not enough: everybody may run everywhere
    assert pin(last, len(cores), 1) == (cores[last],) == tuple(os.sched_getaffinity(0))


def node(host, num_processes, gpus, **given):
    """The processes of a node that all see the same GPUs."""
    return [GpuView(host, number, tuple(gpus), **given) for number in range(num_processes)]


def indices(places):
    return [place.device.index for place in places]


def test_each_rank_gets_a_gpu_of_its_node_by_its_local_number_and_nccl():
    views = node("a", 2, ["a0", "a1"]) + node("b", 2, ["b0", "b1"])
    places = gpu_places(views, range(4), "auto")
    assert indices(places) == [0, 1, 0, 1]  # and not 2 and 3
    assert {(place.backend, place.num_busy, place.is_busy) for place in places} == {("nccl", 2, True)}


def test_the_local_rank_selects_the_gpu_where_processes_are_numbered_otherwise():
    gpus = ("a0", "a1", "a2")
    views = [GpuView("a", local_rank, gpus) for local_rank in (2, 0, 1)]
    assert indices(gpu_places(views, range(3), "nccl")) == [2, 0, 1]


def test_one_visible_gpu_per_process_is_index_0_and_nccl():
    """SLURM with a GPU per task: each process sees its own alone."""
    views = [GpuView("a", number, (f"a{number}",)) for number in range(4)]
    places = gpu_places(views, range(4), "auto")
    assert indices(places) == [0] * 4
    assert {(place.backend, place.num_busy, place.is_busy) for place in places} == {("nccl", 4, True)}


def test_processes_that_each_see_two_other_gpus_take_the_first():
    views = [GpuView("a", number, (f"a{2 * number}", f"a{2 * number + 1}")) for number in range(2)]
    places = gpu_places(views, range(2), "auto")
    assert indices(places) == [0, 0]
    assert {place.backend for place in places} == {"nccl"}


def test_nodes_may_have_unequal_numbers_of_gpus_if_each_has_enough():
    places = gpu_places(node("a", 3, ["a0", "a1", "a2", "a3"]) + node("b", 1, ["b0"]), range(4), "nccl")
    assert indices(places) == [0, 1, 2, 0]
    assert [place.num_busy for place in places] == [3, 3, 3, 1]


def test_all_processes_use_gloo_if_one_node_has_too_few_gpus():
    """Chosen by each node for itself, the first would take NCCL, and the ranks would never meet."""
    views = node("a", 2, ["a0", "a1"]) + node("b", 2, ["b0"])
    places = gpu_places(views, range(4), "auto")
    assert indices(places) == [0, 1, 0, 0]
    assert [place.backend for place in places] == ["gloo"] * 4
    assert [place.is_busy for place in places] == [True, True, True, False]
    with pytest.raises(ExecutionError) as refused:
        gpu_places(views, range(4), "nccl")
    assert str(refused.value) == (
        "backend nccl: got processes 2 and 3 on one GPU of b, which has 1 for 2 ranks, expected a GPU for each rank; "
        "try backend gloo"
    )


@pytest.mark.parametrize(("num_gpus", "expected"), [(1, [0, 0, 0, 0]), (2, [0, 1, 0, 1]), (3, [0, 1, 2, 0])])
def test_more_ranks_than_gpus_take_them_in_turn_over_gloo(num_gpus, expected):
    views = node("a", 4, [f"a{number}" for number in range(num_gpus)])
    places = gpu_places(views, range(4), "auto")
    assert indices(places) == expected
    assert {(place.backend, place.num_busy) for place in places} == {("gloo", num_gpus)}
    with pytest.raises(ExecutionError, match=rf"processes 0 and \d on one GPU of a, which has {num_gpus} for 4 ranks"):
        gpu_places(views, range(4), "nccl")


def test_ranks_of_one_device_share_its_gpu_and_gloo_carries_their_messages():
    """Two pipelines of two stages that are averaged: devices 0, 0, 1, 1, by process."""
    views = node("a", 4, ["a0", "a1", "a2", "a3"])
    places = gpu_places(views, [0, 0, 1, 1], "auto")
    assert indices(places) == [0, 0, 1, 1]
    assert [(place.backend, place.num_busy, place.is_busy) for place in places] == [
        ("gloo", 2, True), ("gloo", 2, False), ("gloo", 2, True), ("gloo", 2, False)
    ]  # fmt: skip
    with pytest.raises(ExecutionError, match="backend nccl: got processes 0 and 1 on one GPU of a, which has 4 for 4"):
        gpu_places(views, [0, 0, 1, 1], "nccl")


@pytest.mark.parametrize("backend", ["auto", "gloo", "nccl"])
def test_a_node_without_a_gpu_is_refused_whatever_carries_the_messages(backend):
    with pytest.raises(ExecutionError) as refused:
        gpu_places(node("a", 1, ["a0"]) + node("b", 1, []), range(2), backend)
    assert str(refused.value) == "device cuda: got no GPU for process 1 on b, expected one for each; try device cpu"


def test_gloo_is_used_if_asked_for_and_where_a_process_has_no_nccl():
    views = node("a", 1, ["a0"]) + node("b", 1, ["b0"], has_nccl=False)
    assert [place.backend for place in gpu_places(views, range(2), "auto")] == ["gloo", "gloo"]
    assert [place.backend for place in gpu_places(node("a", 2, ["a0", "a1"]), range(2), "gloo")] == ["gloo", "gloo"]
    with pytest.raises(ExecutionError, match="got a PyTorch without NCCL in process 1; try backend gloo"):
        gpu_places(views, range(2), "nccl")


def test_hosts_of_one_name_are_told_apart_by_their_gpus():
    """Containers often share a name, and a local rank."""
    views = node("worker", 1, ["a0"]) + node("worker", 1, ["b0"])
    places = gpu_places(views, range(2), "auto")
    assert indices(places) == [0, 0]
    assert {place.backend for place in places} == {"nccl"}
