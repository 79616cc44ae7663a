"""The documented software of each source: plain data, with the origin of each setting."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from pipesched.profiles.costs import LayerSharding, MatmulPrecision, Recomputation
from pipesched.simulator.network_options import Sends
from published_rows.megatron_tests import megatron_test
from published_rows.row import PublishedRun

Meter: TypeAlias = Literal["allocated", "reserved", "device"]
"""Meter of a peak: bytes that PyTorch allocated, bytes that it reserved, or bytes of the GPU that are in use."""
CutRule: TypeAlias = Literal["equal", "filled", "by_cost"]
"""Cut of the blocks into stages: equal numbers of blocks; stages filled in turn; nanotron's rule with the head."""
LoggingRank: TypeAlias = Literal["fullest", "first", "last"]
"""Rank of the pipeline whose peak memory the source publishes."""


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
        row_settings: Function from a row to further fields, which depend on the row.
        second_settings: Fields of a second run where the first does not fit, if the source publishes the one that did.
        cut: Cut of the blocks into stages.
        sends: Return of a Send between stages.
        refuses_few: Fewer micro-batches than stages - 1 are an error.
        meter: Meter of the published peak.
        buffer_bytes: Function from a row to buffers besides weights, states and activations [bytes].
        step_gradient_bytes: Further bytes of a gradient in the shard that the step updates.
        logging_rank: Rank of the published peak.
        origins: Origins of the cut, the meter and the rank.
    """

    name: str
    prefix: str
    source: str
    settings: Mapping[str, Known]
    row_settings: Callable[[PublishedRun], Mapping[str, Any]] = field(default=lambda _run: {})
    second_settings: Mapping[str, Any] = field(default_factory=dict)
    cut: CutRule = "equal"
    sends: Sends = "posted"
    refuses_few: bool = False
    meter: Meter = "allocated"
    buffer_bytes: Callable[[PublishedRun], int] = field(default=lambda _run: 0)
    step_gradient_bytes: int = 0
    logging_rank: LoggingRank = "fullest"
    origins: Mapping[str, str] = field(default_factory=dict)


HOST_OF_NANOTRON_S = 330e-6
"""Time of the host for each GPU of a collective, in nanotron's pipelines with tensor parallelism; fitted to half of the
rows that notes call host-bound: blocks of models of 1, 3 and 80 billion parameters take the same time."""


def _of_nanotron(run: PublishedRun) -> Mapping[str, Any]:
    """Return the settings of a nanotron run that depend on its layout.

    Gradients: float32 accumulators; buckets of DistributedDataParallel of 2 bytes where replicas are
    (src/nanotron/trainer.py); and bfloat16 gradients of a micro-batch, which are held beside other micro-batches in a
    pipeline (src/nanotron/optim/gradient_accumulator.py).

    Gathered inputs: ``tp_recompute_allgather`` is on by default (src/nanotron/config/parallelism_config.py), as for the
    runs of two stages, the last ones of scripts/scaling_benchmarks.py, for the old runs, which notes mark, and for the
    models with untied embeddings, the largest. That all other runs keep the gathered inputs is supposed: only so their
    memory is explained.

    Host: in pipelines with tensor parallelism a block takes at least 3.2 ms times the GPUs of the group, whatever the
    model and the micro-batch; the cause is unknown.

    Sums: without ZeRO, DistributedDataParallel sums the gradients of a bucket beside the backward; supposed to be late
    in a pipeline, whose runs without ZeRO are the slower ones.
    """
    is_recomputed = run.pp == 2 or "old PP runs" in run.note or "untied" in run.note
    in_pipeline = run.pp > 1 and run.tp > 1
    return {
        **({"host_collective_s": HOST_OF_NANOTRON_S * run.tp} if in_pipeline else {}),
        "gradient_bytes": 4 + 2 * ((run.dp or 1) > 1) + 2 * (run.pp > 1),
        "keeps_gathered": not is_recomputed,
        "hides_gradients": run.pp == 1 and run.zero.startswith("0"),
    }


def _nanotron_buffer_bytes(run: PublishedRun) -> int:
    """Return the bytes of two gathered activations, for the inputs of products and for the gradients of outputs."""
    return 2 * 2 * (run.micro_batch or 1) * run.seq * run.hidden if run.tp > 1 else 0


def _of_bigscience(run: PublishedRun) -> Mapping[str, Any]:
    """Return the gradients of the runs with DeepSpeed's BF16_Optimizer, which holds bfloat16 and float32 ones."""
    return {"gradient_bytes": 6} if "Rebalancing layers" in run.note else {}


def _titan_loss_bytes(run: PublishedRun) -> int:
    """Return the bytes that PyTorch's own loss takes, and a loss in place does not.

    Its backward holds the logarithms, their gradient and the gradient of the logits, 12 bytes per logit in all; a loss
    in place holds 6.
    """
    logits = (run.micro_batch or 1) * run.seq // run.cp * (run.vocab or 0) // run.tp
    is_compiled = "compile" in run.note.lower()
    return (6 if is_compiled else 2) * logits if "202412" in run.source else 0


