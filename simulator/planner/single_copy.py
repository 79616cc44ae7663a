"""Bound a replicated layout by one copy of it, which is quicker by the number of copies.

Its messages have their links for themselves here, so nothing starts later than it really does. When it is over with the
backwards of a stage, the copies of that sum their gradients: over their links, and where devices of a node share a NIC
one sum after the other.

What a rank holds in weights, states, gradients and activations follows from its list alone, so it is known exactly; the
buffers of messages come on top.
"""

from __future__ import annotations

from dataclasses import replace

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import ENDS_MICROBATCH, Reduce, Timeline, computes
from pipesched.simulator import USUAL_NETWORK, Estimate, Meaning, NetworkOptions, Precision
from pipesched.simulator.planner.bound import Bounds, over_least_memory
from pipesched.simulator.planner.candidate_evaluation import lowered, steps_of, timeline_of
from pipesched.simulator.planner.plan_candidate import Candidate

_BUFFERS = ("receive_buffers", "send_buffers")


def bound_single_copy(
    candidate: Candidate, costs: StageCosts, cluster: Cluster, bounds: Bounds, network: NetworkOptions = USUAL_NETWORK
) -> Estimate:
    """Predict the first copy of a candidate.

    What messages slow is left out: when they are under way beside an op depends on the other copies.

    Args:
        candidate: A schedule, its depth, width and micro-batches.
        costs: Costs of the stages that the candidate cuts the model into, for one micro-batch.
        cluster: Devices and links.
        bounds: Bounds on that cluster.
        network: How messages go.

    Returns:
        The least seconds of an iteration of all copies, of a run without a flush 0 s, as nothing is known; and the
        least bytes of each device of the first copy. Neither is ever above the prediction.

    Raises:
        ScheduleError: The schedule cannot have such counts.
        ProfileError: The costs do not say all that the schedule asks for.
        SimulationError: It would take too long.
    """
    copy, steps = replace(candidate, width=1), steps_of(candidate)
    lists = lowered(copy.order, steps)
    devices = tuple(candidate.device(rank, 0) for rank in range(candidate.depth))
    rows = tuple(tuple(op for op in row if not isinstance(op, Reduce)) for row in lists.ops)  # those of all come later
    lists = replace(lists, lists=rows, rank_to_device=devices)
    timeline = timeline_of(lists, costs, replace(cluster, nics=()), replace(network, slowdown=0.0))
    held: dict[int, int] = {}
    for sample in timeline.memory:
        num_bytes = sum(count for kind, count in sample.bytes_by_kind if kind not in _BUFFERS)
        held[sample.device] = max(held.get(sample.device, 0), num_bytes)
    over = over_least_memory(held, cluster)
    if candidate.is_asynchronous:  # its pace has no beginning and no end to compare
        return Estimate(Meaning.PACE, 0.0, held, over, precision=Precision.BOUND)
    seconds = max(timeline.makespan_s, _end_s(candidate, costs, bounds, timeline))
    return Estimate(Meaning.ITERATION, seconds, held, over, precision=Precision.BOUND)


def _end_s(candidate: Candidate, costs: StageCosts, bounds: Bounds, timeline: Timeline) -> float:
    """Return when the last stage has summed its gradients and stepped, at least."""
    ready_s: dict[int, float] = {}
    for span in timeline.spans:
        for part in computes(span.op):
            if part.phase in ENDS_MICROBATCH:
                ready_s[part.stage] = max(ready_s.get(part.stage, 0.0), span.end_s)
    reductions = [bounds.reduction_of(candidate, stage, costs.stages[stage]) for stage in range(costs.num_stages)]
    end_s = max(ready_s[stage] + reduction.seconds for stage, reduction in enumerate(reductions))
    for nic in {nic for reduction in reductions for nic in reduction.nics}:
        free_s = 0.0
        for stage in sorted(ready_s, key=ready_s.__getitem__):
            if nic in reductions[stage].nics:
                free_s = max(free_s, ready_s[stage]) + reductions[stage].nics[nic]
        end_s = max(end_s, free_s)
    return end_s
