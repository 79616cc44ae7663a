"""The local runner: all ranks take turns in one process, on a CPU or each on a stream of a GPU."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from pipesched.executor import Averaging, ExecutionError
from pipesched.executor.core import (
    Batch,
    CudaStreams,
    HostClock,
    HostStreams,
    ModuleStage,
    Rank,
    RankStreams,
    Recorder,
    Stage,
    Transport,
    Waiting,
    attach_averagers,
    averaged,
    averagers,
    begin,
    end,
    execute_rank,
    green_streams,
    lists_of,
    local_pools,
)
from pipesched.executor.transport import LocalTransport, Mailroom
from pipesched.profiles import DeviceKind
from pipesched.schedules import Schedule

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
    """Return the device of each rank. The schedule's devices take the GPUs in turn, so they share if GPUs are fewer.

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


_OVER = object()
"""Returned by `next` at the end of an op list."""


def local_ranks(
    schedule: Schedule,
    build: Callable[[int], Mapping[int, Stage]],
    averaging: Averaging = "asynchronous",
    transport: Callable[[int, Mailroom], Transport] = LocalTransport,
    *,
    streams: Mapping[int, RankStreams] | None = None,
    recorder: Callable[[int], Recorder] = lambda rank: Recorder(HostClock(), keeps=False),  # noqa: ARG005
) -> tuple[Rank, ...]:
    """Return all ranks of `schedule` in this process, without recorded times, so that a run may have any length.

    Args:
        schedule: Lowered if its lists are in memory.
        build: Makes the stages of a rank.
        averaging: How averaged stages are averaged.
        transport: Makes the transport of a rank, given the mailroom that all share.
        streams: Streams of each rank; None on CPUs.
        recorder: Makes the recorder of a rank (default: keeps no times of ops).

    Raises:
        ExecutionError: A stage is averaged on several devices.
    """
    stages = {rank: build(rank) for rank in range(schedule.num_ranks)}
    streams = {rank: HostStreams() for rank in range(schedule.num_ranks)} if streams is None else streams
    for stage, ranks in averagers(schedule).items():
        first = stages[ranks[0]][stage]
        if isinstance(first, ModuleStage):  # emulated ones have no weights, and no reference
            device = first.parameters[0].device if first.parameters else None
            for rank, pool in local_pools(averaged(stage, ranks, first.parameters), device, streams).items():
                attach_averagers(pool, stages[rank], rank, averaging)
    room = Mailroom(schedule.summands, streams)
    lists = lists_of(schedule, range(schedule.num_ranks))
    return tuple(
        Rank(
            rank,
            lists[rank],
            schedule.num_stages,
            stages[rank],
            transport(rank, room),
            recorder(rank),
            streams=streams[rank],
        )
        for rank in range(schedule.num_ranks)
    )


def run_local(
    ranks: Sequence[Rank],
    batch: Batch | Mapping[int, Batch],
    on_launched: Callable[[], None] = lambda: None,
) -> float:
    """Run every rank's list once; at its turn a rank runs until it waits, on a GPU for one computation.

    Args:
        batch: The data of the run; by rank if ranks are on several devices.
        on_launched: Called when all ops are launched; a GPU may be far behind.

    Returns:
        The time to launch all ops [s].

    Raises:
        ExecutionError: An op failed, or every unfinished rank waits: a deadlock; with rank and op.
    """
    for rank in ranks:
        with rank.turn():
            begin(rank)
    by_number = {rank.rank: rank for rank in ranks}
    batches = batch if isinstance(batch, Mapping) else dict.fromkeys(by_number, batch)
    programs = {rank.rank: execute_rank(rank, batches[rank.rank]) for rank in ranks}
    waiting: dict[int, Waiting] = {}
    begun_s = time.perf_counter()
    while programs:
        moved = False
        for number, program in list(programs.items()):
            rank, before = by_number[number], waiting.pop(number, None)
            done = len(rank.recorder)
            with rank.turn():
                now = next(program, _OVER)
            if now is _OVER:
                del programs[number]
            elif isinstance(now, Waiting):
                waiting[number] = now
            moved = moved or now != before or len(rank.recorder) != done
        if not moved:
            raise ExecutionError("deadlock: " + ", ".join(map(str, waiting.values())))
    launch_s = time.perf_counter() - begun_s
    on_launched()
    for rank in ranks:
        with rank.turn():
            rank.transport.flush()  # frees the messages that their receivers have fetched late
            end(rank)
    return launch_s
