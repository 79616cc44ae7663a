"""A setting of the tuner as a plan that can be run."""

from __future__ import annotations

from pipesched.profiles.io import Plan, Predicted
from pipesched.schedules.transforms import ScheduleSpec
from pipesched.simulator.tuner.setting import Setting
from pipesched.simulator.tuner.setting_outcome import SettingOutcome
from pipesched.simulator.tuner.tuning_problem import Problem


def partition_of(setting: Setting, problem: Problem) -> tuple[int, ...]:
    """Return the layers of each stage."""
    return tuple(last - first for first, last in problem.bounds(setting))


def plan_of_setting(outcome: SettingOutcome, problem: Problem) -> Plan:
    """Return the plan of a setting whose time is known."""
    setting, provenance, num_devices = outcome.setting, problem.profile.provenance, len(problem.cluster.devices)
    assert outcome.seconds is not None, "its time is known"
    spec = ScheduleSpec(
        name=setting.name,
        num_ranks=num_devices,
        num_microbatches=setting.num_microbatches * setting.num_pipelines,
        num_chunks=setting.num_chunks,
        parameters=setting.parameters,
        recompute="all" if setting.recomputes else None,
    )
    size = problem.microbatch_size(setting.num_microbatches)
    samples = size * spec.run(1).microbatches_per_step
    return Plan(
        model=problem.profile.model,
        schedule_spec=spec.portable(),
        partition=partition_of(setting, problem),
        microbatch_size=size,
        batch_size=samples,
        compression=None,
        predicted=Predicted(outcome.seconds, samples / outcome.seconds),
        origin=f"a profile of {provenance.device}; {problem.cluster.origin or 'a cluster'}"[:400],
        execution=provenance.execution,
        dtype=provenance.dtype,
        yardstick=provenance.yardstick,
        cluster=problem.cluster,
    )
