"""Measure with all ranks in this process, each on a stream of its device: one GPU for all, or several."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean

import torch

from pipesched.executor import starting
from pipesched.executor.core import (
    Batch,
    CudaStreams,
    DevicePosition,
    ModuleStage,
    Rank,
    Recorder,
    make_clock,
    make_meter,
    polled,
)
from pipesched.executor.launch import Interference, RunSpec
from pipesched.executor.runs.local_runner import devices_of, local_ranks, make_streams, run_local
from pipesched.executor.runs.measuring_job import Measured, build_measured, make_measured, measured_lists, record_runs
from pipesched.executor.runs.rank_job import RankListener, with_position
from pipesched.profiles.measuring import SHORT_COUNT, computing, yardstick_s
from pipesched.profiles.models import Model, kept_random_state, resolve_model
from pipesched.schedules import Schedule, Yardstick


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
        ExecutionError: The run cannot be built, or an op failed (the message names rank, op and micro-batch).
        ProfileError: There is no such model, or it cannot be built.
        ScheduleError: The lists cannot finish.
    """
    job, launches_s = spec.measurement, list[float]()
    schedule = measured_lists(job)
    devices = devices_of(schedule.rank_to_device, spec.device)
    with computing(spec.threads, set(devices)):
        ranks, batches, positions = _built(spec, schedule, devices, listener_of, model)
        kernels_s = [yardstick_s(1, devices[0], SHORT_COUNT)]
        gc.collect()  # else cycles of earlier runs are freed inside an op, and its memory is too small
        with polled(positions):
            records = record_runs(job, ranks, lambda: launches_s.append(run_local(ranks, batches)))
        kernels_s.append(yardstick_s(1, devices[0], SHORT_COUNT))
    yardstick = Yardstick(spec.device, 1, fmean(kernels_s))
    return make_measured(schedule, records, yardstick, launches_s[job.warmup :])


def _built(
    spec: RunSpec,
    schedule: Schedule,
    devices: Sequence[torch.device],
    listener_of: Callable[[int], RankListener],
    model: Model | None,
) -> tuple[list[Rank], dict[int, Batch], list[DevicePosition]]:
    """Return the ranks, their data, and the position of each device, which lags behind the host."""
    built = resolve_model(spec.model or "") if model is None else model
    streams = make_streams(devices, are_green=spec.has_green_contexts)
    batches, positions = dict[int, Batch](), list[DevicePosition]()

    def stages_of(rank: int) -> dict[int, ModuleStage]:
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
        faults = Interference(spec, schedule.num_microbatches, rank.rank)
        ranks.append(faults.on(replace(rank, at=listener.at, on_turn=listener.on_turn)))
    return ranks, batches, positions
