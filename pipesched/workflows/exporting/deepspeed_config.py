"""A setting as DeepSpeed's configuration, and the arguments of its PipelineModule.

Names and rules are from DeepSpeed 0.19.8 (`runtime/pipe/module.py`, `engine.py`, `schedule.py`, `topology.py`,
`runtime/utils.py`, `runtime/engine.py`, `runtime/bf16_optimizer.py`):

* A PipelineModule runs TrainSchedule, which is 1F1B. (DualPipeVModule has another list than `dualpipe_v`, in which
  forwards and backwards overlap and W are ops of their own.)
* `partition_method` takes no numbers of layers per stage; ``uniform`` gives the first stages one more layer.
* The copies of a stage are side by side. ZeRO-1 splits their optimizer states; the pipeline engine has no ZeRO-2 or 3.
* With ``bf16`` and float32 gradients, under ZeRO-1 alone, BF16_Optimizer holds gradients in both precisions. The
  pipeline engine sums all of them behind the last backward, and gathers the weights in the step.
* A PipelineModule computes the given layers: it shares no layer among GPUs, and recomputes whole layers. The layers
  themselves decide how they compute attention.
* `activation_checkpoint_interval` counts from the first layer of a stage. With the size of the largest stage, every
  stage keeps only its input.
"""

from __future__ import annotations

import json

from pipesched.profiles import FLOAT32_BYTES
from pipesched.profiles.costs import LINEAR_BYTES
from pipesched.workflows import ArgumentError
from pipesched.workflows.exporting.pipeline_setting import PipelineSetting, estimate_comments

_NAME = "DeepSpeed"
_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16"}


def deepspeed_config(setting: PipelineSetting) -> str:
    """Return `setting` as JSON: the arguments of ``PipelineModule``, and the ``config`` of ``deepspeed.initialize``.

    Raises:
        ArgumentError: DeepSpeed has no equivalent of the setting; the message names the part and the reason.
    """
    setting.require_exportable(_NAME)
    if setting.schedule != "1f1b":
        raise ArgumentError(
            f"schedule: got {setting.schedule}, expected 1f1b, as a PipelineModule of {_NAME} has no other schedule; "
            f"{setting.advice(_NAME, 'try 1f1b')}"
        )
    setting.require_copies_side_by_side(_NAME)
    _require_own_layers(setting)
    _require_uniform(setting.partition)
    comments = estimate_comments(setting, _software(setting), _NAME)
    said = {
        **({"comment": comments} if comments else {}),
        "PipelineModule": {
            "num_stages": setting.num_ranks,
            "partition_method": "uniform",
            "activation_checkpoint_interval": _interval(setting),
        },
        "config": {
            "train_batch_size": setting.batch_size,
            "train_micro_batch_size_per_gpu": setting.microbatch_size,
            "gradient_accumulation_steps": setting.num_microbatches,
            **({_PRECISIONS[setting.dtype]: {"enabled": True}} if setting.dtype in _PRECISIONS else {}),
            **({"zero_optimization": {"stage": 1}} if setting.sharding.zero else {}),
            **({"data_types": {"grad_accum_dtype": "fp32"}} if _has_two_gradients(setting) else {}),
        },
    }
    return json.dumps(said, indent=2) + "\n"


def _has_two_gradients(setting: PipelineSetting) -> bool:
    """Whether gradients are held in bfloat16, and summed in float32."""
    sharding = setting.sharding
    return sharding.zero == 1 and setting.dtype == "bfloat16" and sharding.gradient_bytes >= FLOAT32_BYTES


def _software(setting: PipelineSetting) -> dict[str, tuple[object, ...]]:
    """Return, for some fields of an estimate, the values that the engine supports; the layers decide the others."""
    gradient_bytes = 6 if _has_two_gradients(setting) else 2 if setting.dtype in _PRECISIONS else FLOAT32_BYTES
    return {
        "gradient_bytes": (gradient_bytes,),
        "has_fused_gradients": (False,),
        "has_whole_sums": (True, not setting.sharding.zero),
        "hides_gradients": (False,),
        "hides_weights": (False,),
    }


def _require_own_layers(setting: PipelineSetting) -> None:
    """Refuse layers that are not computed one by one on a GPU.

    Raises:
        ArgumentError: The setting has such layers.
    """
    sharding = setting.sharding
    for kind in ("tensor", "context", "expert"):
        size = getattr(sharding, kind)
        if size > 1:
            raise ArgumentError(
                f"{kind} parallelism: got {size}, expected 1, as a PipelineModule of {_NAME} shares no layer among "
                "GPUs; estimate the profile without this parallelism"
            )
    if sharding.zero > 1:
        raise ArgumentError(
            f"zero: got {sharding.zero}, expected 0 or 1, as a PipelineModule of {_NAME} splits only the optimizer "
            "states; estimate the profile with `zero=1`"
        )
    if sharding.recompute in ("selective", "alternate") and not setting.recomputes:
        raise ArgumentError(
            f"recomputed layers: got {sharding.recompute}, expected none or full, as a PipelineModule of {_NAME} "
            "recomputes whole layers; estimate the profile with one of them"
        )
    if sharding.precision in LINEAR_BYTES:
        raise ArgumentError(
            f"precision: got {sharding.precision}, expected another precision, as {_NAME} lacks this one; estimate the "
            "profile in bfloat16"
        )


def _interval(setting: PipelineSetting) -> int:
    """Return the layers from one kept input to the next; 0 keeps everything."""
    if setting.recomputes:
        return max(setting.partition)
    return 1 if setting.sharding.recompute == "full" else 0


def _require_uniform(partition: tuple[int, ...]) -> None:
    layers, more = divmod(sum(partition), len(partition))
    uniform = tuple(layers + (stage < more) for stage in range(len(partition)))
    if partition != uniform:
        got, expected = (",".join(map(str, counts)) for counts in (partition, uniform))
        raise ArgumentError(
            f"partition: got {got}, expected {expected}, as {_NAME} has no setting for the layers of each stage; try "
            f"`partition={expected}`, or make a stage's layers one module"
        )
