"""The device of a process and the backend of its messages; on GPUs all processes agree on both."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from pipesched.executor import ExecutionError
from pipesched.executor.launch.affinity import GpuView, gpu_places, local_device
from pipesched.executor.launch.agreement import everyones
from pipesched.profiles import Backend, DeviceKind
from pipesched.profiles.processes import num_cores


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
        """Return the neighbours of a process; torchrun leaves the local numbers in the environment."""
        devices = sorted(rank_to_device)
        local_process = int(os.environ.get("LOCAL_RANK", process))
        num_local_processes = int(os.environ.get("LOCAL_WORLD_SIZE", len(devices)))
        here = local_device(devices, process, local_process, num_local_processes)
        return Neighbours(process, local_process, devices, *here)


def placed(device: DeviceKind, backend: Backend, near: Neighbours, store: Store) -> RankDevice:
    """Return the device of a process, and make its GPU the current one; all processes call this together.

    Raises:
        ExecutionError: The device or the backend is not there; in all processes alike.
        PeerLost: Another process did not come.
    """
    if device == "cpu":
        if backend == "nccl":
            raise ExecutionError("backend nccl needs device cuda; use gloo on CPUs")
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
    gpu = torch.device("cuda", place.index)
    torch.cuda.set_device(gpu)
    return RankDevice(gpu, place.backend, place.num_busy, place.is_busy)


def _visible_gpus() -> tuple[str, ...]:
    """Return the UUIDs of the GPUs that this process sees: an index names another GPU in another process."""
    if not torch.cuda.is_available():
        return ()
    return tuple(str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count()))
