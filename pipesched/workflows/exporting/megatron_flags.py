"""A setting as flags of Megatron-LM.

Names and rules are from Megatron-LM, core 0.16.1 (`megatron/training/arguments.py`, and in `megatron/core`:
`transformer/transformer_config.py`, `model_parallel_config.py`, of whose fields flags are made,
`pipeline_parallel/schedules.py`, `transformer/pipeline_parallel_layer_layout.py`); commit d98e8a64 has them too:

* 1F1B if the layout has one stage on a rank, interleaved 1F1B if it has several. Interleaved, N micro-batches
  pass all chunks before the next N: p <= N <= M, and M mod N is 0 (or at least p). The default of N is p, and p > 1.
* The layout has a letter for every layer (E embedding, t transformer layer, L output layer) and a bar between stages;
  stage s is on rank s mod p.
* The width follows from the number of processes. Either the copies of a stage or the ranks of a copy are side by side.
* The GPUs that share a layer are side by side, before the copies of a stage.
* Selective recomputation recomputes attention unless other modules are named; there is one granularity.
* The distributed optimizer is ZeRO-1. The tensor size of experts is the tensor size unless a flag gives another.
* Gradients of bfloat16 weights are float32 unless a flag says otherwise, and gradients of float16 weights are float16.
* Gathers of weights overlap only with the distributed optimizer and with overlapped sums of gradients.
* The all-to-all exchange of experts, also with merged copies (DeepEP), and one kernel for the products of all experts
  have flags; the defaults differ.
* Groups that share layers need CUDA_DEVICE_MAX_CONNECTIONS=1 on GPUs older than Blackwell.
* Recomputation keeps the input of every n-th transformer layer; n must divide the transformer layers of every stage.
"""

from __future__ import annotations

from math import gcd

from pipesched.profiles import FLOAT32_BYTES
from pipesched.profiles.costs import LayerSharding
from pipesched.schedules.builders import round_size
from pipesched.workflows import ArgumentError
from pipesched.workflows.exporting.pipeline_setting import (
    TRANSFORMER_COMMENT,
    PipelineSetting,
    bash_array,
    estimate_comments,
    recompute_comments,
)

_NAME = "Megatron-LM"
_PRECISIONS = {"bfloat16": "--bf16", "float16": "--fp16"}
_SOFTWARE: tuple[tuple[str, object, tuple[str, ...]], ...] = (
    ("precision", "float8", ("--fp8-format", "hybrid")),
    ("precision", "float4", ("--fp4-format", "e2m1")),
    ("gradient_bytes", 2, ("--grad-reduce-in-bf16",)),
    ("attention", "unfused", ("--attention-backend", "unfused")),
    ("attention", "flash_1", ("--attention-backend", "flash")),
    ("attention", "flash_2", ("--attention-backend", "flash")),
    ("has_fused_gradients", False, ("--no-gradient-accumulation-fusion",)),
    ("has_fused_pointwise", False, ("--no-bias-swiglu-fusion",)),
    ("has_fused_loss", True, ("--cross-entropy-loss-fusion",)),
    ("has_graphs", True, ("--cuda-graph-impl", "local")),
    ("hides_gradients", True, ("--overlap-grad-reduce",)),
)
"""A value of a field of `LayerSharding`, and its flag; other values are the trainer's defaults."""
_HAS: dict[str, tuple[object, ...]] = {
    "gradient_bytes": (2, 4),
    "attention": ("unfused", "flash_2", "fused"),
    "keeps_gathered": (False,),
    "has_whole_sums": (False,),
}
"""The values of fields of `LayerSharding` that the trainer has; it has all values of other fields."""


