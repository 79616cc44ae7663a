"""The documented software of each source: plain data, with the origin of each setting."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from pipesched.profiles.inside_stage.sharding import LayerSharding, MatmulPrecision, Recomputation
from published_rows.row import PublishedRun

Meter: TypeAlias = Literal["allocated", "reserved", "device"]
"""Meter of a peak: bytes that PyTorch allocated, bytes that it reserved, or bytes of the GPU that are in use."""
CutRule: TypeAlias = Literal["equal", "by_cost"]
"""Cut of the blocks into stages: equal numbers of blocks; or nanotron's rule, which counts the head."""


class Known(NamedTuple):
    """The value of a setting, and its origin."""

    value: Any
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """The software of a source.

    Attributes:
        name: Name of the trainer; the rows' names begin with `prefix`.
        prefix: First part of the names of its rows.
        source: Part of the column source.
        settings: Fields of `LayerSharding` other than their defaults, each with its origin.
        cut: Cut of the blocks into stages.
        refuses_few: Fewer micro-batches than stages - 1 are an error.
        meter: Meter of the published peak.
        logs_last_rank: The published peak is of the last rank, otherwise of the fullest rank.
        origins: Origins of the cut, the meter and the rank.
    """

    name: str
    prefix: str
    source: str
    settings: Mapping[str, Known]
    cut: CutRule = "equal"
    refuses_few: bool = False
    meter: Meter = "allocated"
    logs_last_rank: bool = False
    origins: Mapping[str, str] = field(default_factory=dict)


TRAINERS = (
    Trainer(
        name="Megatron-LM on B200 (SimuMax)",
        prefix="simumax",
        source="SimuMax",
        settings={
            "zero": Known(1, "`dist optimizer` in each note"),
            "has_sequence": Known(True, "supposed"),
            "has_fused_loss": Known(True, "`CE fusion` in each note"),
            "gradient_bytes": Known(4, "`fp32 grad accumulation` in each note"),
            "hides_gradients": Known(False, "`no overlap` in each note"),
        },
    ),
    Trainer(
        name="Megatron-DeepSpeed (BigScience)",
        prefix="bigscience",
        source="bigscience",
        settings={
            "zero": Known(1, "column zero"),
            "gradient_bytes": Known(6, "bfloat16 and float32: DeepSpeed, deepspeed/runtime/bf16_optimizer.py"),
            "attention": Known("unfused", "supposed: FlashAttention is newer than these runs"),
            "has_fused_gradients": Known(False, "supposed"),
            "recompute": Known("full", "column recompute"),
        },
        meter="device",
        origins={"meter": "notes: nvidia-smi on first and last nodes"},
    ),
    Trainer(
        name="nanotron (Ultra-Scale Playbook)",
        prefix="nanotron",
        source="nanotron",
        settings={
            "has_sequence": Known(True, "supposed: tp_mode REDUCE_SCATTER"),
            "gradient_bytes": Known(4, "supposed: accumulate_grad_in_fp32"),
            "attention": Known("flash_2", "nanotron, src/nanotron/models/llama.py: flash_attn_varlen_func"),
            "has_fused_gradients": Known(False, "supposed"),
            "has_fused_pointwise": Known(False, "nanotron, src/nanotron/models/llama.py: GLUActivation"),
        },
        cut="by_cost",
        refuses_few=True,
        origins={
            "cut": "nanotron, src/nanotron/models/base.py: build_model",
            "refuses_few": "nanotron, src/nanotron/parallel/pipeline_parallel/engine.py: train_batch_iter",
        },
    ),
    Trainer(
        name="Megatron-LM CI",
        prefix="mlmci",
        source="NVIDIA/Megatron-LM",
        settings={},
        logs_last_rank=True,
        origins={"logs_last_rank": "each note: max allocated of the last rank"},
    ),
    Trainer(
        name="Megatron-Bridge",
        prefix="bridge",
        source="Megatron-Bridge",
        settings={
            "has_sequence": Known(True, "supposed"),
            "has_fused_loss": Known(True, "supposed"),
            "hides_gradients": Known(True, "supposed: overlap_grad_reduce"),
            "hides_weights": Known(True, "supposed: overlap_param_gather"),
            "hides_tensor": Known(True, "supposed: tp_comm_overlap"),
            "gradient_bytes": Known(2, "supposed"),
        },
    ),
    Trainer(
        name="torchtitan",
        prefix="titan",
        source="torchtitan",
        settings={
            "zero": Known(3, "column zero"),
            "has_sequence": Known(True, "supposed"),
            "gradient_bytes": Known(4, "supposed"),
            "attention": Known("flash_2", "supposed: scaled_dot_product_attention of PyTorch"),
            "has_fused_gradients": Known(False, "supposed"),
            "hides_gradients": Known(True, "supposed: FSDP2"),
            "hides_weights": Known(True, "supposed: FSDP2"),
        },
        meter="reserved",
        origins={"meter": "supposed: max_reserved_gib"},
    ),
    Trainer(
        name="Primus",
        prefix="primus",
        source="Primus",
        settings={"zero": Known(1, "supposed: use_distributed_optimizer")},
    ),
    Trainer(
        name="llm-foundry",
        prefix="foundry",
        source="llm-foundry",
        settings={
            "gradient_bytes": Known(4, "supposed"),
            "attention": Known("flash_1", "supposed: attn_impl triton"),
            "has_fused_gradients": Known(False, "supposed"),
            "hides_gradients": Known(True, "supposed: FSDP"),
            "hides_weights": Known(True, "supposed: FSDP"),
        },
    ),
    Trainer(
        name="InternEvo",
        prefix="internevo",
        source="InternEvo",
        settings={
            "zero": Known(1, "column zero: optimizer states are split over 8 GPUs"),
            "gradient_bytes": Known(2, "supposed"),
            "attention": Known("flash_2", "supposed"),
            "has_fused_gradients": Known(False, "supposed"),
            "hides_gradients": Known(True, "supposed"),
            "hides_weights": Known(True, "supposed"),
        },
    ),
)
OTHER = Trainer(name="another trainer", prefix="", source="", settings={"zero": Known(1, "supposed")})
"""Settings of a row whose source is unknown: those of Megatron-LM."""


