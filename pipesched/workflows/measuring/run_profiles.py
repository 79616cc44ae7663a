"""Profiles from runs: the layers of a profile, with the seconds of the stages in runs."""

from __future__ import annotations

from dataclasses import replace

from pipesched.profiles.costs import fitted_profile
from pipesched.workflows.arguments import PartitionArgument, ProfileArgument
from pipesched.workflows.measuring.measured_costs import RunsArgument, costs_from_runs, cut_of_runs, lists_of_runs
from pipesched.workflows.measuring.profile_result import ProfileMeasurement


def profile_from_runs(
    runs: RunsArgument,
    profile: ProfileArgument,
    *,
    run_partition: PartitionArgument | None = None,
    microbatch_size: int | None = None,
    warmup: int = 1,
) -> ProfileMeasurement:
    """Return a profile with the mean seconds of the stages of runs: F, B, I, W and Step.

    Each layer of a stage is scaled alike, at every micro-batch size. Ops that no run had (I and W of a run with B
    alone, a Step) are scaled as B, or stay; bytes, copies of weights and the slowdown of shared cores stay. Hand-over
    and messages are no costs of layers: `costs_from_runs` has them.

    Args:
        runs: Measured Timelines of the model, or files of them, all cut into the same stages.
        profile: Profile of the model, measured anywhere, or estimated.
        run_partition: Partition of the layers in the runs: ``balanced`` (None), ``uniform``, or layers per stage.
        microbatch_size: Samples of a micro-batch of the runs; None: the smallest measured size.
        warmup: Number of first ops of each kind, stage and rank to ignore, if others remain.

    Raises:
        ArgumentError: An argument, or a combination, makes no sense.
        ScheduleError: A file is no Timeline.
        ProfileError: A Timeline is not measured, or of other stages; or the profile does not fit.
    """
    measured = costs_from_runs(
        runs, profile=profile, run_partition=run_partition, microbatch_size=microbatch_size, warmup=warmup
    )
    costs = measured.costs
    base, bounds, size = cut_of_runs(lists_of_runs(runs), profile, run_partition, microbatch_size)
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
