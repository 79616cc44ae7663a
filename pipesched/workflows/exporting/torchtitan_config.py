"""A setting as sections of torchtitan's configuration file.

Names and rules are from torchtitan 0.2.2, the last release that reads a file (`config/job_config.py`,
`distributed/pipeline_parallel.py`, `distributed/activation_checkpoint.py`, `models/llama3/infra/parallelize.py`,
`components/quantization/float8.py`, `train.py`), and from `torch.distributed.pipelining` 2.13 (`stage.py`):

* PyTorch's schedules have names. Any other list is a CSV file, for which torchtitan must still know the placement of
  the stages: a loop (stage s on rank s mod p), or a V (stages r and 2p - 1 - r on rank r), as under ZBVZeroBubble.
* PyTorch's 1F1B refuses fewer micro-batches than ranks; as a CSV file it runs.
* A local batch is the batch of one copy in a step. One rank is no pipeline: it accumulates local batches.
* The mesh has pipelines outside and GPUs that share a layer inside: the copies of a stage are side by side.
* GPUs that share a layer share the sequence too. An expert's matrices are on one GPU, or split over the tensor group.
* FSDP shards the weights over copies and context groups. Weights are replicated only where copies are the only
  parallelism.
* In a pipeline, FSDP sums gradients after the last micro-batch: that is ZeRO-1, or ZeRO-3 if it frees the gathered
  weights after each forward. On one rank it sums each micro-batch's gradients: ZeRO-2, or ZeRO-3.
* If recomputation is full, each transformer layer keeps its input. Selective recomputation goes by operation: the
  output of attention is kept, every second matrix product is computed again.
* Mixed precision comes with FSDP, or without any split of the model. Else ``training.dtype`` sets the data type of
  computation, weights and optimizer. There is no float16. Float8 leaves the output layer in bfloat16.
* Attention is scaled_dot_product_attention or FlexAttention, neither of which keeps its whole matrix.
* ``torch.compile`` fuses kernels that only move bytes, and does not launch kernels one by one. Asynchronous tensor
  parallelism and fast float8 need it. PyTorch's pipelines refuse compiled layers where I and W are ops of their own
  (`_check_torch_compile_compatibility` in `schedules.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from pipesched.schedules.formats import write_csv
from pipesched.schedules.ops import stages_of
from pipesched.workflows import ArgumentError
from pipesched.workflows.exporting.pipeline_setting import (
    TRANSFORMER_COMMENT,
    PipelineSetting,
    estimate_comments,
    recompute_comments,
)

_Value: TypeAlias = bool | int | str | Sequence[str] | Sequence[Sequence[str]]

_NAME = "torchtitan"

_SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "looped_bfs": "LoopedBFS",
    "interleaved_zb": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipe_v": "DualPipeV",
}
"""PyTorch's names of the schedules whose lists are the same."""

CSV_FILE = "pipeline_schedule.csv"
_CSV_MARK = "#: "
"""Begin of a line of the schedule's file."""
_DTYPES = ("bfloat16", "float32")
"""The data types of mixed precision."""
_USE_COMMENT = (
    "Sections of a --job.config_file of torchtitan 0.2; add [model], [optimizer], the sequence length and the data."
)
_GATHERS = 3
"""Stage of ZeRO that gathers weights in each pass."""


def torchtitan_config(setting: PipelineSetting) -> str:
    """Return `setting` as a TOML configuration; a schedule unknown to torchtitan is in comments, as a CSV file.

    Raises:
        ArgumentError: torchtitan has no equivalent of the setting; the message names the part and the reason.
        ScheduleError: PyTorch's CSV cannot express the schedule.
    """
    setting.require_exportable(_NAME)
    setting.require_transformer(_NAME)
    setting.require_copies_side_by_side(_NAME)
    _require_known(setting)
    is_mixed = _is_sharded(setting) or _is_alone(setting)
    is_all_bfloat16 = setting.dtype == "bfloat16" and not is_mixed
    file, pipeline = _pipeline(setting)
    sections: dict[str, dict[str, _Value]] = {
        "training": {
            "local_batch_size": setting.microbatch_size * (setting.num_microbatches if setting.num_ranks > 1 else 1),
            "global_batch_size": setting.batch_size,
            **({"dtype": "bfloat16"} if is_all_bfloat16 else {}),
            **({"mixed_precision_param": setting.dtype} if is_mixed and setting.dtype in _DTYPES else {}),
        },
        "parallelism": {**_copies(setting), **_sharing(setting), **pipeline},
        "activation_checkpoint": _recomputation(setting),
        **_kernels(setting),
    }
    comments = [f"{_NAME}, {setting.size_text}", _USE_COMMENT, TRANSFORMER_COMMENT]
    if file:
        comments += [f"The schedule: sed -n 's/^{_CSV_MARK}//p' THIS_FILE > {CSV_FILE}"]
    if setting.recomputes:
        comments += recompute_comments(setting, 1)
    elif setting.sharding.recompute == "selective":
        comments += ["torchtitan also recomputes every second matrix product; the setting recomputes only attention."]
    if is_all_bfloat16:
        comments += [
            "Weights and optimizer states are bfloat16 too: mixed precision in torchtitan needs sharded weights."
        ]
    if _is_sharded(setting) and not setting.sharding.zero:
        comments += ["Copies share the optimizer states; in the setting each copy holds all of them."]
    comments += estimate_comments(setting, _software(setting), _NAME)
    return _toml(comments, file, sections)