def _of_titan(run: PublishedRun) -> Mapping[str, Any]:
    """Return the settings of a torchtitan run that its note names; its selective checkpoints go by operator."""
    note = run.note.lower()
    settings: dict[str, Any] = {"hides_tensor": "async" in note and run.tp > 1}
    if "compile" in note:
        settings |= {"has_graphs": True, "has_fused_pointwise": True}
    if run.recompute.lower().startswith("selective"):
        settings["recompute"] = "alternate"
    return settings


def _of_mlmci(run: PublishedRun) -> Mapping[str, Any]:
    """Return the settings of a test of Megatron-LM by its flags."""
    test = megatron_test(run)
    if test is None:
        return {}
    return {
        "has_sequence": test.sequence and run.tp > 1,
        "attention": "unfused" if test.unfused else "fused",
        "has_fused_gradients": test.fused_gradients,
        "has_fused_loss": test.fused_loss,
        "hides_gradients": test.overlaps,
    }


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
            "gradient_bytes": Known(
                2,
                "bigscience, train/tr11-176B-ml/chronicles-prequel.md: float16, until the table Rebalancing layers, "
                "from which on 4 bytes more are held",
            ),
            "attention": Known("unfused", "supposed: FlashAttention is newer than these runs"),
            "has_fused_gradients": Known(False, "supposed: gradients are no float32"),
            "has_whole_sums": Known(
                True, "supposed: DeepSpeed, deepspeed/runtime/engine.py: buffered_allreduce_fallback"
            ),
            "recompute": Known("full", "bigscience, train/tr11-176B-ml/tr11-176B-ml.slurm: --checkpoint-activations"),
        },
        row_settings=_of_bigscience,
        cut="filled",
        sends="blocking",
        meter="device",
        buffer_bytes=lambda _run: 2_000_000_000,
        step_gradient_bytes=4,
        origins={
            "row_settings": "gradient_bytes 6 in the table Rebalancing layers: chronicles-prequel.md, BF16_Optimizer",
            "cut": "bigscience, train/tr11-176B-ml/chronicles-prequel.md: 78 blocks on 12 stages leave 1 to the last",
            "sends": "DeepSpeed, deepspeed/runtime/pipe/p2p.py: send, on the stream of the computation",
            "meter": "bigscience, train/tr11-176B-ml/chronicles-prequel.md: nvidia-smi on the first and the last node",
            "buffer_bytes": "DeepSpeed, deepspeed/runtime/zero/config.py: reduce and allgather buckets of 5e8 elements",
            "step_gradient_bytes": "DeepSpeed, deepspeed/runtime/zero/stage_1_and_2.py: float32 gradients of the shard",
        },
    ),
    Trainer(
        name="nanotron (Ultra-Scale Playbook)",
        prefix="nanotron",
        source="nanotron",
        settings={
            "has_sequence": Known(True, "nanotron, scripts/scaling_benchmarks.py: TP_MODES REDUCE_SCATTER"),
            "attention": Known("flash_2", "nanotron, src/nanotron/models/llama.py: flash_attn_varlen_func"),
            "has_fused_gradients": Known(
                False, "nanotron, src/nanotron/optim/gradient_accumulator.py: bfloat16 gradients are added in float32"
            ),
            "has_fused_pointwise": Known(False, "nanotron, src/nanotron/models/llama.py: GLUActivation"),
        },
        row_settings=_of_nanotron,
        second_settings={"keeps_gathered": False},
        buffer_bytes=_nanotron_buffer_bytes,
        cut="by_cost",
        refuses_few=True,
        logging_rank="first",
        origins={
            "row_settings": "nanotron, src/nanotron/trainer.py, optim/gradient_accumulator.py: bytes of gradients; "
            "keeps_gathered by stages, note and model, and host_collective_s of 330 us for each GPU of the tensor "
            "group in pipelines: fitted, cause unknown",
            "cut": "nanotron, src/nanotron/models/base.py: build_model; a stage ends with its share of the costs",
            "buffer_bytes": "nanotron, src/nanotron/parallel/tensor_parallel/functional.py: MemoryBuffer",
            "second_settings": "supposed: the table has one run of a layout, and scripts/scaling_benchmarks.py skips "
            "successful ones",
            "meter": "nanotron, src/nanotron/helpers.py: create_table_log has both; allocated bytes are supposed",
            "refuses_few": "nanotron, src/nanotron/parallel/pipeline_parallel/engine.py: train_batch_iter",
            "logging_rank": "nanotron, src/nanotron/helpers.py: log_throughput, of the first rank",
        },
    ),
    Trainer(
        name="Megatron-LM CI",
        prefix="mlmci",
        source="NVIDIA/Megatron-LM",
        settings={},
        row_settings=_of_mlmci,
        logging_rank="last",
        origins={
            "row_settings": "Megatron-LM, tests/functional_tests/test_cases: model_config.yaml",
            "logging_rank": "each note: max allocated of the last rank",
        },
    ),
    Trainer(
        name="Megatron-Bridge",
        prefix="bridge",
        source="Megatron-Bridge",
        settings={
            "has_sequence": Known(True, "supposed"),
            "has_fused_loss": Known(
                True, "Megatron-Bridge, scripts/performance/utils/overrides.py: cross_entropy_fusion_impl te"
            ),
            "hides_gradients": Known(
                True, "Megatron-Bridge, src/megatron/bridge/training/comm_overlap.py: overlap_grad_reduce"
            ),
            "hides_weights": Known(
                True, "Megatron-Bridge, src/megatron/bridge/training/comm_overlap.py: overlap_param_gather"
            ),
            "hides_tensor": Known(True, "supposed: tp_comm_overlap of the recipes"),
            "merges_copies": Known(
                True, "Megatron-Bridge, scripts/performance/configs/qwen: hybridep; supposed for other models"
            ),
            "gradient_bytes": Known(
                2, "Megatron-Bridge, src/megatron/bridge/perf_recipes/_common.py: grad_reduce_in_fp32 is off"
            ),
        },
    ),
    Trainer(
        name="torchtitan",
        prefix="titan",
        source="torchtitan",
        settings={
            "zero": Known(3, "column zero"),
            "has_sequence": Known(True, "torchtitan, torchtitan/parallelisms/parallelize_llama.py: SequenceParallel"),
            "gradient_bytes": Known(
                4, "torchtitan, torchtitan/parallelisms/parallelize_llama.py: reduce_dtype float32"
            ),
            "attention": Known(
                "flash_2", "torchtitan, torchtitan/models/llama/model.py: scaled_dot_product_attention of PyTorch"
            ),
            "has_fused_gradients": Known(False, "supposed: autograd of PyTorch"),
            "has_fused_pointwise": Known(False, "supposed: autograd of PyTorch; notes name runs that are compiled"),
            "hides_gradients": Known(True, "supposed: prefetches of FSDP2"),
            "hides_weights": Known(True, "supposed: prefetches of FSDP2"),
        },
        row_settings=_of_titan,
        buffer_bytes=_titan_loss_bytes,
        meter="reserved",
        origins={
            "row_settings": "each note: compile, asynchronous tensor parallelism; selective checkpoints go by operator",
            "meter": "supposed: max_reserved_gib of torchtitan's metrics",
            "buffer_bytes": "torchtitan, train.py of 2024: cross_entropy of float32 logits, which is not compiled",
        },
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
            "has_fused_loss": Known(
                True, "llm-foundry, llmfoundry/models/mpt/modeling_mpt.py: loss_fn is fused_crossentropy"
            ),
            "gradient_bytes": Known(4, "supposed"),
            "attention": Known(
                "flash_1", "llm-foundry, scripts/train/benchmarking/submit_benchmarks.py: attn_impl triton until 2024"
            ),
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
            "gradient_bytes": Known(2, "supposed: gradients in the number type of the weights"),
            "attention": Known("flash_2", "InternEvo, configs/7B_sft.py: use_flash_attn; version 2 is supposed"),
            "has_fused_gradients": Known(False, "supposed"),
            "hides_gradients": Known(True, "InternEvo, configs/7B_sft.py: overlap_sync_grad"),
            "hides_weights": Known(False, "InternEvo, configs/7B_sft.py: overlap_sync_param is off"),
        },
    ),
)
OTHER = Trainer(name="another trainer", prefix="", source="", settings={"zero": Known(1, "supposed")})
"""Settings of a row whose source is unknown: the settings of Megatron-LM."""


def trainer_of(run: PublishedRun) -> Trainer:
    """Return the trainer of a run by its source, or else by its name."""
    for trainer in TRAINERS:
        if trainer.source.lower() in run.source.lower():
            return trainer
    return next((trainer for trainer in TRAINERS if run.id.startswith(f"{trainer.prefix}-")), OTHER)


def sharding_of(run: PublishedRun, trainer: Trainer, data: int) -> LayerSharding:
    """Return the split of the run's layers; `data` is the number of copies of the pipeline."""
    settings = {name: known.value for name, known in trainer.settings.items()}
    settings["has_sequence"] = settings.get("has_sequence", False) and run.tp > 1
    settings["zero"] = settings.get("zero", _zero(run))
    settings["recompute"] = _recompute(run) or settings.get("recompute", "none")
    settings |= trainer.row_settings(run)
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
    if "fp4" in text:
        return "float4"
    if "fp8" in text:
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
