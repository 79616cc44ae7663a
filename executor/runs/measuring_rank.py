"""One process per rank: what each of them does, under torchrun or started by executor.runs.measuring_launcher."""

from __future__ import annotations

import gc
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from pipesched.executor import ExecutionError, starting
from pipesched.executor.core import (
    Batch,
    CudaClock,
    HostClock,
    Recorder,
    Stage,
    averagers,
    build_stages,
    check_fits,
    make_batch,
    make_meter,
)
from pipesched.executor.emulation import MOST_BYTES, Links, Page, ThrottledTransport, emulated_stages, require_emulable
from pipesched.executor.launch import RankContext, RunSpec, all_gather, connected_as, gather_texts, references
from pipesched.executor.runs.measured_timeline import measured_timeline
from pipesched.executor.training import save_stages
from pipesched.executor.transport import emulated_shapes, find_shapes
from pipesched.profiles.clusters import Cluster
from pipesched.profiles.io import read_cluster
from pipesched.profiles.models import resolve_model
from pipesched.schedules import Schedule, Timeline, stages_of
from pipesched.schedules.check import require_runnable
from pipesched.schedules.formats import from_json
from pipesched.schedules.lowering import lower


@dataclass(frozen=True, slots=True)
class Result:
    """What a run gave, known to the first process.

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


def run_rank(job: RunSpec, at: Callable[[int], None] | None = None, meet: str = "env://") -> Result | None:
    """Run this process' rank of `job`; RANK and WORLD_SIZE are in the environment, as torchrun sets them.

    Args:
        at: Told the position in the lowered list before each op.
        meet: Where the ranks meet: an ``init_method`` of torch.distributed.

    Returns:
        In the first process what was measured, None elsewhere.

    Raises:
        ExecutionError: The job cannot run, or an op failed: with rank, op and micro-batch.
        ScheduleError: The list cannot finish.
    """
    schedule = from_json(job.schedule, "the job's schedule")
    if job.is_checked:
        require_runnable(schedule)
    schedule = lower(schedule)
    with connected_as(job, schedule, meet) as place:
        return _run(job, schedule, place, at or (lambda index: None))  # noqa: ARG005


def _run(job: RunSpec, schedule: Schedule, place: RankContext, at: Callable[[int], None]) -> Result | None:
    rank, device, control = place.rank, place.device, place.control
    meter = make_meter(device) if job.emulate is None else None  # emulated stages hold nothing
    cluster = None if job.cluster is None else read_cluster(job.cluster, "the job's cluster")
    if cluster is not None:
        require_emulable(schedule, cluster)
    with starting(rank):
        stages, batch = _stages_and_batch(job, schedule, rank, device, cluster)
    if job.emulate is None:
        shapes = find_shapes(schedule, rank, stages, batch.inputs[0], control)
    else:
        shapes = emulated_shapes(job.emulate, sys.maxsize if cluster is None else MOST_BYTES)
    recorder = Recorder(CudaClock() if device.type == "cuda" else HostClock(), meter)
    me = place.join(schedule, stages, shapes, recorder, at, job.compression)
    if cluster is not None and job.emulate is not None:
        links = Links(schedule, cluster, job.emulate)
        me = replace(me, transport=ThrottledTransport(me.transport, links, _shared_page(links, place)))
    offset_ns = _clock_offset_ns(rank, control)
    times, held = [], []
    losses: dict[int, float] = {}
    gc.collect()
    gc.freeze()  # what was built stays: the collector need not look at it again in the middle of an op
    with references(schedule, place, stages, job.averaging) if job.emulate is None else nullcontext():
        for iteration in range(job.warmup + job.iterations):
            place.run(me, batch)
            if iteration == 0:
                losses = {number: loss for stage in stages.values() for number, loss in stage.losses().items()}
            if iteration >= job.warmup:
                times.append(torch.tensor(recorder.times_ns(), dtype=torch.int64).reshape(-1, 3) + offset_ns)
                held.append(torch.tensor([recorder.held_bytes(), recorder.most_bytes()], dtype=torch.int64))
        for stage in stages.values() if job.save else ():
            stage.settle()
    if job.save is not None:
        save_stages(Path(job.save), _own(schedule, rank, stages))
    return _gather(schedule, place, times, held, losses)


def _stages_and_batch(
    job: RunSpec, schedule: Schedule, rank: int, device: torch.device, cluster: Cluster | None
) -> tuple[dict[int, Stage], Batch]:
    ops = schedule.ops[rank]
    if job.emulate is not None:
        check_fits(schedule, job.emulate.num_stages, f"the profile ({job.emulate.origin})")
        nothing = (torch.empty(0),) * schedule.num_microbatches
        if cluster is None:
            num_pipelines = max(map(len, averagers(schedule).values()), default=1)
            stages = emulated_stages(ops, job.emulate, job.how, num_pipelines=num_pipelines)
            return stages, Batch(nothing, nothing)
        speed = cluster.devices[schedule.rank_to_device[rank]].speed
        return emulated_stages(ops, job.emulate, job.how, speed, MOST_BYTES), Batch(nothing, nothing)
    if job.model is None:
        raise ExecutionError("the job names neither a model nor costs to emulate")
    check_fits(schedule, len(job.bounds), f"the partition of {job.model}")
    model, dtype = resolve_model(job.model), getattr(torch, job.dtype)
    stages = build_stages(
        schedule, rank, model, job.bounds,
        optimizer=job.optimizer, lr=job.lr, seed=job.seed, dtype=dtype, device=device, prediction=job.prediction,
    )  # fmt: skip
    batch = make_batch(model, schedule.num_microbatches, job.microbatch_size, seed=job.seed, dtype=dtype, device=device)
    return stages, batch


def _own(schedule: Schedule, rank: int, stages: Mapping[int, Stage]) -> dict[int, Stage]:
    """Return the stages that no lower rank has too."""
    lower_ranks = {index for ops in schedule.ops[:rank] for index in stages_of(ops)}
    return {index: stage for index, stage in stages.items() if index not in lower_ranks}


def _shared_page(links: Links, place: RankContext) -> Page:
    """Return a page for `links` that all ranks map; all ranks call this together.

    Raises:
        ExecutionError: The ranks are not all on one host.
    """
    if len(set(gather_texts(socket.gethostname(), place.control))) > 1:
        raise ExecutionError(
            "cluster: got ranks on several hosts, expected all on one, whose clock they share; start them on one host"
        )
    with tempfile.TemporaryDirectory(prefix="pipesched-") as folder:
        Page.create(Path(folder) / "page", links.num_cells)
        page = Page(Path(gather_texts(folder, place.control)[0]) / "page")
        place.meet()  # rank 0 leaves the folder when all have opened the page
    return page


def _clock_offset_ns(rank: int, control: dist.ProcessGroup | None, rounds: int = 20) -> int:
    """Return what to add to this rank's clock to get rank 0's: nothing on one host, else the best of some echoes."""
    hosts = gather_texts(socket.gethostname(), control)
    offset_ns = 0
    for other in range(1, len(hosts)):
        if hosts[other] == hosts[0] or rank not in (0, other):
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
    place: RankContext,
    times: list[Tensor],
    held: list[Tensor],
    losses: dict[int, float],
) -> Result | None:
    """Bring everything measured to the first process."""
    all_times = all_gather(torch.stack(times), place.control)
    all_held = all_gather(torch.stack(held), place.control)
    pairs = torch.tensor(sorted(losses.items()), dtype=torch.float64).reshape(-1, 2)
    all_losses = dict(torch.cat([part.reshape(-1, 2) for part in all_gather(pairs, place.control)]).tolist())
    if not place.is_first:
        return None
    timelines = tuple(
        measured_timeline(
            schedule,
            [t[k].tolist() for t in all_times],
            [h[k, 0].tolist() for h in all_held],
            [h[k, 1].tolist() for h in all_held],
        )
        for k in range(len(times))
    )
    return Result(timelines, tuple(all_losses[number] for number in sorted(all_losses)))
