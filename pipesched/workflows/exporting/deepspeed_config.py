"""A setting as DeepSpeed's configuration, and the arguments of its PipelineModule.

Names and rules are from DeepSpeed 0.19.8 (`runtime/pipe/module.py`, `schedule.py`, `topology.py`, `runtime/utils.py`):

* A PipelineModule runs TrainSchedule, which is 1F1B. (DualPipeVModule has another list than `dualpipe_v`, in which
  forwards and backwards overlap and W are ops of their own.)
* `partition_method` takes no layers of each stage; ``uniform`` gives the first stages one more layer.
* The copies of a stage are side by side.
* A PipelineModule computes the given layers: it shares no layer among GPUs, and recomputes whole layers. The layers
  themselves decide how they compute attention.
* `activation_checkpoint_interval` counts from the first layer of a stage. With the size of the largest stage, every
  stage keeps only its input.
"""

from __future__ import annotations

import json

from pipesched.workflows import ArgumentError
from pipesched.workflows.exporting.pipeline_setting import PipelineSetting

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
            f"schedule: got {setting.schedule}, expected 1f1b, as a PipelineModule of {_NAME} has no other; "
            f"{setting.advice(_NAME, 'try that')}"
        )
    setting.require_copies_side_by_side(_NAME)
    _require_own_layers(setting)
    _require_uniform(setting.partition)
    said = {
        "PipelineModule": {
            "num_stages": setting.num_ranks,
            "partition_method": "uniform",
            "activation_checkpoint_interval": max(setting.partition) if setting.recomputes else 0,
        },
        "config": {
            "train_batch_size": setting.batch_size,
            "train_micro_batch_size_per_gpu": setting.microbatch_size,
            "gradient_accumulation_steps": setting.num_microbatches,
            **({_PRECISIONS[setting.dtype]: {"enabled": True}} if setting.dtype in _PRECISIONS else {}),
        },
    }
    return json.dumps(said, indent=2) + "\n"


def _require_own_layers(setting: PipelineSetting) -> None:
    """Refuse layers that are not computed one by one on a GPU.

    Raises:
        ArgumentError: The setting has such layers.
    """
    execution = setting.execution
    if execution.tensor_parallel > 1:
        raise ArgumentError(
            f"tensor_parallel: got {execution.tensor_parallel}, expected 1, as a PipelineModule of {_NAME} shares no "
            "layer among GPUs; profile without it"
        )
    if execution.selective_recompute and not setting.recomputes:
        raise ArgumentError(
            f"selective_recompute: got it, expected none, as a PipelineModule of {_NAME} recomputes whole layers; "
            "profile without it, or try `recompute=all`"
        )


def _require_uniform(partition: tuple[int, ...]) -> None:
    layers, more = divmod(sum(partition), len(partition))
    uniform = tuple(layers + (stage < more) for stage in range(len(partition)))
    if partition != uniform:
        got, expected = (",".join(map(str, counts)) for counts in (partition, uniform))
        raise ArgumentError(
            f"partition: got {got}, expected {expected}, as {_NAME} takes no layers of each stage; "
            f"try `partition={expected}`, or make a stage's layers one module"
        )