def megatron_flags(setting: PipelineSetting) -> str:
    """Return the flags of `setting`, as an array of bash.

    Raises:
        ArgumentError: Megatron-LM has no equivalent of the setting; the message names the part and the reason.
    """
    setting.require_exportable(_NAME)
    if setting.schedule not in ("1f1b", "interleaved"):
        raise ArgumentError(
            f"schedule: got {setting.schedule}, expected 1f1b or interleaved, as {_NAME} has no other schedule; "
            f"{setting.advice(_NAME, 'try one of them')}"
        )
    setting.require_transformer(_NAME)
    num_layers = sum(setting.partition) - 2
    stages = setting.cut("E" + "t" * num_layers + "L")
    options = [
        ["--pipeline-model-parallel-size", str(setting.num_ranks)],
        *_group_size(setting),
        *_sharing(setting),
        ["--num-layers", str(num_layers)],
        ["--pipeline-model-parallel-layout", "|".join("".join(stage) for stage in stages)],
        ["--micro-batch-size", str(setting.microbatch_size)],
        ["--global-batch-size", str(setting.batch_size)],
    ]
    comments = [f"{_NAME}, {setting.size_text}", TRANSFORMER_COMMENT]
    if setting.placement == "pipeline":
        options += [["--use-tp-pp-dp-mapping"]]
    if setting.recomputes:
        unit = gcd(*(stage.count("t") for stage in stages))
        options += [
            ["--recompute-granularity", "full"],
            ["--recompute-method", "uniform"],
            ["--recompute-num-layers", str(unit)],
        ]
        comments += recompute_comments(setting, unit)
    elif setting.sharding.recompute == "full":
        options += [
            ["--recompute-granularity", "full"],
            ["--recompute-method", "uniform"],
            ["--recompute-num-layers", "1"],
        ]
    elif setting.sharding.recompute == "selective":
        options += [["--recompute-granularity", "selective"]]
    if setting.dtype in _PRECISIONS:
        options += [[_PRECISIONS[setting.dtype]]]
    options += [list(flag) for name, value, flag in _SOFTWARE if getattr(setting.sharding, name) == value]
    options += _overlaps(setting.sharding)
    comments += estimate_comments(setting, _HAS, _NAME)
    if setting.sharding.tensor * setting.sharding.context > 1:
        comments += ["GPUs older than Blackwell need CUDA_DEVICE_MAX_CONNECTIONS=1 in the environment."]
    return bash_array(comments, options)


def _overlaps(sharding: LayerSharding) -> list[list[str]]:
    """Return the flags for exchanges that run beside the computation, and for gradients of float16 models."""
    options = []
    if sharding.precision == "float16" and sharding.gradient_bytes == FLOAT32_BYTES:
        options += [["--accumulate-allreduce-grads-in-fp32"]]
    if sharding.hides_weights and sharding.hides_gradients and sharding.zero:
        options += [["--overlap-param-gather"]]
    if sharding.hides_experts and sharding.expert > 1:
        options += [["--overlap-moe-expert-parallel-comm"]]
    if sharding.hides_tensor and sharding.has_sequence:
        options += [["--tp-comm-overlap"]]
    return options


def _sharing(setting: PipelineSetting) -> list[list[str]]:
    """Return the flags for the GPUs of a stage, or no flags for one GPU.

    Raises:
        ArgumentError: Megatron-LM has no such sharding, or no such recomputation.
    """
    sharding = setting.sharding
    if sharding.zero > 1:
        raise ArgumentError(
            f"zero: got {sharding.zero}, expected 0 or 1, as the distributed optimizer of {_NAME} splits only the "
            "optimizer states; estimate the profile with `zero=1`"
        )
    if sharding.recompute == "alternate":
        raise ArgumentError(
            f"recomputed layers: got alternate, expected none, selective or full, as {_NAME} cannot recompute single "
            "products; estimate the profile with one of them"
        )
    sizes = {
        "--tensor-model-parallel-size": sharding.tensor,
        "--context-parallel-size": sharding.context,
        "--expert-model-parallel-size": sharding.expert,
    }
    options = [[flag, str(size)] for flag, size in sizes.items() if size > 1]
    if sharding.expert > 1:
        options += [["--moe-token-dispatcher-type", "flex" if sharding.merges_copies else "alltoall"]]
        options += [["--moe-flex-dispatcher-backend", "deepep"]] if sharding.merges_copies else []
        options += [["--moe-grouped-gemm"]]
        if sharding.expert_tensor != sharding.tensor:
            options += [["--expert-tensor-parallel-size", str(sharding.expert_tensor)]]
    options += [["--sequence-parallel"]] if sharding.has_sequence else []
    return options + ([["--use-distributed-optimizer"]] if sharding.zero else [])


def _group_size(setting: PipelineSetting) -> list[list[str]]:
    """Return the flag for the number of micro-batches that pass all chunks together; empty if it is `num_ranks`."""
    if setting.schedule != "interleaved":
        return []
    num_ranks, num_microbatches = setting.num_ranks, setting.num_microbatches
    if num_ranks == 1 or setting.lists.num_stages == num_ranks or num_microbatches < num_ranks:
        raise ArgumentError(
            f"schedule: got interleaved with {setting.lists.num_stages} stages and {num_microbatches} micro-batches on "
            f"{num_ranks} ranks, expected at least 2 ranks, 2 stages on each and as many micro-batches as ranks, the "
            f"minimum for interleaving in {_NAME}; {setting.advice(_NAME, 'try 1f1b, or more micro-batches')}"
        )
    size = round_size(setting.schedule, num_ranks, num_microbatches)
    return [] if size == num_ranks else [["--microbatch-group-size-per-virtual-pipeline-stage", str(size)]]