def _toml(comments: Sequence[str], file: Sequence[str], sections: Mapping[str, Mapping[str, _Value]]) -> str:
    """Return sections as TOML: strings, numbers and lists are written as in JSON, a list of lists row by row."""
    lines = [*(f"# {comment}" for comment in comments), *(f"{_CSV_MARK}{row}" for row in file)]
    for name, section in sections.items():
        lines += ["", f"[{name}]"]
        for key, value in section.items():
            is_nested = isinstance(value, list) and isinstance(value[0], list)
            rows = [f"    {json.dumps(row)}," for row in value] if is_nested and isinstance(value, list) else []
            lines += [f"{key} = [", *rows, "]"] if rows else [f"{key} = {json.dumps(value)}"]
    return "\n".join([*lines, ""])


def _require_known(setting: PipelineSetting) -> None:
    """Refuse numbers and splits that torchtitan does not have.

    Raises:
        ArgumentError: The setting has one.
    """
    sharding = setting.sharding
    if setting.dtype == "float16":
        raise ArgumentError(
            f"dtype: got float16, expected bfloat16 or float32, as {_NAME} has no other type; profile in one of them"
        )
    if sharding.precision == "float4" or (sharding.precision == "float8" and sharding.expert > 1):
        raise ArgumentError(
            f"precision: got {sharding.precision}, expected bfloat16, float32, or float8 without expert parallelism, "
            f"as {_NAME} has no other precision; estimate the profile in one of them"
        )
    if _is_compiled(setting) and setting.lists.columns.splits_backward:
        raise ArgumentError(
            f"schedule: got {setting.schedule}, which splits the backward of compiled layers, expected a whole "
            f"backward, as PyTorch's pipelines do not split compiled layers; {setting.advice(_NAME, 'try 1f1b')}"
        )
    if sharding.tensor > 1 and not sharding.has_sequence:
        raise ArgumentError(
            f"sequence parallelism: got none with tensor parallelism of {sharding.tensor}, expected both, as {_NAME} "
            "always has both; estimate the profile with sequence parallelism"
        )
    if sharding.expert > 1 and sharding.expert_tensor not in (1, sharding.tensor):
        raise ArgumentError(
            f"expert tensor parallelism: got {sharding.expert_tensor}, expected 1 or the tensor parallelism of "
            f"{sharding.tensor}, as {_NAME} has no other size; estimate the profile with one of them"
        )
    _require_zero(setting)


def _require_zero(setting: PipelineSetting) -> None:
    """Refuse a stage of ZeRO that FSDP does not have here.

    Raises:
        ArgumentError: The setting has one.
    """
    sharding = setting.sharding
    if sharding.data * sharding.context == 1:
        return
    if setting.num_ranks > 1:
        expected, reason = [1, 3], "sums gradients once per step in a pipeline"
    elif sharding.tensor * sharding.context == 1:
        expected, reason = [0, 2, 3], "shards gradients with the optimizer states"
    else:
        expected, reason = [2, 3], "shards gradients with the optimizer states"
    if sharding.zero not in expected:
        raise ArgumentError(
            f"zero: got {sharding.zero}, expected {' or '.join(map(str, expected))}, as {_NAME} {reason}; estimate the "
            f"profile with `zero={expected[-1]}`"
        )


def _is_alone(setting: PipelineSetting) -> bool:
    """Whether a process has the whole model: copies are the only parallelism, and are not sharded."""
    sharding = setting.sharding
    return setting.num_ranks * sharding.tensor * sharding.context * sharding.expert == 1 and not sharding.zero


def _is_sharded(setting: PipelineSetting) -> bool:
    """Whether FSDP shards the weights."""
    return not _is_alone(setting) and setting.num_copies * setting.sharding.context > 1


def _copies(setting: PipelineSetting) -> dict[str, _Value]:
    """Return the options for the copies of a stage."""
    sharding, copies = setting.sharding, setting.num_copies
    shards = 1 if _is_alone(setting) else sharding.data if sharding.zero else copies
    options: dict[str, _Value] = {
        "data_parallel_replicate_degree": copies // shards,
        "data_parallel_shard_degree": shards,
    }
    if _is_sharded(setting):
        options["fsdp_reshard_after_forward"] = "always" if sharding.zero == _GATHERS else "never"
    return options


