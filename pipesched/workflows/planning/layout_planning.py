"""Planning of a transformer that is estimated: find the fastest layout on a cluster that fits into memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from pipesched.profiles.clusters import Cluster, Gpu, first_devices
from pipesched.profiles.costs import LayerSharding, Recomputation
from pipesched.profiles.inside_stage import ModelShape, fabric_of
from pipesched.profiles.io import gpu_names, load_gpu, model_shape
from pipesched.questions import LayoutSettings, OnShare, PlanLimits, RecomputeChoice, TrainerName, unheard
from pipesched.schedules.common import MAX_NUMBER, Counts, Description, tuple_of
from pipesched.simulator.planner import (
    LAYOUT_CHUNKS,
    LAYOUT_SCHEDULES,
    LAYOUT_SIZES,
    LayoutRequest,
)
from pipesched.workflows import ArgumentError, asks, require_kind
from pipesched.workflows.exporting import TrainerRule
from pipesched.workflows.planning.layout_search import LayoutSearch, require_exportable_shape
from pipesched.workflows.planning.planning import plannable_schedules, ranking_of

_SCHEDULES: dict[TrainerName | None, tuple[str, ...]] = {
    None: LAYOUT_SCHEDULES,
    "megatron": ("1f1b", "interleaved"),
    "torchtitan": ("1f1b", "interleaved"),
    "deepspeed": ("1f1b",),
}
"""The schedules that are tried by default."""
_ZEROS: dict[TrainerName | None, tuple[int, ...]] = {
    None: (0, 1, 2, 3),
    "megatron": (0, 1),
    "torchtitan": (0, 1, 2, 3),
    "deepspeed": (1,),
}
"""The stages of ZeRO that a trainer has; torchtitan has stage 1 in pipelines alone, and 2 without them."""
_MEGATRON = LayerSharding(has_sequence=True, hides_gradients=True, hides_weights=True)
_SOFTWARE: dict[TrainerName | None, LayerSharding] = {
    None: _MEGATRON,
    "megatron": _MEGATRON,
    "torchtitan": replace(_MEGATRON, has_fused_gradients=False, has_graphs=True),  # torch.compile
    "deepspeed": LayerSharding(gradient_bytes=6, has_fused_gradients=False, has_whole_sums=True),
}
"""The software of each trainer, as its export sets it; the default is Megatron-LM with its overlap options.
DeepSpeed's BF16_Optimizer holds gradients in bfloat16 and in float32."""


@dataclass(frozen=True, kw_only=True)
class LayoutQuestion(LayoutSettings, PlanLimits):
    """The question of `plan_layout`; its fields are the arguments of that function."""

    model: str | Path | ModelShape = field(kw_only=False)
    cluster: Cluster = field(kw_only=False)
    gpu: str | Path | Gpu | None = None
    sizes: Annotated[Counts | None, Description("Samples per micro-batch to try.", least=1, most=MAX_NUMBER)] = None
    progress: OnShare = unheard


