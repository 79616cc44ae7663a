"""Affinity: the rank that a process runs, its device on this machine, and the backend of its messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from pipesched.executor import ExecutionError
from pipesched.profiles import Backend


def ranks_of_processes(rank_to_device: Sequence[int]) -> list[int]:
    """Return the rank that each process runs.

    Torchrun numbers processes machine by machine, and so are devices numbered: the ranks follow their devices.
    """
    return sorted(range(len(rank_to_device)), key=lambda rank: rank_to_device[rank])


def local_device(rank_to_device: Sequence[int], rank: int, local_rank: int, num_local_ranks: int) -> tuple[int, int]:
    """Return the number of `rank`'s device among this machine's devices, from 0, and their count.

    The ranks of a machine follow each other, as torchrun numbers them.
    """
    first = rank - local_rank
    devices = sorted(set(rank_to_device[first : first + num_local_ranks]))
    return devices.index(rank_to_device[rank]), len(devices)


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
class GpuPlace:
    """The GPU of a process and the backend of its messages.

    Attributes:
        index: Index of the GPU, as the process sees it.
        backend: ``gloo`` or ``nccl``, the same for all processes.
        num_busy: Number of GPUs of its machine that processes compute on.
        is_busy: Whether the process is the first on its GPU.
    """

    index: int
    backend: str
    num_busy: int
    is_busy: bool


def gpu_places(views: Sequence[GpuView], devices: Sequence[int], backend: Backend) -> list[GpuPlace]:
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
        raise ExecutionError(f"backend nccl: got a PyTorch without NCCL in process {lacking[0]}; try backend gloo")
    if backend == "nccl" and shared:
        raise ExecutionError(_shared_fault(views, shared[0]))
    carrier = "gloo" if backend == "gloo" or lacking or shared else "nccl"
    busy: defaultdict[str, set[str]] = defaultdict(set)
    for process, view in enumerate(views):
        busy[view.host].add(view.gpus[indices[process]])
    return [
        GpuPlace(index, carrier, len(busy[view.host]), holders[view.gpus[index]][0] == process)
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
