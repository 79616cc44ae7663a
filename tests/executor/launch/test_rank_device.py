"""Where processes compute, as they agree over a store; each process is a thread here."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.distributed import HashStore

from pipesched.executor import ExecutionError
from pipesched.executor.launch import rank_device
from pipesched.executor.launch.meeting import everyones
from pipesched.executor.launch.rank_device import Neighbours, placed

HERE = threading.local()
NO_GPU = "device cuda: got no GPU for process 1 on here, expected one for each; try device cpu"


@pytest.fixture(autouse=True)
def chosen(monkeypatch):
    """The devices that the processes have made their current ones."""
    devices = []
    monkeypatch.setattr(rank_device, "_visible_gpus", lambda: HERE.gpus)
    monkeypatch.setattr(rank_device.dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(rank_device.socket, "gethostname", lambda: "here")
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    monkeypatch.setenv("CUDA_MODULE_LOADING", "LAZY")
    return devices


def together(views, backend):
    """Return the device of every process, or its error."""
    store, size = HashStore(), len(views)

    def answer(number):
        HERE.gpus = views[number]
        try:
            return placed("cuda", backend, Neighbours(number, number, range(size), number, size), store)
        except ExecutionError as error:
            return str(error)

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(answer, range(size)))


def test_each_process_computes_on_the_gpu_that_all_have_agreed_on(chosen):
    places = together([("u0", "u1")] * 2, "auto")
    gpus = [torch.device("cuda", 0), torch.device("cuda", 1)]
    assert [(place.device, place.backend) for place in places] == [(gpu, "nccl") for gpu in gpus]
    assert sorted(chosen, key=str) == gpus


def test_a_process_with_a_gpu_of_its_own_uses_gloo_too_where_others_share_one():
    places = together([("u0",), ("u1",), ("u1",)], "auto")
    assert [(place.device.index, place.backend) for place in places] == [(0, "gloo")] * 3


def test_all_processes_are_refused_alike(chosen):
    assert together([("u0",), (), ("u2",)], "auto") == [NO_GPU] * 3
    (told,) = set(together([("u0",)] * 3, "nccl"))
    assert told.startswith("backend nccl: got processes 0 and 1 on one GPU of here, which has 1 for 3 ranks, expected")
    assert chosen == []


def test_kernels_are_loaded_before_one_of_nccl_can_stand_in_their_way(monkeypatch):
    """Unless the user says otherwise, or gloo carries all messages."""
    for backend, loading in [("gloo", None), ("auto", "EAGER"), ("nccl", "EAGER")]:
        monkeypatch.delenv("CUDA_MODULE_LOADING", raising=False)
        together([("u0",), ("u1",)], backend)
        assert os.environ.get("CUDA_MODULE_LOADING") == loading
    monkeypatch.setenv("CUDA_MODULE_LOADING", "LAZY")
    together([("u0",), ("u1",)], "auto")
    assert os.environ["CUDA_MODULE_LOADING"] == "LAZY"


def test_on_cpus_nobody_is_asked_and_nccl_is_refused():
    near = Neighbours(0, 0, [0, 1], 0, 2)
    place = placed("cpu", "auto", near, None)
    assert (place.device, place.backend, place.is_busy) == (torch.device("cpu"), "gloo", True)
    with pytest.raises(ExecutionError, match="backend: got nccl without device cuda, expected both; use gloo on CPUs"):
        placed("cpu", "nccl", near, None)


@pytest.mark.parametrize(("devices", "variables", "expected"), [
    ((0, 1, 2, 3), {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, (3, 1, 1, 2)),
    ((0, 1, 2, 3), {}, (3, 3, 3, 4)),
    ((0, 1, 0, 1), {}, (3, 3, 1, 2)),  # two pipelines
])  # fmt: skip
def test_neighbours_are_numbered_as_the_launcher_says(devices, variables, expected, monkeypatch):
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    near = Neighbours.of(devices, 3)
    assert (near.process, near.local_process, near.index, near.num_devices) == expected


def test_texts_of_all_processes_come_to_each():
    store = HashStore()
    with ThreadPoolExecutor(3) as threads:
        texts = list(threads.map(lambda number: everyones("gpus", f"text {number}", store, number, 3), range(3)))
    assert texts == [["text 0", "text 1", "text 2"]] * 3
