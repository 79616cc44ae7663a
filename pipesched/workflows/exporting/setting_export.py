"""The export of a setting: what another trainer must be told so that it trains as planned."""

from __future__ import annotations

from pathlib import Path
from typing import assert_never, get_args

from pipesched.profiles.io import Plan
from pipesched.workflows import TrainerName, require_choice, require_kind
from pipesched.workflows.arguments import read_plan_argument
from pipesched.workflows.exporting.deepspeed_config import deepspeed_config
from pipesched.workflows.exporting.megatron_flags import megatron_flags
from pipesched.workflows.exporting.pipeline_setting import PipelineSetting
from pipesched.workflows.exporting.torchtitan_flags import torchtitan_flags


def export_setting(plan: Plan | PipelineSetting | str | Path, trainer: TrainerName) -> str:
    """Return a setting in the words of another trainer.

    Megatron-LM and torchtitan are told in flags, an array of bash; DeepSpeed in JSON, the arguments of its
    PipelineModule and its configuration. Nothing is left out silently: what the trainer cannot be told is refused.

    Args:
        plan: A plan, the file of one, or a setting that nobody planned.
        trainer: The trainer.

    Raises:
        ArgumentError: There is no such trainer, or it cannot be told; the message says what, and why.
        ProfileError: The file is no plan, or its parts do not fit together.
        ScheduleError: There is no such schedule, or it is one that PyTorch's CSV cannot say.
    """
    require_choice("trainer", trainer, get_args(TrainerName))
    require_kind("plan", plan, Plan | PipelineSetting | str | Path, "a Plan, or a file of one")
    setting = plan if isinstance(plan, PipelineSetting) else PipelineSetting.of_plan(read_plan_argument(plan))
    match trainer:
        case "megatron":
            return megatron_flags(setting)
        case "torchtitan":
            return torchtitan_flags(setting)
        case "deepspeed":
            return deepspeed_config(setting)
        case _:
            assert_never(trainer)