@asks(LayoutQuestion)
def plan_layout(question: LayoutQuestion) -> LayoutSearch:
    """Find the fastest layout of a transformer that fits, from estimates; a KeyboardInterrupt ends the search.

    The search covers the depth, virtual stages, tensor with sequence, context, expert and data parallelism, ZeRO,
    micro-batches, recomputation and the schedule. The trainer overlaps the sums of gradients and the gathering of
    weights with the computation.

    Args:
        model: A preset, as ``llama3-70b``; a configuration, as ``hf:path/config.json``; free numbers, as
            ``transformer:layers=32,hidden=4096,..``; or a ModelShape.
        cluster: Equal GPUs: their memory and links.
        gpu: Name of a data sheet, a file (.json), or a Gpu (default: the one with memory and links of the cluster).

    Raises:
        ArgumentError: A setting is invalid, the devices are not equal, or no data sheet matches them.
        ProfileError: The model does not exist, no layout is possible, or the data sheet lacks a number.
        ScheduleError: A schedule does not exist.
    """
    require_kind("cluster", question.cluster, Cluster, "a Cluster; try pipesched.load_machine('dgx-h100')")
    shape = question.model if isinstance(question.model, ModelShape) else model_shape(question.model)
    cluster, trainer = question.cluster, question.trainer
    if trainer is not None:
        require_exportable_shape(shape, trainer, question.precision)
    _require_suited(cluster)
    given, device = question.gpu, cluster.devices[0]
    gpu = gpu_of(cluster) if given is None else given if isinstance(given, Gpu) else load_gpu(given)
    node = first_devices(cluster, [device.node for device in cluster.devices].count(device.node))
    memory_bytes = gpu.memory_bytes if device.memory_bytes is None else device.memory_bytes
    base = replace(
        _SOFTWARE[trainer],
        precision=question.precision,
        attention=question.attention,
        merges_copies=question.merges_copies,
        hides_experts=question.hides_experts,
        fit_factor=question.fit_factor,
    )
    rule, named = None if trainer is None else TrainerRule(trainer), question.schedules
    request = LayoutRequest(
        shape=shape,
        gpu=gpu,
        fabric=fabric_of(node),
        num_gpus=len(cluster.devices),
        memory_bytes=math.floor(memory_bytes * (1 - question.memory_margin)),
        batch_size=question.batch_size,
        base=base,
        schedules=_SCHEDULES[trainer] if named is None else plannable_schedules(named, asynchronous=False),
        depths=_counts(question.depths),
        chunks=_counts(question.chunks) or LAYOUT_CHUNKS,
        tensors=_counts(question.tensor),
        contexts=_counts(question.context),
        experts=_counts(question.expert),
        zeros=_zeros(_counts(question.zero), trainer),
        sizes=_counts(question.sizes) or LAYOUT_SIZES,
        recomputes=_recomputes(question.recompute, trainer),
        refusal=rule,
        is_uniform=rule is not None and rule.is_uniform,
        compiles_split=trainer != "torchtitan",
    )
    return LayoutSearch(request, ranking_of(request, question, question.progress), memory_bytes)


def gpu_of(cluster: Cluster) -> Gpu:
    """Return the data sheet with the memory of the devices, and with their links if several have that memory.

    Raises:
        ArgumentError: There is none, or more than one.
    """
    sheets = [load_gpu(name) for name in gpu_names()]
    like = [gpu for gpu in sheets if gpu.memory_bytes == cluster.devices[0].memory_bytes]
    if len(like) > 1:
        like = [gpu for gpu in like if gpu.link_bandwidth_bytes_per_s == cluster.intra.bandwidth_bytes_per_s]
    if len(like) != 1:
        raise ArgumentError(
            f"gpu: got none, and {'no' if not like else 'more than one'} data sheet with the memory and links of the "
            f"cluster, expected one of {', '.join(gpu_names())}, or a file (.json); try `gpu=h100`"
        )
    return like[0]


def _require_suited(cluster: Cluster) -> None:
    """Refuse devices that differ in speed, memory or links, and links of unlimited bandwidth.

    Raises:
        ArgumentError: Devices differ, or a link is unlimited.
    """
    kinds = {(device.speed, device.memory_bytes, device.op_s) for device in cluster.devices}
    if len(kinds) > 1 or cluster.links:
        raise ArgumentError(
            "cluster: got devices or links that differ, expected equal GPUs for a layout; try the nodes of a machine, "
            "as `load_machine('dgx-h100')`"
        )
    if len(cluster.devices) > 1 and math.isinf(cluster.intra.bandwidth_bytes_per_s):
        raise ArgumentError(
            "cluster: got links of unlimited bandwidth, expected links of GPUs; try the nodes of a machine, as "
            "`load_machine('dgx-h100')`"
        )


def _counts(counts: Counts | None) -> tuple[int, ...] | None:
    return None if counts is None else tuple_of(counts)


def _recomputes(choice: RecomputeChoice, trainer: TrainerName | None) -> tuple[Recomputation, ...]:
    """Return the recomputations to try; for torchtitan, selective recomputation is ``alternate``, by operation."""
    parts: tuple[Recomputation, ...] = ("alternate" if trainer == "torchtitan" else "selective", "full")
    none: tuple[Recomputation, ...] = ("none",)
    return none if choice == "no" else parts if choice == "yes" else none + parts


def _zeros(wanted: tuple[int, ...] | None, trainer: TrainerName | None) -> tuple[int, ...]:
    """Return the stages of ZeRO that are wanted and that the trainer has.

    Raises:
        ArgumentError: The trainer has no wanted stage.
    """
    has = _ZEROS[trainer]
    zeros = tuple(zero for zero in has if wanted is None or zero in wanted)
    if not zeros:
        raise ArgumentError(
            f"zero: got {', '.join(map(str, wanted or ()))}, expected stages among {', '.join(map(str, has))}, as "
            f"{trainer} has no other stages; try `zero={has[-1]}`"
        )
    return zeros
