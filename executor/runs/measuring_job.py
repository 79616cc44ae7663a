"""The job of measuring: a rank runs its list repeatedly and records when each op is reached, begun and ended."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, final

import numpy  # noqa: F401 -- before torch, whose C code would load it and lose an interrupt
import torch
import torch.distributed as dist
from torch import Tensor

from pipesched.executor.core import (
    Batch,
    LayerGenerators,
    ModuleStage,
    Rank,
    Recorder,
    Stage,
    averagers,
    build_stages,
    check_fits,
    load_whole_state,
    make_batch,
    make_clock,
    make_meter,
    weight_file,
)
from pipesched.executor.emulation import (
    MOST_BYTES,
    Page,
    ThrottledRoutes,
    ThrottledTransport,
    emulated_stages,
    require_emulable,
)
from pipesched.executor.launch import Measure, RankContext, RunSpec, shared_file
from pipesched.executor.runs.measured_timeline import measured_timeline
from pipesched.executor.runs.rank_job import RankJob, RankListener
from pipesched.executor.transport import BoundaryShape, all_gather, emulated_shapes, gather_texts
from pipesched.profiles.costs import StageCosts
from pipesched.profiles.io import read_cluster
from pipesched.profiles.measuring import SHORT_COUNT, yardstick_s
from pipesched.profiles.models import Model, build_layers, kept_random_state, resolve_model, torch_dtype
from pipesched.schedules import Schedule, Timeline, Yardstick
from pipesched.schedules.check import require_runnable
from pipesched.schedules.lowering import lower


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of a measured run: its timeline, its times and its losses.

    Attributes:
        timeline: The iteration of median makespan (the lower one of two).
        makespans_s: Makespan of every measured iteration.
        losses: Mean loss of every micro-batch in the very first run of the list, from the initial weights; empty when
            emulated.
    """

    timeline: Timeline
    makespans_s: tuple[float, ...]
    losses: tuple[float, ...]

    def numbers(self) -> dict[str, tuple[float, ...]]:
        """Return everything but the timeline, by name."""
        return {"makespans_s": self.makespans_s, "losses": self.losses}


@final
class MeasuringJob(RankJob[Measured]):
    """Runs the lists of a schedule repeatedly, and measures every op.

    Raises:
        ScheduleError: The lists cannot finish.
    """

    def __init__(self, spec: RunSpec, listener: RankListener, model: Model | None = None) -> None:
        self._job = job = spec.measurement
        self._schedule = measured_lists(job)
        super().__init__(spec, self._schedule, listener, model)
        self._cluster = None if job.cluster is None else read_cluster(job.cluster, "the job's cluster")
        self._kernels_s: list[float] = []

    def build(self, context: RankContext) -> tuple[Mapping[int, Stage], Batch]:
        if self._job.emulate is not None:
            return self._emulated(self._job.emulate, context.rank)
        return build_measured(self.spec, self._schedule, context.rank, context.device, self.model)

    def _emulated(self, costs: StageCosts, rank: int) -> tuple[dict[int, Stage], Batch]:
        """Return stages that only take time, and an empty batch."""
        schedule, cluster, how = self._schedule, self._cluster, self._job.how
        check_fits(schedule, costs.num_stages, f"the profile ({costs.origin})")
        if cluster is not None:
            require_emulable(schedule, cluster)
        nothing = (torch.empty(0),) * schedule.num_microbatches
        num_pipelines, speed = max(map(len, averagers(schedule).values()), default=1), 1.0
        if cluster is not None:  # each rank has a device of its own
            num_pipelines, speed = 1, cluster.devices[schedule.rank_to_device[rank]].speed
        stages = emulated_stages(schedule.ops[rank], costs, how, speed, self._most_bytes, num_pipelines)
        return stages, Batch(nothing, nothing)

    @property
    def _most_bytes(self) -> int:
        """Largest real size of an emulated tensor."""
        return sys.maxsize if self._cluster is None else MOST_BYTES

    def shapes(self, context: RankContext, stages: Mapping[int, Stage], batch: Batch) -> Mapping[int, BoundaryShape]:
        if self._job.emulate is not None:
            return emulated_shapes(self._job.emulate, self._most_bytes)
        return super().shapes(context, stages, batch)

    def work(
        self, context: RankContext, stages: Mapping[int, Stage], batch: Batch, shapes: Mapping[int, BoundaryShape]
    ) -> None:
        job = self._job
        meter = make_meter(context.device) if job.emulate is None else None  # emulated stages hold nothing
        recorder = Recorder(make_clock(context.device), meter)
        rank = context.join(self._schedule, stages, shapes, recorder, self.listener.at, self.spec.compression)
        if self._cluster is not None and job.emulate is not None:
            routes = ThrottledRoutes(self._schedule, self._cluster, job.emulate)
            page = _shared_page(routes, context)
            rank = replace(rank, transport=ThrottledTransport(context.rank, rank.transport, routes, page))
        offset_ns = clock_offset_ns(context.rank)
        self._look(context)
        self._records = record_runs(job, [rank], lambda: context.run(rank, batch))
        self._records.times_ns[0].add_(offset_ns)
        self._look(context)

    def _look(self, context: RankContext) -> None:
        """Measure the speed of the machine while no rank runs its list; all ranks call this together."""
        if self._job.emulate is not None:  # emulated stages take the same time on any machine
            return
        context.meet()
        if context.place.is_busy:
            self._kernels_s.append(yardstick_s(1, context.device, SHORT_COUNT))

    def gather(self, context: RankContext) -> Measured | None:
        times_ns, held_bytes = (all_gather(own) for (own,) in (self._records.times_ns, self._records.held_bytes))
        pairs = torch.tensor(sorted(self._records.losses.items()), dtype=torch.float64).reshape(-1, 2)
        losses = dict(torch.cat([part.reshape(-1, 2) for part in all_gather(pairs)]).tolist())
        kernels_s = torch.cat(all_gather(torch.tensor(self._kernels_s, dtype=torch.float64)))
        if not context.is_first:
            return None
        yardstick = None
        if len(kernels_s):
            num_busy = context.place.num_busy if self.spec.device == "cpu" else 1
            yardstick = Yardstick(self.spec.device, num_busy, float(kernels_s.mean()))
        return make_measured(self._schedule, Records(times_ns, held_bytes, losses), yardstick)


