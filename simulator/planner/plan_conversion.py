"""An outcome of the planner as a plan that can be run."""

from __future__ import annotations

from pipesched.profiles.io import Plan, Predicted
from pipesched.schedules.builders import build, find
from pipesched.schedules.formats import to_json
from pipesched.schedules.transforms import ScheduleSpec
from pipesched.simulator.planner.plan_outcome import PlanOutcome
from pipesched.simulator.planner.request import Request


def plan_of(outcome: PlanOutcome, request: Request) -> Plan:
    """Return the plan of an outcome that fits."""
    candidate, costs = outcome.candidate, outcome.costs
    assert outcome.seconds is not None, "what fits was predicted"
    provenance = request.profile.provenance
    return Plan(
        model=request.profile.model,
        schedule_spec=_written(candidate.schedule_spec()),
        partition=candidate.partition,
        microbatch_size=candidate.microbatch_size,
        batch_size=outcome.samples,
        compression=candidate.compression,
        predicted=Predicted(
            seconds=outcome.seconds,
            throughput=outcome.throughput,
            memory_bytes=tuple(map(float, outcome.held_bytes)),
            bubble_fraction=outcome.bubble_fraction,
            communication_fraction=None if costs is None else (costs.transfer_s + costs.reduce_s) / outcome.seconds,
        ),
        origin=f"a profile of {provenance.device}; {request.cluster.origin or 'a cluster'}"[:400],
        execution=provenance.execution,
        dtype=provenance.dtype,
        yardstick=provenance.yardstick,
        cluster=request.cluster,
    )


def _written(spec: ScheduleSpec) -> ScheduleSpec:
    """Return `spec` with the lists of a user's own builder in place of its name, which is for people to say."""
    if not find(spec.name).is_own:
        return spec
    lists = build(spec.name, spec.num_ranks, spec.num_microbatches, spec.num_chunks)
    return ScheduleSpec(lists=to_json(lists), recompute=spec.recompute, width=spec.width, placement=spec.placement)
