"""The device of a process and the backend of its messages; on GPUs all processes agree on both."""

from __future__ import annotations

import json
import os
import socket
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from pipesched.executor import ExecutionError
from pipesched.executor.launch.meeting import everyones
from pipesched.profiles import Backend, DeviceKind
from pipesched.profiles.processes import num_cores


def ranks_of_processes(rank_to_device: Sequence[int]) -> list[int]:
    """Return the rank that each process runs.

    Torchrun numbers processes machine by machine, as the devices are numbered: so ranks are in order of devices.
    """
    return sorted(range(len(rank_to_device)), key=lambda rank: rank_to_device[rank])


@dataclass(frozen=True, slots=True)
class GpuView:
    """The GPUs that a process sees, as it publishes them.

    Attributes:
        host: Name of its machine.
        local_rank: Number of the process on its machine.
        gpus: The UUID of each GPU, by the index that the process has for it.
        has_nccl: Whether its PyTorch can use NCCL.
    """

    host: str
    local_rank: int
    gpus: tuple[str, ...]
    has_nccl: bool = True


@dataclass(frozen=True, slots=True)
class RankDevice:
    """The device of a process.

    Attributes:
        backend: Backend of the messages between stages: ``gloo`` or ``nccl``.
        num_busy: Devices of its machine that can compute at once, each with a core, or a GPU.
        is_busy: Whether this is the first process of such a device.
    """

    device: torch.device
    backend: str
    num_busy: int
    is_busy: bool


def gpu_places(views: Sequence[GpuView], devices: Sequence[int], backend: Backend) -> list[RankDevice]:
    """Return the place of every process. All processes derive the same places from the same views.

    The devices of processes that see the same GPUs take these in turn, by local rank: index 0 for a process that sees
    one GPU alone, as under SLURM. NCCL needs a GPU for each process; gloo carries messages where several share one.

    Args:
        views: View of each process.
        devices: The device of each process' rank; ranks of one device share its GPU.
        backend: The backend that the run asks for.

    Raises:
        ExecutionError: A process sees no GPU; or NCCL is asked for, and processes share a GPU or one has no NCCL.
    """
    for process, view in enumerate(views):
        if not view.gpus:
            raise ExecutionError(
                f"device cuda: got no GPU for process {process} on {view.host}, expected one for each; try device cpu"
            )
    indices = _indices(views, devices)
    holders: defaultdict[str, list[int]] = defaultdict(list)
    for process, view in enumerate(views):
        holders[view.gpus[indices[process]]].append(process)
    lacking = [process for process, view in enumerate(views) if not view.has_nccl]
    shared = [processes for processes in holders.values() if len(processes) > 1]
    if backend == "nccl" and lacking:
        raise ExecutionError(
            f"backend nccl: got a PyTorch without NCCL in process {lacking[0]}, expected one with NCCL; try backend "
            "gloo"
        )
    if backend == "nccl" and shared:
        raise ExecutionError(_shared_fault(views, shared[0]))
    carrier = "gloo" if backend == "gloo" or lacking or shared else "nccl"
    busy: defaultdict[str, set[str]] = defaultdict(set)
    for process, view in enumerate(views):
        busy[view.host].add(view.gpus[indices[process]])
    return [
        RankDevice(torch.device("cuda", index), carrier, len(busy[view.host]), holders[view.gpus[index]][0] == process)
        for process, (view, index) in enumerate(zip(views, indices, strict=True))
    ]


def _indices(views: Sequence[GpuView], devices: Sequence[int]) -> list[int]:
    """Return the index of the GPU of each process, as the process sees it."""
    alike: defaultdict[tuple[str, tuple[str, ...]], list[int]] = defaultdict(list)
    for process, view in enumerate(views):
        alike[view.host, view.gpus].append(process)
    indices = dict[int, int]()
    for (_, gpus), processes in alike.items():
        processes.sort(key=lambda process: (views[process].local_rank, process))
        turn = list(dict.fromkeys(devices[process] for process in processes))
        indices |= {process: turn.index(devices[process]) % len(gpus) for process in processes}
    return [indices[process] for process in range(len(views))]


def _shared_fault(views: Sequence[GpuView], processes: Sequence[int]) -> str:
    """Return the message that NCCL cannot carry messages of `processes`, which share a GPU."""
    host = views[processes[0]].host
    here = [view for view in views if view.host == host]
    num_gpus = len({gpu for view in here for gpu in view.gpus})
    return (
        f"backend nccl: got processes {' and '.join(map(str, processes[:2]))} on one GPU of {host}, which has "
        f"{num_gpus} for {len(here)} ranks, expected a GPU for each rank; try backend gloo"
    )


@dataclass(frozen=True, slots=True)
class Neighbours:
    """A process among the processes of its machine, as its launcher numbers them.

    Attributes:
        process: Number of the process in the run.
        local_process: Its number on its machine.
        devices: The device of each process' rank, in the run.
        index: Index of the process' device on its machine.
        num_devices: Number of devices on its machine.
    """

    process: int
    local_process: int
    devices: Sequence[int]
    index: int
    num_devices: int

    @staticmethod
    def of(rank_to_device: Sequence[int], process: int) -> Neighbours:
        """Return the neighbours of a process; torchrun leaves the local numbers in the environment.

        The processes of a machine follow each other, as torchrun numbers them.
        """
        devices = sorted(rank_to_device)
        local_process = int(os.environ.get("LOCAL_RANK", process))
        first, size = process - local_process, int(os.environ.get("LOCAL_WORLD_SIZE", len(devices)))
        here = sorted(set(devices[first : first + size]))
        return Neighbours(process, local_process, devices, here.index(devices[process]), len(here))


def placed(device: DeviceKind, backend: Backend, near: Neighbours, store: Store) -> RankDevice:
    """Return the device of a process, and make its GPU the current one; all processes call this together.

    Raises:
        ExecutionError: The device or the backend is not there; in all processes alike.
        PeerLost: Another process did not come.
    """
    if device == "cpu":
        if backend == "nccl":
            raise ExecutionError("backend: got nccl without device cuda, expected both; use gloo on CPUs")
        num_busy = min(near.num_devices, num_cores())
        is_first = near.devices.index(near.devices[near.process]) == near.process
        return RankDevice(torch.device("cpu"), "gloo", num_busy, near.index < num_busy and is_first)
    size = len(near.devices)
    if size > 1 and backend != "gloo":
        # CUDA loads a kernel when it is first launched, for which it may wait until the GPU is idle: so for ever where
        # a kernel of NCCL waits for a message that another rank sends only later
        os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    view = GpuView(socket.gethostname(), near.local_process, _visible_gpus(), dist.is_nccl_available())
    views = [
        GpuView(**(told | {"gpus": tuple(told["gpus"])}))
        for told in map(json.loads, everyones("gpus", json.dumps(asdict(view)), store, near.process, size))
    ]
    place = gpu_places(views, near.devices, backend)[near.process]
    torch.cuda.set_device(place.device)
    return place


def _visible_gpus() -> tuple[str, ...]:
    """Return the UUIDs of the GPUs that this process sees: an index names another GPU in another process."""
    if not torch.cuda.is_available():
        return ()
    return tuple(str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count()))
