"""One process per rank: what each of them does, under torchrun or started by executor.launcher."""

from __future__ import annotations

import gc
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from executor.affinity import pin
from executor.build import build_stages, check_fits, emulated_stages, make_batch
from executor.checkpoint import save_stages
from executor.clock import CudaClock, HostClock, Recorder
from executor.errors import ExecutionError, failed, waiting_for
from executor.interpreter import Batch, Rank, begin, execute_rank
from executor.job import START_S, Job
from executor.measured import measured_timeline
from executor.meter import make_meter
from executor.process_group import ProcessGroupTransport, make_groups
from executor.shapes import emulated_shapes, find_shapes
from executor.stage import Stage
from profiles.models.resolve import resolve_model
from schedules.check import require_runnable
from schedules.formats.schedule_json import from_json
from schedules.lower import lower
from schedules.schedule import Schedule
from schedules.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Result:
    """What a run gave, known on rank 0.

    Attributes:
        timelines: One per measured iteration.
        losses: Mean loss of every micro-batch in the very first run of the list, from the initial weights.
    """

    timelines: tuple[Timeline, ...]
    losses: tuple[float, ...]

    @property
    def median(self) -> Timeline:
        """The iteration of median makespan (the lower one of two)."""
        ordered = sorted(self.timelines, key=lambda timeline: timeline.makespan_s)
        return ordered[(len(ordered) - 1) // 2]


def run_rank(job: Job, at: Callable[[int], None] | None = None, meet: str = "env://") -> Result | None:
    """Run this process' rank of `job`; RANK and WORLD_SIZE are in the environment, as torchrun sets them.

    Args:
        at: Told the position in the lowered list before each op.
        meet: Where the ranks meet: an ``init_method`` of torch.distributed.

    Returns:
        On rank 0 what was measured, None elsewhere.

    Raises:
        ExecutionError: The job cannot run, or an op failed: with rank, op and micro-batch.
        ScheduleError: The list cannot finish.
    """
    schedule = from_json(job.schedule, "the job's schedule")
    if job.is_checked:
        require_runnable(schedule)
    schedule = lower(schedule)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if size != schedule.num_ranks:
        raise ExecutionError(
            f"schedule {schedule.name} has {schedule.num_ranks} ranks, but {size} processes were started"
        )
    if job.device == "cpu" and job.is_pinned:
        pin(int(os.environ.get("LOCAL_RANK", rank)), int(os.environ.get("LOCAL_WORLD_SIZE", size)), job.threads)
    torch.set_num_threads(job.threads)
    device, backend = _device_and_backend(job, schedule)
    # a dead peer is seen through its closed connection; this only bounds what hangs outside of the lists
    patience = timedelta(seconds=max(START_S, job.timeout_s))
    with waiting_for(f"the other ranks of rank {rank}"):
        dist.init_process_group(backend, init_method=meet, rank=rank, world_size=size, timeout=patience)
    try:
        result = _run(job, schedule, rank, device, backend, at or (lambda index: None))  # noqa: ARG005
        _meet(rank, None)
        return result
    finally:
        dist.destroy_process_group()


def _device_and_backend(job: Job, schedule: Schedule) -> tuple[torch.device, str]:
    if job.device == "cpu":
        if job.backend == "nccl":
            raise ExecutionError("backend nccl needs device cuda; use gloo on CPUs")
        return torch.device("cpu"), "gloo"
    if not torch.cuda.is_available():
        raise ExecutionError("device cuda: no GPU is there; use device cpu")
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", schedule.num_ranks))
    is_alone = local_size <= torch.cuda.device_count()
    if job.backend == "nccl" and not is_alone:
        raise ExecutionError(
            f"backend nccl needs a GPU for each of {local_size} ranks, {torch.cuda.device_count()} are there; use gloo"
        )
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", os.environ["RANK"])) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    backend = job.backend if job.backend != "auto" else ("nccl" if is_alone else "gloo")
    return device, backend


def _run(
    job: Job, schedule: Schedule, rank: int, device: torch.device, backend: str, at: Callable[[int], None]
) -> Result | None:
    control = dist.new_group(backend="gloo") if backend == "nccl" else None
    ops, meter = schedule.ops[rank], make_meter(device)
    stages, batch = _stages_and_batch(job, schedule, rank, device)
    if job.emulate is None:
        shapes = find_shapes(schedule, rank, stages, batch.inputs[0], control)
    else:
        shapes = emulated_shapes(job.emulate)
    groups = make_groups(schedule.ops, backend, device)
    is_staged = device.type == "cuda" and backend == "gloo"
    transport = ProcessGroupTransport(
        rank, schedule.ops, schedule.num_stages, shapes, device, groups, is_staged, job.timeout_s
    )
    recorder = Recorder(CudaClock() if device.type == "cuda" else HostClock(), meter)
    me = Rank(rank, ops, schedule.num_stages, stages, transport, recorder, at)
    offset_ns = _clock_offset_ns(rank, control)
    times, held = [], []
    losses: dict[int, float] = {}
    gc.collect()
    gc.freeze()  # what was built stays: the collector need not look at it again in the middle of an op
    for iteration in range(job.warmup + job.iterations):
        _run_list(me, batch, control)
        if iteration == 0:
            losses = {number: loss for stage in stages.values() for number, loss in stage.losses().items()}
        if iteration >= job.warmup:
            times.append(torch.tensor(recorder.times_ns(), dtype=torch.int64).reshape(-1, 3) + offset_ns)
            held.append(torch.tensor(recorder.held_bytes(), dtype=torch.int64))
    if job.save is not None:
        save_stages(Path(job.save), stages)
    return _gather(schedule, rank, times, held, losses, control)


def _stages_and_batch(job: Job, schedule: Schedule, rank: int, device: torch.device) -> tuple[dict[int, Stage], Batch]:
    ops = schedule.ops[rank]
    if job.emulate is not None:
        check_fits(schedule, job.emulate.num_stages, f"the profile ({job.emulate.origin})")
        nothing = (torch.empty(0),) * schedule.num_microbatches
        return emulated_stages(ops, job.emulate, job.how), Batch(nothing, nothing)
    if job.model is None:
        raise ExecutionError("the job names neither a model nor costs to emulate")
    check_fits(schedule, len(job.bounds), f"the partition of {job.model}")
    model, dtype = resolve_model(job.model), getattr(torch, job.dtype)
    stages = build_stages(
        ops, schedule.num_stages, model, job.bounds,
        optimizer=job.optimizer, lr=job.lr, seed=job.seed, dtype=dtype, device=device,
    )  # fmt: skip
    batch = make_batch(model, schedule.num_microbatches, job.microbatch_size, seed=job.seed, dtype=dtype, device=device)
    return stages, batch


def _run_list(me: Rank, batch: Batch, control: dist.ProcessGroup | None) -> None:
    """Run the list once, all ranks starting together."""
    begin(me)
    _meet(me.rank, control)
    try:
        for waiting in execute_rank(me, batch):
            raise ExecutionError(str(waiting))  # our transport waits inside `take`
    except Exception as error:  # a user's layer may raise anything
        at = min(len(me.recorder), len(me.ops) - 1)  # after the last op its Sends are waited for
        raise failed(me.rank, me.ops[at], error) from error


def _meet(rank: int, control: dist.ProcessGroup | None) -> None:
    with waiting_for(f"the other ranks of rank {rank}"):
        dist.barrier(control)


def _clock_offset_ns(rank: int, control: dist.ProcessGroup | None, rounds: int = 20) -> int:
    """Return what to add to this rank's clock to get rank 0's: nothing on one host, else the best of some echoes."""
    hosts = _all_gather(
        torch.frombuffer(bytearray(socket.gethostname().encode()[:64].ljust(64)), dtype=torch.uint8), control
    )
    offset_ns = 0
    for other in range(1, len(hosts)):
        if torch.equal(hosts[other], hosts[0]) or rank not in (0, other):
            continue
        best_ns = None
        for _ in range(rounds):
            stamp = torch.zeros(1, dtype=torch.int64)
            if rank == 0:
                dist.recv(stamp, other, group=control)
                dist.send(torch.tensor([time.perf_counter_ns()]), other, group=control)
            else:
                sent_ns = time.perf_counter_ns()
                dist.send(stamp, 0, group=control)
                dist.recv(stamp, 0, group=control)
                got_ns = time.perf_counter_ns()
                if best_ns is None or got_ns - sent_ns < best_ns:
                    best_ns, offset_ns = got_ns - sent_ns, int(stamp) - (sent_ns + got_ns) // 2
    return offset_ns


def _gather(
    schedule: Schedule,
    rank: int,
    times: list[Tensor],
    held: list[Tensor],
    losses: dict[int, float],
    control: dist.ProcessGroup | None,
) -> Result | None:
    """Bring everything measured to rank 0."""
    all_times = _all_gather(torch.stack(times), control)
    all_held = _all_gather(torch.stack(held), control)
    pairs = torch.tensor(sorted(losses.items()), dtype=torch.float64).reshape(-1, 2)
    all_losses = dict(torch.cat([part.reshape(-1, 2) for part in _all_gather(pairs, control)]).tolist())
    if rank != 0:
        return None
    timelines = tuple(
        measured_timeline(schedule, [t[k].tolist() for t in all_times], [h[k].tolist() for h in all_held])
        for k in range(len(times))
    )
    return Result(timelines, tuple(all_losses[number] for number in sorted(all_losses)))


def _all_gather(tensor: Tensor, control: dist.ProcessGroup | None) -> list[Tensor]:
    """Return every rank's tensor of this kind; they may differ in size, not in dtype or dimensions."""
    size = torch.tensor(tensor.shape, dtype=torch.int64)
    sizes = [torch.empty_like(size) for _ in range(dist.get_world_size())]
    with waiting_for(f"the other ranks of rank {dist.get_rank()}"):
        dist.all_gather(sizes, size, group=control)
    counts = [int(each.prod()) for each in sizes]
    padded = torch.zeros(max(counts), dtype=tensor.dtype)
    padded[: tensor.numel()] = tensor.reshape(-1)
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded, group=control)
    return [part[:count].reshape(each.tolist()) for part, count, each in zip(parts, counts, sizes, strict=True)]
