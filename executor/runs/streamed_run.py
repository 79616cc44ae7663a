"""Measure with all ranks in this process, each on a stream of its device: one GPU for all, or several."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import torch

from pipesched.executor import starting
from pipesched.executor.core import (
    Batch,
    CudaStreams,
    DevicePosition,
    Rank,
    Recorder,
    Stage,
    make_clock,
    make_meter,
    polled,
)
from pipesched.executor.launch import Interference, Measure, RunSpec, read_fault
from pipesched.executor.runs.local_runner import devices_of, local_ranks, make_streams, run_local
from pipesched.executor.runs.measuring_job import Measured, build_measured, make_measured, recorded_tensors
from pipesched.executor.runs.rank_job import RankListener, with_position
from pipesched.profiles.measuring import SHORT_COUNT, computing, yardstick_s
from pipesched.profiles.models import Model, kept_random_state, resolve_model
from pipesched.schedules import Schedule, Yardstick
from pipesched.schedules.check import require_runnable
from pipesched.schedules.formats import from_json
from pipesched.schedules.lowering import lower


@kept_random_state()
def measure_on_streams(
    spec: RunSpec, listener_of: Callable[[int], RankListener], model: Model | None = None
) -> Measured:
    """Run `spec`, whose job measures a model, with all ranks in this process.

    Args:
        spec: Specification of the run; its model is trusted.
        listener_of: Returns the listener of a rank, whose `at` and `device` are used.
        model: The model of the run (default: looked up by name).

    Raises:
        ExecutionError: The run cannot be built, or an op failed; with rank, op and micro-batch.
        ProfileError: There is no such model, or it cannot be built.
        ScheduleError: The lists cannot finish.
    """
    assert isinstance(spec.job, Measure), "of this kind"
    schedule = from_json(spec.job.schedule, "the job's schedule")
    if spec.job.is_checked:
        require_runnable(schedule)
    schedule = lower(schedule)
    devices = devices_of(schedule.rank_to_device, spec.device)
    with computing(spec.threads, set(devices)):
        ranks, batches, positions = _built(spec, schedule, devices, listener_of, model)
        kernels_s = [yardstick_s(1, devices[0], SHORT_COUNT)]
        gc.collect()  # else cycles of earlier runs are freed inside an op, and its memory is too small
        with polled(positions):
            records = _Records(ranks, batches, spec.job)
        kernels_s.append(yardstick_s(1, devices[0], SHORT_COUNT))
    yardstick = Yardstick(spec.device, 1, fmean(kernels_s))
    return make_measured(schedule, records.times_ns, records.held_bytes, records.losses, yardstick, records.launches_s)


class _Records:
    """The records of all measured iterations; making them runs the lists.

    Attributes:
        times_ns: Per rank: reached, begun and ended of each op, shape (iterations, ops, 3) [ns].
        held_bytes: Per rank: bytes after and peak of each op, shape (iterations, 2, ops).
        losses: Mean loss of each micro-batch in the first run.
        launches_s: Time to launch each iteration.
    """

    def __init__(self, ranks: Sequence[Rank], batches: Mapping[int, Batch], job: Measure) -> None:
        self.losses: dict[int, float] = {}
        self.launches_s: list[float] = []
        rows = []
        for iteration in range(job.warmup + job.iterations):
            launch_s = run_local(ranks, batches)
            if iteration == 0:
                stages = [stage for rank in ranks for stage in rank.stages.values()]
                self.losses = {number: loss for stage in stages for number, loss in stage.losses().items()}
            if iteration >= job.warmup:
                self.launches_s.append(launch_s)
                rows.append([recorded_tensors(rank.recorder) for rank in ranks])
        self.times_ns, self.held_bytes = (
            [torch.stack([row[index][which] for row in rows]) for index in range(len(ranks))] for which in (0, 1)
        )


def _built(
    spec: RunSpec,
    schedule: Schedule,
    devices: Sequence[torch.device],
    listener_of: Callable[[int], RankListener],
    model: Model | None,
) -> tuple[list[Rank], dict[int, Batch], list[DevicePosition]]:
    """Return the ranks, their data, and the positions of their devices, which the host runs ahead of."""
    built = resolve_model(spec.model or "") if model is None else model
    streams = make_streams(devices, are_green=spec.has_green_contexts)
    batches, positions = dict[int, Batch](), list[DevicePosition]()

    def stages_of(rank: int) -> dict[int, Stage]:
        with starting(rank):
            stages, batches[rank] = build_measured(spec, schedule, rank, devices[rank], built)
        return stages

    def recorder_of(rank: int) -> Recorder:
        meter = make_meter(devices[rank])
        if meter is not None:
            meter.leave()  # until the rank's first turn
        return Recorder(make_clock(devices[rank]), meter)

    ranks = []
    for rank in local_ranks(schedule, stages_of, spec.averaging, streams=streams, recorder=recorder_of):
        listener, own = listener_of(rank.rank), streams[rank.rank]
        if isinstance(own, CudaStreams) and listener.device is not None:
            listener, position = with_position(listener, listener.device, devices[rank.rank])
            positions.append(position)
            own.on_wait = position.wait
        faults = Interference(
            map(read_fault, spec.inject), schedule.num_microbatches, is_finite_checked=spec.is_finite_checked
        )
        ranks.append(faults.on(replace(rank, at=listener.at, on_turn=listener.on_turn)))
    return ranks, batches, positions