def _sharing(setting: PipelineSetting) -> dict[str, _Value]:
    """Return the options for the GPUs of a stage, or no options for one GPU."""
    sharding = setting.sharding
    degrees = {
        "tensor_parallel_degree": sharding.tensor,
        "context_parallel_degree": sharding.context,
        "expert_parallel_degree": sharding.expert,
        "expert_tensor_parallel_degree": sharding.expert_tensor,
    }
    options: dict[str, _Value] = {name: degree for name, degree in degrees.items() if degree > 1}
    if sharding.merges_copies and sharding.expert > 1:
        options["expert_parallel_comm_backend"] = "deepep"
    return options | ({"enable_async_tensor_parallel": True} if _hides_tensor(setting) else {})


def _recomputation(setting: PipelineSetting) -> dict[str, _Value]:
    if setting.recomputes:
        return {"mode": "full"}
    if setting.sharding.recompute in ("selective", "alternate"):
        return {"mode": "selective", "selective_ac_option": "op"}
    return {"mode": setting.sharding.recompute}


def _kernels(setting: PipelineSetting) -> dict[str, dict[str, _Value]]:
    """Return the sections on kernels; torchtitan's defaults have none."""
    sections: dict[str, dict[str, _Value]] = {}
    if _is_compiled(setting):
        sections["compile"] = {"enable": True, "components": ["model", "loss"]}
    if setting.sharding.precision == "float8":
        sections["model"] = {"converters": ["quantize.linear.float8"]}
        sections["quantize.linear.float8"] = {"filter_fqns": ["output"]}
    return sections


def _hides_tensor(setting: PipelineSetting) -> bool:
    return setting.sharding.hides_tensor and setting.sharding.tensor > 1


def _is_compiled(setting: PipelineSetting) -> bool:
    return setting.sharding.has_graphs or _hides_tensor(setting) or setting.sharding.precision == "float8"


def _software(setting: PipelineSetting) -> dict[str, tuple[object, ...]]:
    """Return, for some fields of an estimate, the values that torchtitan supports; others may have any."""
    is_compiled = _is_compiled(setting)
    return {
        "gradient_bytes": (4,),
        "attention": ("flash_2", "fused"),
        "has_fused_gradients": (False,),
        "has_fused_pointwise": (is_compiled,),
        "has_fused_loss": (False,),
        "keeps_gathered": (False,),
        "has_graphs": (is_compiled,),
        "has_whole_sums": (False,),
        "hides_experts": (False,),
        "hides_gradients": (True,),
        "hides_weights": (True,),
    }


def _pipeline(setting: PipelineSetting) -> tuple[Sequence[str], dict[str, _Value]]:
    """Return the rows of the schedule's file, if it has no name, and the options of the pipeline."""
    if setting.num_ranks == 1:
        if setting.schedule != "1f1b":
            raise ArgumentError(
                f"schedule: got {setting.schedule} on one rank, expected 1f1b, as {_NAME} has no pipeline there; "
                f"{setting.advice(_NAME, 'try 1f1b')}"
            )
        return (), {"pipeline_parallel_degree": 1}
    layers = [["tok_embeddings"], *([f"layers.{index}"] for index in range(sum(setting.partition) - 2))]
    parts = [[name for layer in part for name in layer] for part in setting.cut([*layers, ["norm", "output"]])]
    name, file = _SCHEDULES.get(setting.schedule), list[str]()
    csv_option: dict[str, _Value] = {}
    if name is None or (name == "1F1B" and setting.num_microbatches < setting.num_ranks):
        name, csv_option = _placing(setting), {"pipeline_parallel_schedule_csv": CSV_FILE}
        file = write_csv(setting.lists).splitlines()
    return file, {
        "pipeline_parallel_degree": setting.num_ranks,
        "pipeline_parallel_schedule": name,
        **csv_option,
        "pipeline_parallel_microbatch_size": setting.microbatch_size,
        "module_fqns_per_model_part": parts,
    }


def _placing(setting: PipelineSetting) -> str:
    """Return PyTorch's schedule with the stage placement of the lists."""
    p, num_stages = setting.num_ranks, setting.lists.num_stages
    rows = [stages_of(row) for row in setting.lists.ops]
    if rows == [tuple(range(rank, num_stages, p)) for rank in range(p)]:
        return "PipelineScheduleMulti"
    if rows == [(rank, 2 * p - 1 - rank) for rank in range(p)]:
        return "ZBVZeroBubble"
    raise ArgumentError(
        f"schedule: got {setting.schedule}, whose rank 0 has stages {', '.join(map(str, rows[0]))} of {num_stages}, "
        f"expected stages in a loop or a V, each on one rank, for {_NAME}; {setting.advice(_NAME, 'try 1f1b')}"
    )
