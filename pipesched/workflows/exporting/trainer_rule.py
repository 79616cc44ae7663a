"""The rule of a trainer: the candidates of a plan that it can express."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from pipesched.profiles.costs import LayerExecution, Profile
from pipesched.questions import TrainerName
from pipesched.schedules import ScheduleError
from pipesched.schedules.builders import find
from pipesched.simulator.search import Setting
from pipesched.workflows import ArgumentError
from pipesched.workflows.exporting.pipeline_setting import PipelineSetting
from pipesched.workflows.exporting.setting_export import flags_of


@dataclass(frozen=True, slots=True)
class TrainerRule:
    """Returns why a trainer cannot express a candidate; can be sent to another process.

    Attributes:
        trainer: The trainer.
        execution: Execution of the layers of the profile.
        dtype: Data type of the profile.
    """

    trainer: TrainerName
    execution: LayerExecution
    dtype: str

    @classmethod
    def of(cls, trainer: TrainerName, profile: Profile) -> TrainerRule:
        """Return the rule of a trainer for plans from a profile."""
        return cls(trainer, profile.provenance.execution, profile.provenance.dtype)

    @property
    def is_uniform(self) -> bool:
        """Whether the trainer divides the layers among stages by itself."""
        return self.trainer == "deepspeed"

    def __call__(self, candidate: Setting) -> str | None:
        """Return why the trainer cannot express a candidate, or None if it can."""
        few = min(candidate.num_microbatches, 2 * candidate.num_ranks)  # a trainer's rules need no more
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
        execution=rule.execution,
        dtype=rule.dtype,
    )
    try:
        flags_of(setting, rule.trainer)
    except (ArgumentError, ScheduleError) as error:
        return str(error)
    return None