def measured_lists(job: Measure) -> Schedule:
    """Return the lowered lists of a job.

    Raises:
        ScheduleError: The lists cannot finish.
    """
    schedule = job.lists
    if job.is_checked:
        require_runnable(schedule)
    return lower(schedule)


def build_measured(
    spec: RunSpec, schedule: Schedule, rank: int, device: torch.device, model: Model | None = None
) -> tuple[dict[int, ModuleStage], Batch]:
    """Return the stages of a rank of a measured run, and the data that they read.

    Args:
        spec: Specification of the run, whose job measures a model.
        schedule: The lowered lists.
        device: Device of the rank.
        model: The model of the run; None to look up its name.

    Raises:
        ExecutionError: The stages are not a cut of the model, or its batch has another number of samples.
        ProfileError: There is no such model, or a layer cannot be built.
    """
    assert spec.model is not None, "a run that is not emulated has a model"
    check_fits(schedule, len(spec.bounds), f"the partition of {spec.model}")
    built, dtype = model or resolve_model(spec.model), torch_dtype(spec.dtype)
    stages = build_stages(schedule, rank, built, spec.bounds, spec, device)
    batch = make_batch(
        built, schedule.num_microbatches, spec.measurement.microbatch_size, seed=spec.seed, dtype=dtype, device=device,
        reads=(0 in stages, schedule.num_stages - 1 in stages),
    )  # fmt: skip
    return stages, batch


def recorded_tensors(recorder: Recorder) -> tuple[Tensor, Tensor]:
    """Return the times of a run, shape (ops, 3) [ns], and its bytes, shape (2, ops), or (2, 0) without a meter."""
    times_ns = torch.tensor(recorder.times_ns(), dtype=torch.int64).reshape(-1, 3)
    return times_ns, torch.tensor([recorder.held_bytes(), recorder.most_bytes()], dtype=torch.int64)


class Records(NamedTuple):
    """The records of all measured iterations of some ranks.

    Attributes:
        times_ns: Per rank: reached, begun and ended of each op, shape (iterations, ops, 3) [ns].
        held_bytes: Per rank: bytes after and peak of each op, shape (iterations, 2, ops); no ops if unknown.
        losses: Mean loss of each micro-batch in the first run.
    """

    times_ns: Sequence[Tensor]
    held_bytes: Sequence[Tensor]
    losses: Mapping[int, float]


