"""The export of a setting to another trainer, and the rules of each trainer for a search."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal, get_args

from pipesched.profiles.costs import LayerSharding, Profile
from pipesched.profiles.io import Plan
from pipesched.profiles.partitioning import parse_partition
from pipesched.questions import TrainerName
from pipesched.schedules import ScheduleError
from pipesched.schedules.builders import find
from pipesched.schedules.transforms import Placement
from pipesched.simulator.planner import TransformerLayout
from pipesched.simulator.search import Setting
from pipesched.workflows import ArgumentError, require_choice, require_kind
from pipesched.workflows.arguments import PartitionArgument, partition_text, read_plan_argument
from pipesched.workflows.exporting.deepspeed_config import deepspeed_config
from pipesched.workflows.exporting.megatron_flags import megatron_flags
from pipesched.workflows.exporting.pipeline_setting import PipelineSetting
from pipesched.workflows.exporting.torchtitan_config import torchtitan_config

_EXPORTS: Mapping[TrainerName, Callable[[PipelineSetting], str]] = {
    "megatron": megatron_flags,
    "torchtitan": torchtitan_config,
    "deepspeed": deepspeed_config,
}
"""The flags or configuration of a setting for each trainer."""


def export_setting(
    plan: Plan | PipelineSetting | str | Path,
    trainer: TrainerName,
    *,
    placement: Placement | None = None,
    partition: PartitionArgument | None = None,
    recompute: tuple[int, ...] | Literal["all"] | None = None,
) -> str:
    """Return a setting as flags or configuration of another trainer.

    Megatron-LM takes flags, as an array of bash; torchtitan takes sections of a TOML file; DeepSpeed takes JSON, the
    arguments of its PipelineModule and its configuration. A part without an equivalent is refused; a comment names
    the software that an estimate assumes and the trainer does not have.

    Args:
        plan: A plan, the file of one, or a setting without a plan.
        trainer: The trainer.
        placement: Placement of the copies in place of the plan's.
        partition: Layers of each stage in place of the plan's.
        recompute: Stages that recompute in place of the plan's.

    Raises:
        ArgumentError: The trainer is unknown, or has no equivalent of the setting; the message names part and reason.
        ProfileError: The file is no plan, or its parts do not fit together.
        ScheduleError: The schedule does not exist, or PyTorch's CSV cannot express it.
    """
    require_choice("trainer", trainer, get_args(TrainerName))
    require_kind("plan", plan, Plan | PipelineSetting | str | Path, "a Plan, or a file of one")
    setting = plan if isinstance(plan, PipelineSetting) else PipelineSetting.of_plan(read_plan_argument(plan))
    return _EXPORTS[trainer](_changed(setting, placement, partition, recompute))


def _changed(
    setting: PipelineSetting,
    placement: Placement | None,
    partition: PartitionArgument | None,
    recompute: tuple[int, ...] | Literal["all"] | None,
) -> PipelineSetting:
    """Return `setting` with its own values replaced by the given ones."""
    spec = setting.schedule_spec
    if placement is not None:
        require_choice("placement", placement, get_args(Placement))
        spec = replace(spec, placement=placement)
    if recompute is not None:
        spec = replace(spec, recompute=recompute)
    text, sizes = partition_text(partition), setting.partition
    if text is not None:
        num_layers = sum(setting.partition)
        sizes = tuple(last - first for first, last in parse_partition(text, (1.0,) * num_layers, len(sizes)))
    return replace(setting, schedule_spec=spec, partition=sizes)


@dataclass(frozen=True, slots=True)
class TrainerRule:
    """Returns why a trainer cannot express a candidate; can be sent to another process.

    Attributes:
        trainer: The trainer.
        sharding: Split and computation of the layers of the profile; a layout of a transformer has its own.
        dtype: Data type of the profile.
    """

    trainer: TrainerName
    sharding: LayerSharding = LayerSharding()  # noqa: RUF009 -- frozen
    dtype: str = ""

    @classmethod
    def of(cls, trainer: TrainerName, profile: Profile) -> TrainerRule:
        """Return the rule of a trainer for plans from a profile."""
        return cls(trainer, profile.provenance.sharding or LayerSharding(), profile.provenance.dtype)

    @property
    def is_uniform(self) -> bool:
        """Whether the trainer divides the layers among stages by itself."""
        return self.trainer == "deepspeed"

    def __call__(self, candidate: Setting) -> str | None:
        """Return why the trainer cannot express a candidate with its partition, or None if it can."""
        few = min(candidate.num_microbatches, 2 * candidate.num_ranks)  # the rules of trainers need no more
        if isinstance(candidate, TransformerLayout):
            return _fault(PipelineSetting.of_layout(replace(candidate, num_microbatches=few)), self.trainer)
        if find(candidate.schedule).is_own or candidate.replicas:
            few = candidate.num_microbatches
        return _refusal(self, replace(candidate, num_microbatches=few, microbatch_size=1))


@lru_cache(maxsize=4096)
def _refusal(rule: TrainerRule, candidate: Setting) -> str | None:
    setting = PipelineSetting(
        schedule_spec=candidate.schedule_spec(),
        partition=candidate.partition,
        microbatch_size=candidate.size,
        compression=candidate.compression,
        sharding=rule.sharding,
        dtype=rule.dtype,
    )
    return _fault(setting, rule.trainer)


def _fault(setting: PipelineSetting, trainer: TrainerName) -> str | None:
    """Return why a trainer cannot express a setting, or None if it can."""
    try:
        _EXPORTS[trainer](setting)
    except (ArgumentError, ScheduleError) as error:
        return str(error)
    return None
