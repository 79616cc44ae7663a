"""The devices of the ranks that one process runs, and a stream for each rank."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import torch

from pipesched.executor.core import CudaStreams, HostStreams, RankStreams, green_streams
from pipesched.profiles import DeviceKind

_ENVIRONMENT = {
    # hardware queues per process, CUDA's maximum; with its default of 8 streams share queues, and an op may stand
    # behind the wait of another rank
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    # one lasting cuBLAS workspace per stream; else some products allocate one, which counts in the memory of their op
    "TORCH_CUBLASLT_UNIFIED_WORKSPACE": "1",
}
"""Environment variables that CUDA and PyTorch read when CUDA starts; values that the user has set stay."""


def prepare_cuda() -> None:
    """Set the variables that streams need; call this before CUDA starts."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def devices_of(rank_to_device: Sequence[int], kind: DeviceKind) -> list[torch.device]:
    """Return the device of each rank: GPUs in the order of the schedule's devices, which share them if they are more.

    Args:
        rank_to_device: Device of each rank in the schedule.
        kind: ``cpu`` or ``cuda``.
    """
    if kind == "cpu":
        return [torch.device("cpu")] * len(rank_to_device)
    number = {device: index for index, device in enumerate(sorted(set(rank_to_device)))}
    return [torch.device("cuda", number[device] % torch.cuda.device_count()) for device in rank_to_device]


def make_streams(devices: Sequence[torch.device], *, are_green: bool = False) -> dict[int, RankStreams]:
    """Return the streams of each rank, given its device.

    Args:
        devices: Device of each rank.
        are_green: Whether the ranks of a GPU get multiprocessors of their own, in equal shares.

    Raises:
        ExecutionError: The driver knows no green contexts, or a GPU has too few multiprocessors.
    """
    if any(device.type == "cuda" for device in devices):
        prepare_cuda()
    shares = {device: iter(green_streams(device, devices.count(device))) for device in set(devices) if are_green}
    return {
        rank: CudaStreams(device, next(shares[device]) if are_green else None)
        if device.type == "cuda"
        else HostStreams()
        for rank, device in enumerate(devices)
    }


def synchronize(devices: Iterable[torch.device]) -> None:
    """Block the host until all GPUs among `devices` are idle."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