def trainer_of(run: PublishedRun) -> Trainer:
    """Return the trainer of a run by its source, or else by its name."""
    for trainer in TRAINERS:
        if trainer.source.lower() in run.source.lower():
            return trainer
    return next((trainer for trainer in TRAINERS if run.id.startswith(f"{trainer.prefix}-")), OTHER)


TOY_HIDDEN = 2048
"""Width of the activations below which a test of Megatron-LM CI is a toy."""


def sharding_of(run: PublishedRun, trainer: Trainer, data: int) -> LayerSharding:
    """Return the split of the run's layers; `data` is the number of copies of the pipeline."""
    settings = {name: known.value for name, known in trainer.settings.items()}
    settings["has_sequence"] = settings.get("has_sequence", False) and run.tp > 1
    settings["zero"] = settings.get("zero", _zero(run))
    settings["recompute"] = _recompute(run) or settings.get("recompute", "none")
    if "async" in run.note.lower() and run.tp > 1:
        settings["hides_tensor"] = True
    if "compile" in run.note.lower():
        settings |= {"has_graphs": True, "has_fused_pointwise": True}
    if trainer.prefix == "mlmci" and run.hidden < TOY_HIDDEN and run.cp == 1:
        settings["attention"] = "unfused"  # supposed: these tests are deterministic; context parallelism needs a kernel
    return LayerSharding(
        tensor=run.tp, context=run.cp, expert=run.ep, data=data, precision=_precision(run.dtype), **settings
    )


def _zero(run: PublishedRun) -> int:
    text = run.zero.lower()
    if "fsdp" in text or "full_shard" in text:
        return 2 if "grad_op" in text else 3
    stage = re.match(r"(?:zero-?)?([0-3])", text)
    return int(stage[1]) if stage else 0


def _precision(dtype: str) -> MatmulPrecision:
    text = dtype.lower()
    if "fp8" in text or "fp4" in text:
        return "float8"
    if text.startswith("fp16"):
        return "float16"
    return "float32" if text.startswith("fp32") else "bfloat16"


def _recompute(run: PublishedRun) -> Recomputation | None:
    """Return the recomputation that the row says, or None."""
    text = run.recompute.lower()
    if text.startswith("none"):
        return "none"
    if text.startswith("full"):
        return "full"
    return "selective" if text.startswith("selective") else None
