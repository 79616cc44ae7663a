"""An outcome of the planner as a plan that can be run."""

from __future__ import annotations

from pipesched.profiles.io import Plan, Predicted
from pipesched.simulator.planner.plan_outcome import PlanOutcome
from pipesched.simulator.planner.request import Request


def plan_of(outcome: PlanOutcome, request: Request) -> Plan:
    """Return the plan of an outcome that fits."""
    candidate, costs = outcome.candidate, outcome.costs
    assert outcome.seconds is not None, "what fits was predicted"
    provenance = request.profile.provenance
    return Plan(
        model=request.profile.model,
        schedule_spec=candidate.schedule_spec().portable(),
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
