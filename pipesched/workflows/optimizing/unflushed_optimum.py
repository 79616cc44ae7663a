"""The optimum of a run without a flush: the look-ahead of each rank with the least period under a memory limit."""

from __future__ import annotations

from functools import partial

from pipesched.schedules import Schedule
from pipesched.simulator import USUAL_NETWORK, SimulationError
from pipesched.simulator.optimum import (
    FlightCounts,
    UnflushedRule,
    least_period,
    unflushed_in_flight,
    unflushed_lists,
    unflushed_rule,
    unflushed_run,
)
from pipesched.workflows.arguments import ScheduleSource
from pipesched.workflows.optimizing.optimum_result import BEST_KNOWN, OPTIMUM, Optimum, OrderedSchedule
from pipesched.workflows.simulating import LeastTime, Prediction, Setup, predict_source, simulate


def optimize_unflushed(source: ScheduleSource, setup: Setup, in_flight: float | None) -> Optimum:
    """Optimize a run without a flush as `optimize` does; the objective is the steady-state time of a micro-batch.

    If every rank does one F and one B in a period, the best order is found without a search. The bound holds for all
    orders.
    """
    schedule = source.schedule
    own = unflushed_in_flight(schedule)
    rule = unflushed_rule(schedule)
    if schedule.num_microbatches < schedule.num_ranks:
        raise SimulationError(
            f"{schedule.name}: got {schedule.num_microbatches} micro-batches on {schedule.num_ranks} ranks, expected "
            f"enough to fill the pipeline; try {schedule.num_ranks}"
        )
    given = predict_source(source, setup)
    _require_unshared(given, setup)
    _require_even_steps(given, rule)
    run = unflushed_run(schedule, given.costs, given.cluster)
    in_bytes = in_flight is None and _limits(given) is not None
    most = float(max(own)) if in_flight is None else in_flight

    def source_of(numbers: FlightCounts, name: str) -> ScheduleSource:
        longer = partial(_longer, schedule, numbers, name)
        return ScheduleSource(longer(1), longer)

    def fits(numbers: FlightCounts) -> bool:
        if max(numbers) > rule.most_in_flight:
            return False
        if in_bytes:
            return predict_source(source_of(numbers, OPTIMUM), setup).over is None
        return max(numbers) <= most

    numbers = least_period(run, fits)
    if numbers is None:
        raise SimulationError(
            f"{schedule.name}: got too little memory for one micro-batch on every rank, expected enough; try more "
            "memory, or smaller micro-batches"
        )
    known = _ordered(given, own)
    best = _ordered(predict_source(source_of(numbers, OPTIMUM), setup), numbers)
    limits = (_limits(given) if in_bytes else None) or [most] * schedule.num_ranks
    fits_itself = fits(own)
    if fits_itself and known.time_s <= best.time_s:
        numbers, best = own, known
    bound_s = run.bound_s(limits)
    least = LeastTime(bound_s, None if in_bytes else most, None, best.time_s, is_repeated=True, repeated="micro-batch")
    result = source_of(numbers, BEST_KNOWN if least.gap else OPTIMUM)
    simulation = simulate(result, setup)
    orders, over = ((known,), None) if fits_itself else ((), known)
    return Optimum(simulation, least, orders, schedule.name, over)


def _require_unshared(given: Prediction, setup: Setup) -> None:
    """Refuse machines and messages that the proof does not cover."""
    devices, network = given.schedule.rank_to_device, setup.network
    obstacles = {
        "ranks that share a device": len(set(devices)) < len(devices),
        "shared network interfaces": bool(given.cluster.nics),
        "hand-overs that take time": given.cluster.has_hand_over,
        "non-default message options": network != USUAL_NETWORK,
    }
    obstacle = next((what for what, is_so in obstacles.items() if is_so), None)
    if obstacle is not None:
        raise SimulationError(
            f"{given.schedule.name}: got a run without a flush and {obstacle}, expected one rank per device, unshared "
            "network interfaces, instant hand-overs and the default messages; change the setup"
        )


def _require_even_steps(given: Prediction, rule: UnflushedRule) -> None:
    """Refuse Steps that take time and do not follow every micro-batch; the proof does not cover them."""
    if rule.accumulate > 1 and any(stage.step_s or stage.copy_s for stage in given.costs.stages):
        raise SimulationError(
            f"{given.schedule.name}: got steps that take time after every {rule.accumulate} micro-batches, expected "
            "steps of 0 s; set step_s to 0, or try pipedream"
        )


def _longer(schedule: Schedule, numbers: FlightCounts, name: str, times: int) -> Schedule:
    return unflushed_lists(schedule, numbers, times * schedule.num_microbatches, name)


def _ordered(predicted: Prediction, numbers: FlightCounts) -> OrderedSchedule:
    if predicted.steady_s_per_microbatch is None:
        raise SimulationError(
            f"{predicted.schedule.name}: got a run without a steady state, expected one with a steady state; try more "
            "micro-batches"
        )
    return OrderedSchedule(
        predicted.schedule, predicted.makespan_s, predicted.steady_s_per_microbatch, float(max(numbers))
    )


def _limits(given: Prediction) -> list[float] | None:
    """Return the micro-batches for which each rank has room beside one version of its weights, or None if unknown."""
    limits = list[float]()
    for rank, device in enumerate(given.schedule.rank_to_device):
        memory_bytes, cost = given.cluster.devices[device].memory_bytes, given.costs.stages[rank]
        if memory_bytes is None or not given.costs.has_bytes:
            return None
        left = memory_bytes - cost.weight_bytes - cost.optimizer_bytes - cost.working_bytes
        limits.append(left // cost.saved_bytes if cost.saved_bytes else float("inf"))
    return limits
