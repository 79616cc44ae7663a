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


def lone(host, *seen):
    """Processes of a node that each see other GPUs."""
    return [GpuView(host, number, gpus) for number, gpus in enumerate(seen)]


PLACES = {
    # views, devices by process, backend asked for: index of the GPU, backend, busy ranks of the node by process
    "a GPU of its node by its local number": (
        node("a", 2, ["a0", "a1"]) + node("b", 2, ["b0", "b1"]), range(4), "auto", [0, 1, 0, 1], "nccl", [2, 2, 2, 2],
    ),
    "local ranks that are numbered otherwise": (
        [GpuView("a", local, ("a0", "a1", "a2")) for local in (2, 0, 1)], range(3), "nccl", [2, 0, 1], "nccl", [3] * 3,
    ),
    "SLURM with a GPU per task": (
        lone("a", ("a0",), ("a1",), ("a2",), ("a3",)), range(4), "auto", [0] * 4, "nccl", [4] * 4,
    ),
    "two other GPUs for each process": (
        lone("a", ("a0", "a1"), ("a2", "a3")), range(2), "auto", [0, 0], "nccl", [2, 2],
    ),
    "nodes of unequal numbers, each with enough": (
        node("a", 3, ["a0", "a1", "a2", "a3"]) + node("b", 1, ["b0"]), range(4), "nccl", [0, 1, 2, 0], "nccl",
        [3, 3, 3, 1],
    ),
    # chosen by each node for itself, the first would take NCCL, and the ranks would never meet
    "one node with too few": (
        node("a", 2, ["a0", "a1"]) + node("b", 2, ["b0"]), range(4), "auto", [0, 1, 0, 0], "gloo", [2, 2, 1, 1],
    ),
    "four ranks in turn on three GPUs": (
        node("a", 4, ["a0", "a1", "a2"]), range(4), "auto", [0, 1, 2, 0], "gloo", [3] * 4,
    ),
    # two pipelines of two stages that are averaged
    "ranks of one device": (
        node("a", 4, ["a0", "a1", "a2", "a3"]), [0, 0, 1, 1], "auto", [0, 0, 1, 1], "gloo", [2] * 4,
    ),
    "a process without NCCL": (
        node("a", 1, ["a0"]) + node("b", 1, ["b0"], has_nccl=False), range(2), "auto", [0, 0], "gloo", [1, 1],
    ),
    "gloo that was asked for": (node("a", 2, ["a0", "a1"]), range(2), "gloo", [0, 1], "gloo", [2, 2]),
}  # fmt: skip


@pytest.mark.parametrize("case", PLACES)
def test_processes_agree_on_the_gpu_of_each_and_on_the_backend(case):
    views, devices, asked, indices, backend, num_busy = PLACES[case]
    places = gpu_places(views, devices, asked)
    assert [place.device.index for place in places] == indices
    assert {place.backend for place in places} == {backend}
    assert [place.num_busy for place in places] == num_busy


def test_hosts_of_one_name_are_told_apart_by_their_gpus():
    """Containers often share a name, and a local rank."""
    places = gpu_places(node("worker", 1, ["a0"]) + node("worker", 1, ["b0"]), range(2), "auto")
    assert [(place.device.index, place.backend) for place in places] == [(0, "nccl")] * 2


def test_one_rank_of_a_gpu_measures_its_speed():
    views = node("a", 2, ["a0", "a1"]) + node("b", 2, ["b0"])
    assert [place.is_busy for place in gpu_places(views, range(4), "auto")] == [True, True, True, False]
    views = node("a", 4, ["a0", "a1", "a2", "a3"])
    assert [place.is_busy for place in gpu_places(views, [0, 0, 1, 1], "auto")] == [True, False, True, False]


@pytest.mark.parametrize(
    ("case", "told"),
    [
        (
            "one node with too few",
            "backend nccl: got processes 2 and 3 on one GPU of b, which has 1 for 2 ranks, expected a GPU for each "
            "rank; try backend gloo",
        ),
        ("four ranks in turn on three GPUs", "got processes 0 and 3 on one GPU of a, which has 3 for 4 ranks"),
        ("ranks of one device", "backend nccl: got processes 0 and 1 on one GPU of a, which has 4 for 4 ranks"),
        ("a process without NCCL", "got a PyTorch without NCCL in process 1, expected one with NCCL; try backend gloo"),
    ],
)
def test_nccl_is_refused_where_ranks_share_a_gpu_or_one_has_none(case, told):
    views, devices, *_ = PLACES[case]
    with pytest.raises(ExecutionError) as refused:
        gpu_places(views, devices, "nccl")
    assert told in str(refused.value)


@pytest.mark.parametrize("backend", ["auto", "gloo", "nccl"])
def test_a_node_without_a_gpu_is_refused_whatever_carries_the_messages(backend):
    with pytest.raises(ExecutionError) as refused:
        gpu_places(node("a", 1, ["a0"]) + node("b", 1, []), range(2), backend)
    assert str(refused.value) == "device cuda: got no GPU for process 1 on b, expected one for each; try device cpu"
