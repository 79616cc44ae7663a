"""The estimate of a published run: seconds of an iteration and peak memory of each rank, by the product's engines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from pipesched.profiles.clusters import Cluster, Device, Link
from pipesched.profiles.costs import LayerSharding, Profile, StageCost, StageCosts
from pipesched.profiles.inside_stage.collective_time import message_link
from pipesched.profiles.inside_stage.estimated_profile import estimated_profile
from pipesched.profiles.inside_stage.fabric import Fabric
from pipesched.profiles.inside_stage.model_shape import ModelShape
from pipesched.profiles.io import load_gpu
from pipesched.schedules import Schedule
from pipesched.schedules.builders import build
from pipesched.schedules.transforms import with_step_barrier, with_tied_sum
from pipesched.simulator import Estimate, NetworkOptions, Scenario
from pipesched.simulator.fast import predict_scenario
from published_rows.setting import Setting

NODE_LATENCY_S = 5e-6
"""Latency of a message inside a node, supposed."""
HALF_BYTES = 2
"""Bytes of a weight in float16 or bfloat16."""


@dataclass(frozen=True, slots=True)
class IterationEstimate:
    """The estimate of an iteration.

    Attributes:
        seconds: Seconds of the iteration.
        peak_bytes: Peak memory of each rank of the pipeline [bytes].
        memory_bytes: Memory of the GPU that its programs see [bytes].
    """

    seconds: float
    peak_bytes: tuple[int, ...]
    memory_bytes: int


def estimate(setting: Setting) -> IterationEstimate:
    """Return the estimate of a setting: an estimated profile, cut as the trainer cuts it, on the array engine.

    Raises:
        ValueError, PipeschedError: The layout or the schedule is impossible, or the data sheet lacks a number.
    """
    machine = setting.machine
    gpu = load_gpu(machine.gpu)
    inter = Link(machine.network_latency_s, machine.network_bytes_per_s)
    boards = Link(NODE_LATENCY_S, machine.board_bytes_per_s)
    node = Link(NODE_LATENCY_S, gpu.link_bandwidth_bytes_per_s)
    fabric = Fabric(machine.gpus_per_node, node, inter, machine.board_gpus, boards)
    shared = replace(inter, bandwidth_bytes_per_s=machine.collective_share * machine.network_bytes_per_s)
    profile = _profile(
        setting.shape, setting.sharding, machine.gpu, replace(fabric, inter=shared), setting.microbatch_size
    )
    is_summed = profile.tied_bytes > 0
    schedule = _schedule(setting.schedule, setting.depth, setting.microbatches, setting.chunks, is_summed)
    stages = tuple(
        profile.cost_of_layers(first, last) if first < last else StageCost(forward_s=0.0, backward_s=0.0)
        for first, last in setting.cut.bounds()
    )
    costs = StageCosts(tuple(_with_buffers(stage, setting) for stage in stages), tied_bytes=profile.tied_bytes)
    network = NetworkOptions(sends=setting.trainer.sends)
    predicted = predict_scenario(Scenario(schedule, costs, _cluster(setting, fabric), network))
    if not isinstance(predicted, Estimate):
        raise ValueError(f"schedule is {setting.schedule!r}; {predicted.reason}")  # noqa: TRY004 -- a reason
    peaks = tuple(predicted.peak_bytes.get(rank, 0) for rank in range(setting.depth))
    return IterationEstimate(predicted.seconds, peaks, gpu.memory_bytes)


def _with_buffers(stage: StageCost, setting: Setting) -> StageCost:
    """Return a stage with the buffers of the trainer, and the gradients that its step copies."""
    parameters = stage.weight_bytes // HALF_BYTES
    step_bytes = setting.trainer.step_gradient_bytes * parameters // setting.sharding.data
    return replace(stage, optimizer_bytes=stage.optimizer_bytes + setting.buffer_bytes + step_bytes)


@lru_cache(maxsize=4096)
def _profile(shape: ModelShape, sharding: LayerSharding, gpu_name: str, fabric: Fabric, size: int) -> Profile:
    return estimated_profile(shape, sharding, load_gpu(gpu_name), fabric, [size])


@lru_cache(maxsize=64)
def _schedule(name: str, depth: int, microbatches: int, chunks: int, is_tied: bool) -> Schedule:
    """Return lists whose Steps wait for the norm of all gradients, as clipping needs it."""
    takes_chunks = name in ("interleaved", "interleaved_zb")
    schedule = build(name, depth, microbatches, chunks) if takes_chunks else build(name, depth, microbatches)
    return with_step_barrier(with_tied_sum(schedule) if is_tied else schedule)


def _cluster(setting: Setting, fabric: Fabric) -> Cluster:
    """Return a device for each rank of the pipeline; ranks of a pipeline are a stage's GPUs apart."""
    per_node = max(1, fabric.node_gpus // setting.sharding.num_gpus)
    devices = tuple(Device(node=rank // per_node) for rank in range(setting.depth))
    inside, between = (message_link(fabric.intra, fabric.inter, is_inside=is_inside) for is_inside in (True, False))
    return Cluster(devices, inside, between)