def record_runs(job: Measure, ranks: Sequence[Rank], run: Callable[[], object]) -> Records:
    """Run the lists of `ranks` as often as a job requests, by `run`; return their records."""
    losses, rows = dict[int, float](), []
    for iteration in range(job.warmup + job.iterations):
        run()
        if iteration == 0:
            stages = [stage for rank in ranks for stage in rank.stages.values()]
            losses = {number: loss for stage in stages for number, loss in stage.losses().items()}
        if iteration >= job.warmup:
            rows.append([recorded_tensors(rank.recorder) for rank in ranks])
    by_rank = [[*zip(*own, strict=True)] for own in zip(*rows, strict=True)]
    times_ns, held_bytes = ([torch.stack(own[which]) for own in by_rank] for which in (0, 1))
    return Records(times_ns, held_bytes, losses)


def make_measured(
    schedule: Schedule, records: Records, yardstick: Yardstick | None, launches_s: Sequence[float] | None = None
) -> Measured:
    """Return the result of a run from the records of all ranks.

    Args:
        schedule: The lowered lists.
        records: The records.
        yardstick: Speed of the machine, or None if unknown.
        launches_s: Time of one thread to launch each iteration; None with a process per rank.
    """
    timelines = [
        replace(
            measured_timeline(
                schedule,
                [times[k].tolist() for times in records.times_ns],
                [held[k, 0].tolist() for held in records.held_bytes],
                [held[k, 1].tolist() for held in records.held_bytes],
            ),
            yardstick=yardstick,
            launch_s=None if launches_s is None else launches_s[k],
        )
        for k in range(len(records.times_ns[0]))
    ]
    makespans_s = tuple(timeline.makespan_s for timeline in timelines)
    ordered = sorted(timelines, key=lambda timeline: timeline.makespan_s)
    median = ordered[(len(ordered) - 1) // 2]
    return Measured(median, makespans_s, tuple(loss for _, loss in sorted(records.losses.items())))


def _shared_page(routes: ThrottledRoutes, context: RankContext) -> Page:
    """Return a page for `links` that all ranks map; all ranks call this together.

    Raises:
        ExecutionError: The ranks are not all on one host.
    """
    with shared_file(routes.num_bytes if context.rank == 0 else None, 0, "cluster") as path:
        assert path is not None, "each rank opens it"
        page = Page(path)
        context.meet()  # rank 0 keeps the file until all have opened it
    return page


def clock_offset_ns(rank: int, rounds: int = 20) -> int:
    """Return the offset from this rank's clock to rank 0's: 0 on one host, else from the fastest of `rounds` echoes."""
    hosts = gather_texts(socket.gethostname())
    offset_ns = 0
    for other in range(1, len(hosts)):
        if hosts[other] == hosts[0] or rank not in (0, other):
            continue
        best_ns = None
        for _ in range(rounds):
            stamp = torch.zeros(1, dtype=torch.int64)
            if rank == 0:
                dist.recv(stamp, other)
                dist.send(torch.tensor([time.perf_counter_ns()]), other)
            else:
                sent_ns = time.perf_counter_ns()
                dist.send(stamp, 0)
                dist.recv(stamp, 0)
                got_ns = time.perf_counter_ns()
                if best_ns is None or got_ns - sent_ns < best_ns:
                    best_ns, offset_ns = got_ns - sent_ns, int(stamp) - (sent_ns + got_ns) // 2
    return offset_ns


@kept_random_state()
def whole_model_losses(spec: RunSpec, model: Model | None = None) -> tuple[float, ...]:
    """Return the mean loss of every micro-batch of a measured run, from the initial weights, without a pipeline.

    Args:
        spec: Specification of the run.
        model: The model of the run (default: looked up by name).
    """
    assert spec.model is not None, "an emulated run has no losses"
    model = model or resolve_model(spec.model)
    dtype, device = torch_dtype(spec.dtype), torch.device(spec.device)
    job = spec.measurement
    batch = make_batch(
        model, job.lists.num_microbatches, job.microbatch_size, seed=spec.seed, dtype=dtype, device=device
    )
    module = build_layers(model, 0, len(model.layers), seed=spec.seed, dtype=dtype, device=device)
    if spec.weights is not None:
        with weight_file(spec.weights) as state:
            load_whole_state(model, [(0, len(model.layers))], {0: module}, state)
    draws = LayerGenerators(module, 0, spec.seed, device)
    draws.begin()
    losses = []
    for microbatch, (x, y) in enumerate(zip(batch.inputs, batch.targets, strict=True)):
        with torch.no_grad(), draws.of(microbatch):
            losses.append(model.loss(module(x), y).item())
    return tuple(losses)
