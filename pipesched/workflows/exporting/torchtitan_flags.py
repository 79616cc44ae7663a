"""A setting as command-line overrides of torchtitan.

Names and rules are from torchtitan 0.3.0 (`config/configs.py`, `distributed/pipeline_parallel.py`,
`distributed/activation_checkpoint.py`) and `torch.distributed.pipelining` 2.13:

* PyTorch's schedules have names. Any other list is a CSV file, for which torchtitan must still know the placement of
  the stages: a loop (stage s on rank s mod p), or a V (stages r and 2p - 1 - r on rank r), as under ZBVZeroBubble.
* PyTorch's 1F1B refuses fewer micro-batches than ranks; as a CSV file it runs.
* A local batch is the batch of one copy in a step. One rank is no pipeline: it accumulates local batches.
* The mesh has pipelines outside and GPUs that share a layer inside: the copies of a stage are side by side.
* GPUs that share a layer share the sequence too, unless sequence parallelism is off.
* Recomputation is a subcommand, so it comes last. If it is full, each transformer layer keeps its input. Selective
  recomputation goes by operation: the output of attention is kept, every second matrix product is computed
  again.
* Mixed precision comes with sharded weights, or without a pipeline: here ``training.dtype`` alone sets the data type
  of computation, weights and optimizer. There is no float16.
* Attention is scaled_dot_product_attention or FlexAttention, neither of which keeps its whole matrix.
"""

from __future__ import annotations

from pipesched.profiles.costs import LINEAR_BYTES
from pipesched.schedules.formats import write_csv
from pipesched.schedules.ops import stages_of
from pipesched.workflows import ArgumentError
from pipesched.workflows.exporting.pipeline_setting import (
    TRANSFORMER_COMMENT,
    PipelineSetting,
    bash_array,
    recompute_comments,
)

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


def torchtitan_flags(setting: PipelineSetting) -> str:
    """Return the overrides of `setting`, as an array of bash; a schedule without a name is written to a file first.

    Raises:
        ArgumentError: torchtitan has no equivalent of the setting; the message names the part and the reason.
        ScheduleError: PyTorch's CSV cannot express the schedule.
    """
    setting.require_exportable(_NAME)
    setting.require_transformer(_NAME)
    setting.require_copies_side_by_side(_NAME)
    if setting.dtype == "float16":
        raise ArgumentError(
            f"dtype: got float16, expected bfloat16 or float32, as {_NAME} has no other; profile in one of them"
        )
    if setting.sharding.precision in LINEAR_BYTES:
        raise ArgumentError(
            f"precision: got {setting.sharding.precision}, expected bfloat16 or float32, as no flag of {_NAME} alone "
            "turns it on; estimate the profile in one of them"
        )
    is_all_bfloat16 = setting.dtype == "bfloat16" and not setting.sharding.zero
    local_batch_size = setting.microbatch_size * (setting.num_microbatches if setting.num_ranks > 1 else 1)
    file, pipeline = _pipeline(setting)
    options = [
        *_copies(setting),
        *_sharing(setting),
        *pipeline,
        ["--training.local_batch_size", str(local_batch_size)],
        ["--training.global_batch_size", str(setting.batch_size)],
        *([["--training.dtype", "bfloat16"]] if is_all_bfloat16 else []),
        [f"activation_checkpoint:{_recomputation(setting)}"],
    ]
    comments = [f"{_NAME}, {setting.size_text}", TRANSFORMER_COMMENT, "The last word ends the command line."]
    if setting.recomputes:
        comments += recompute_comments(setting, 1)
    elif setting.sharding.recompute == "selective":
        comments += ["Recomputation is of every other product too, where the setting's is of attention alone."]
    if is_all_bfloat16:
        comments += ["Weights and the optimizer's states are bfloat16 too: mixed precision takes sharded weights here."]
    return file + bash_array(comments, options)


def _recomputation(setting: PipelineSetting) -> str:
    if setting.recomputes:
        return "full"
    return "selective" if setting.sharding.recompute == "alternate" else setting.sharding.recompute


def _sharing(setting: PipelineSetting) -> list[list[str]]:
    """Return the options for the GPUs of a stage, or no options for one GPU."""
    sharding = setting.sharding
    degrees = {
        "tensor_parallel_degree": sharding.tensor,
        "context_parallel_degree": sharding.context,
        "expert_parallel_degree": sharding.expert,
        "expert_tensor_parallel_degree": sharding.expert_tensor,
    }
    options = [[f"--parallelism.{name}", str(degree)] for name, degree in degrees.items() if degree > 1]
    if sharding.tensor > 1 and not sharding.has_sequence:
        options += [["--parallelism.no-enable-sequence-parallel"]]
    return options


def _copies(setting: PipelineSetting) -> list[list[str]]:
    """Return the options for the copies of a stage.

    Raises:
        ArgumentError: torchtitan shards no optimizer states alone.
    """
    zero, data = setting.sharding.zero, setting.sharding.data
    if zero == 1:
        raise ArgumentError(
            f"zero: got 1, expected 0, 2 or 3, as {_NAME} shards gradients with the optimizer states; estimate the "
            "profile with `zero=2`"
        )
    shards = data if zero else 1
    options = [
        ["--parallelism.data_parallel_replicate_degree", str(setting.num_copies // shards)],
        ["--parallelism.data_parallel_shard_degree", str(shards)],
    ]
    if zero:
        options += [["--parallelism.fsdp_reshard_after_forward", "always" if zero == 3 else "never"]]
    return options


def _pipeline(setting: PipelineSetting) -> tuple[str, list[list[str]]]:
    """Return the lines that write the schedule, if it has no name, and the options of the pipeline."""
    if setting.num_ranks == 1:
        if setting.schedule != "1f1b":
            raise ArgumentError(
                f"schedule: got {setting.schedule} on one rank, expected 1f1b, as {_NAME} has no pipeline there; "
                f"{setting.advice(_NAME, 'try it')}"
            )
        return "", [["--parallelism.pipeline_parallel_degree", "1"]]
    names = [f"layers.{index}" for index in range(sum(setting.partition) - 2)]
    parts = [",".join(part) for part in setting.cut(["tok_embeddings", *names, "norm,lm_head"])]
    name, file, csv_option = _SCHEDULES.get(setting.schedule), "", []
    if name is None or (name == "1F1B" and setting.num_microbatches < setting.num_ranks):
        name, csv_option = _placing(setting), [["--parallelism.pipeline_parallel_schedule_csv", CSV_FILE]]
        file = "\n".join([f"cat > {CSV_FILE} <<'END'", *write_csv(setting.lists).splitlines(), "END", ""])
    return file, [
        ["--parallelism.pipeline_parallel_degree", str(setting.num_ranks)],
        ["--parallelism.pipeline_parallel_schedule", name],
        *csv_option,
        ["--parallelism.pipeline_parallel_microbatch_size", str(setting.microbatch_size)],
        ["--parallelism.module_fqns_per_model_part", *parts],
    ]


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
        f"expected each stage on one rank, in a loop or a V, as {_NAME} places them; "
        f"{setting.advice(_NAME, 'try 1f1b')}"
    )
