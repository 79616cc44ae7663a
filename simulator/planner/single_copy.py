"""Bound a replicated layout by one copy of it, which is quicker by the number of copies.

Its messages have links of their own here, so nothing starts later than it really does. After the backwards of a stage,
the copies sum the gradients of the stage: over their links, and one sum after the other if devices of a node share a
NIC.

The weights, states, gradients and activations of a rank follow from its list alone, so their bytes are exact; the
buffers of messages come on top.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Schedule
from pipesched.schedules.columns import machine_code, op_cells
from pipesched.schedules.ops import Op, Reduce
from pipesched.simulator import USUAL_NETWORK, Estimate, Meaning, NetworkOptions, Precision
from pipesched.simulator.fast import LoadedProgram, Program, compile_lists, held_on_devices, simulate_arrays
from pipesched.simulator.planner.bound import Bounds
from pipesched.simulator.planner.candidate_evaluation import lowered, steps_of
from pipesched.simulator.search import UNPREDICTABLE, Setting, memory_excess


def bound_single_copy(
    candidate: Setting, costs: StageCosts, cluster: Cluster, bounds: Bounds, network: NetworkOptions = USUAL_NETWORK
) -> Estimate:
    """Predict the first copy of a candidate.

    Slowdown by messages is left out: their overlap with an op depends on the other copies.

    Args:
        candidate: A schedule, its depth, width and micro-batches.
        costs: Costs of the stages that the candidate cuts the model into, for one micro-batch.
        cluster: Devices and links.
        bounds: Bounds on that cluster.
        network: How messages go.

    Returns:
        The least seconds of an iteration of all copies (0 s for a run without a flush, as nothing is known), and the
        least bytes of each device of the first copy. Neither is ever above the prediction.

    Raises:
        ScheduleError: The schedule cannot have such counts.
        ProfileError: The costs lack something that the schedule needs.
        SimulationError: It would take too long.
    """
    lists = lists_of_copy(candidate)
    program, times_s = _run(lists, costs, replace(cluster, nics=()), replace(network, slowdown=0.0))
    held = {
        device.device: device.peak_bytes(times_s, 1) for device in held_on_devices(program, costs, has_buffers=False)
    }
    over = memory_excess(held, cluster, at_least=True)
    if candidate.is_asynchronous:  # its pace has no beginning and no end to compare
        return Estimate(Meaning.PACE, 0.0, held, over, precision=Precision.BOUND)
    end_s = _end_s(candidate, costs, bounds, _ready_s(program, times_s))
    return Estimate(Meaning.ITERATION, max(program.makespan_s(times_s), end_s), held, over, precision=Precision.BOUND)


def lists_of_copy(candidate: Setting) -> Schedule:
    """Return the lowered lists of the first copy of a candidate on its devices, without the sums of gradients.

    Raises:
        ScheduleError: The schedule cannot have such counts.
        SimulationError: They would be too long.
    """
    copy = replace(candidate, width=1)
    lists = lowered(copy.order, steps_of(candidate))
    devices = tuple(candidate.device(rank, 0) for rank in range(candidate.num_ranks))
    rows: tuple[Iterable[Op], ...] = lists.lists
    if lists.columns.counts[op_cells.REDUCE]:  # the reductions of all copies come later
        rows = tuple(tuple(op for op in row if not isinstance(op, Reduce)) for row in lists.ops)
    return replace(lists, lists=rows, rank_to_device=devices)


def _run(
    lists: Schedule, costs: StageCosts, cluster: Cluster, network: NetworkOptions
) -> tuple[Program, machine_code.Float64s]:
    """Return the program of lowered lists, and its times [s]."""
    try:
        program = compile_lists(lists, network, has_hand_over=cluster.has_hand_over)
        return program, LoadedProgram(program, costs, cluster, network).times()
    except UNPREDICTABLE:
        simulate_arrays(lists, costs, cluster, network=network)  # says why
        raise


def _ready_s(program: Program, times_s: machine_code.Float64s) -> dict[int, float]:
    """Return when the backwards of each stage are over [s]."""
    columns, op = program.schedule.columns, 0
    _, codes, stages, *_ = columns.in_lists
    ends_s = times_s[program.spans.ends].tolist()
    ready_s: dict[int, float] = {}
    for code, stage in zip(codes, stages, strict=True):
        if code % op_cells.OVERLAPPED in (op_cells.B, op_cells.W):
            ready_s[stage] = max(ready_s.get(stage, 0.0), ends_s[op])
        op += code < op_cells.OVERLAPPED
    return ready_s


def _end_s(candidate: Setting, costs: StageCosts, bounds: Bounds, ready_s: Mapping[int, float]) -> float:
    """Return the earliest time at which all stages have summed their gradients and stepped [s]."""
    reductions = [bounds.reduction_of(candidate, stage, costs.stages[stage]) for stage in range(costs.num_stages)]
    end_s = max(ready_s[stage] + reduction.seconds for stage, reduction in enumerate(reductions))
    for nic in {nic for reduction in reductions for nic in reduction.nics}:
        free_s = 0.0
        for stage in sorted(ready_s, key=ready_s.__getitem__):
            if nic in reductions[stage].nics:
                free_s = max(free_s, ready_s[stage]) + reductions[stage].nics[nic]
        end_s = max(end_s, free_s)
    return end_s
