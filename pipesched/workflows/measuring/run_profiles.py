"""Profiles from runs: the layers of a profile, with the seconds of the stages in runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipesched.profiles.costs import fitted_profile
from pipesched.questions import RunFacts
from pipesched.schedules.common import values_of
from pipesched.workflows import asks, require_settings
from pipesched.workflows.arguments import ProfileArgument, partition_text
from pipesched.workflows.measuring.measured_costs import RunsArgument, costs_from_runs, cut_of_runs, lists_of_runs
from pipesched.workflows.measuring.profile_result import ProfileMeasurement


@dataclass(frozen=True)
class RunProfileQuestion(RunFacts):
    """The question of `profile_from_runs`; its fields are the arguments of that function."""

    runs: RunsArgument
    profile: ProfileArgument

    def __post_init__(self) -> None:
        """Refuse invalid settings."""
        object.__setattr__(self, "run_partition", partition_text(self.run_partition))
        require_settings(self)


@asks(RunProfileQuestion)
def profile_from_runs(question: RunProfileQuestion) -> ProfileMeasurement:
    """Return a profile with the mean seconds of the stages of runs: F, B, I, W and Step.

    Each layer of a stage is scaled alike, at every micro-batch size. Ops that no run had (I and W of a run with B
    alone, a Step) are scaled as B, or stay; bytes, copies of weights and the slowdown of shared cores stay. Hand-over
    and messages are no costs of layers: `costs_from_runs` has them.

    Args:
        runs: Measured Timelines of the model, or files of them, all cut into the same stages.
        profile: Profile of the model, measured anywhere, or estimated.

    Raises:
        ArgumentError: An argument, or a combination, makes no sense.
        ScheduleError: A file is no Timeline.
        ProfileError: A Timeline is not measured, or of other stages; or the profile does not fit.
    """
    measured = costs_from_runs(question.runs, profile=question.profile, **values_of(question))
    costs = measured.costs
    base, bounds, size = cut_of_runs(lists_of_runs(question.runs), question.profile, question)
    fitted = fitted_profile(base, bounds, costs.measured_costs, size)
    device = f"{base.provenance.device}, with the seconds of {', '.join(costs.runs)}"
    return ProfileMeasurement(
        replace(
            fitted,
            provenance=replace(base.provenance, device=device[:2000], yardstick=costs.yardstick),
            variation=costs.variation or base.variation,
        ),
        measured.notes,
    )
