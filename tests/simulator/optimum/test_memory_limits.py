"""Orders in the memory of devices: lists that are found fit, as the simulator counts, and none that fits is faster."""

import random
from dataclasses import replace
from itertools import combinations, product

import pytest

import pipesched
from pipesched.profiles.clusters import Cluster, Device, Link, flat
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules import NotRunnableError, make_schedule
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Compute, Phase, Step
from pipesched.schedules.transforms import recompute
from pipesched.simulator import SimulationError
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.memory import memory, peak_memory
from pipesched.simulator.optimum import (
    PLANNER,
    bytes_room,
    excess_in,
    known_orders,
    order_problem,
    orderable,
    planned_times,
    schedule_of_times,
)


def orders_of(ops):
    """Yield all orders of a rank's ops in which none comes before what it needs on the rank."""
    if not ops:
        yield ()
    for op in ops:
        if not any(comes_first(other, op) for other in ops if other is not op):
            yield from ((op, *rest) for rest in orders_of([other for other in ops if other is not op]))


def comes_first(before, after):
    if before.stage != after.stage:
        return False
    if before.phase is after.phase:
        return before.microbatch < after.microbatch
    phases = (Phase.FORWARD, Phase.RECOMPUTE, Phase.BACKWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT)
    ranks = {phase: place for place, phase in enumerate(phases)}
    return before.microbatch == after.microbatch and ranks[before.phase] < ranks[after.phase]


def with_steps(order):
    """Return an order with the Step of each stage right behind its last op."""
    row = [*order]
    for stage in sorted({op.stage for op in order}):
        row.insert(1 + max(i for i, op in enumerate(row) if isinstance(op, Compute) and op.stage == stage), Step(stage))
    return row


def all_lists(schedule, costs, cluster):
    """Return the makespan of all lists of a schedule's ops that can run, and the most bytes that a device holds."""
    rows = [[*orders_of([op for op in row if isinstance(op, Compute)])] for row in schedule.ops]
    known = []
    for orders in product(*rows):
        try:
            counts = schedule.num_stages, schedule.num_microbatches
            lowered = lower(make_schedule("one", *counts, [with_steps(order) for order in orders]))
        except NotRunnableError:
            continue
        timeline = simulate_lists(lowered, costs, cluster)
        peaks = peak_memory(memory(timeline, costs, lowered))
        known.append((timeline.makespan_s, max(peak.total_bytes for peak in peaks.values())))
    return known


@pytest.mark.slow
@pytest.mark.usefixtures("quick_planner")
@pytest.mark.parametrize(("name", "p", "m", "seed"), [("1f1b", 2, 2, 0), ("zb_h1", 2, 2, 3), ("interleaved", 1, 2, 2)])
def test_what_is_proven_is_never_above_the_best_list_that_fits_and_what_is_found_fits(name, p, m, seed):
    draw = random.Random(seed)
    schedule = build(name, p, m, 2 if name == "interleaved" else None)
    parts = (None, 1.0, 0.5) if name == "zb_h1" else (draw.choice([1.0, 1.5]),)
    costs = StageCosts(
        tuple(
            StageCost(
                draw.choice([0.5, 1.0]),
                *parts,
                saved_bytes=draw.randint(2, 6),
                weight_bytes=draw.randint(0, 6),
                output_bytes=draw.randint(0, 2),
                output_gradient_bytes=draw.randint(0, 2),
                working_bytes=draw.randint(0, 5),
                step_s=draw.choice([0.0, 0.5]),
            )
            for _ in range(schedule.num_stages)
        )
    )
    link = Link(0.25)
    known = all_lists(schedule, costs, Cluster((Device(),) * p, link))
    peaks = sorted({num_bytes for _, num_bytes in known})
    for limit in (peaks[len(peaks) // 3], peaks[-1]):
        least_s = min(makespan_s for makespan_s, num_bytes in known if num_bytes <= limit)
        cluster = Cluster((Device(memory_bytes=limit),) * p, link)
        result = pipesched.optimize(schedule, pipesched.Setup(costs, cluster), seconds=1, num_workers=1)
        assert result.simulation.fits
        assert result.least.bound_s <= least_s <= result.makespan_s
        if limit == peaks[-1]:
            assert result.least.bound_s == least_s == result.makespan_s
    with pytest.raises(SimulationError, match="try more memory"):
        pipesched.optimize(
            schedule, pipesched.Setup(costs, Cluster((Device(memory_bytes=peaks[0] - 1),) * p, link)), seconds=0
        )


@pytest.mark.slow
@pytest.mark.usefixtures("quick_planner")
@pytest.mark.parametrize(("p", "m", "seed"), [(2, 2, 0), (1, 3, 3)])
def test_with_recomputation_by_choice_what_is_found_fits_and_none_that_fits_is_below_what_is_proven(p, m, seed):
    draw = random.Random(seed)
    schedule = build("1f1b", p, m)
    costs = StageCosts(
        tuple(
            StageCost(
                draw.choice([0.5, 1.0]),
                draw.choice([1.0, 1.5]),
                saved_bytes=draw.randint(3, 8),
                weight_bytes=draw.randint(0, 4),
                output_bytes=draw.randint(1, 3),
                output_gradient_bytes=draw.randint(0, 3),
                working_bytes=draw.randint(0, 5),
                output_is_saved=bool(seed % 2),
            )
            for _ in range(schedule.num_stages)
        )
    )
    link, lists = Link(0.25), orderable(schedule, costs)
    choices = (stages for k in range(schedule.num_stages + 1) for stages in combinations(range(schedule.num_stages), k))
    known = [
        run
        for stages in choices
        for run in all_lists(recompute(lists, stages) if stages else lists, costs, Cluster((Device(),) * p, link))
    ]
    peaks = sorted({num_bytes for _, num_bytes in known})
    limit = peaks[len(peaks) // 3]
    least_s = min(makespan_s for makespan_s, num_bytes in known if num_bytes <= limit)
    cluster = Cluster((Device(memory_bytes=limit),) * p, link)
    result = pipesched.optimize(schedule, pipesched.Setup(costs, cluster), seconds=1, num_workers=1, may_recompute=True)
    assert result.simulation.fits
    assert result.least.bound_s <= least_s <= result.makespan_s


def test_gradients_take_no_room_before_the_first_backward_has_ended():
    """Two forwards of 1 byte fit beside 1 byte of weights, before there is the byte of gradients: 3 (F + B)."""
    costs = pipesched.DeviceCost(1.0, 2.0, saved_bytes=1, weight_bytes=1)
    devices = pipesched.Cluster((Device(memory_bytes=3),) * 2)
    result = pipesched.optimize(pipesched.build("1f1b", 2, 2), pipesched.Setup(costs, devices), seconds=0)
    assert (result.makespan_s, result.gap, result.simulation.fits) == (9.0, 0.0, True)


GIB = 2**30


def planned_s(schedule, costs, cluster):
    """Return what the planner's lists, which fit, take [s]."""
    lists = orderable(schedule, costs)
    room = bytes_room(lists, costs, cluster)
    problem = order_problem(lists, costs, cluster, room)
    orders = known_orders(problem, lists, costs, excess_in(room, costs, cluster))
    planned = next(order for order in orders if order.schedule.name.startswith(PLANNER))
    assert pipesched.simulate(planned.schedule, pipesched.Setup(costs, cluster)).fits
    return planned.ticks * problem.tick_s


HALF_SAVED = {"saved_bytes": GIB // 2, "weight_bytes": int(1.25 * GIB)}
FOR_WEIGHTS = {"saved_for_weight_bytes": int(0.2 * GIB)}
WITH_MESSAGES = HALF_SAVED | FOR_WEIGHTS | {"output_bytes": GIB // 20}
FULL_SAVED = {"saved_bytes": GIB, "weight_bytes": GIB}
LIMITED = [
    # gradients take the room of a micro-batch: before the first backward has ended, a rank holds one more than later
    ("zb_h1", 3, 4, (1.0, None, 1.0, 1.0), FULL_SAVED | {"output_bytes": 10**6}, 4 * GIB, 23.0, 1.01),
    # large messages need that room
    ("1f1b", 4, 8, (1.0, 2.0), FULL_SAVED | {"output_bytes": GIB // 5}, 7 * GIB, 33.0, 1.01),
    # one stage's gradients are freed before the next stage's are made: room for one, and 2.25 micro-batches
    ("zbv", 2, 4, (2.0, None, 1.5, 1.0), HALF_SAVED | FOR_WEIGHTS, 6 * GIB, 39.0, 1.01),
    # gradients are larger than a micro-batch and come late: whole backwards wait, too
    ("interleaved", 2, 4, (2.0, 2.5), HALF_SAVED, 6 * GIB, 50.0, 1.001),
    # a W takes the room of a message that is freed at its end
    ("zbv", 2, 4, (0.5, None, 0.5, 0.5), WITH_MESSAGES, 5.5 * GIB, 12.5, 1.001),
]
"""Schedule, p, m, seconds and bytes of each stage, limit [bytes], the least seconds by CP-SAT, and the largest ratio.

`benchmarks/optimum.py` compares the planner with CP-SAT on 100 draws more.
"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "p", "m", "seconds", "sizes", "limit", "least_s", "near"), LIMITED)
def test_the_planner_is_near_the_optimum_beside_gradients(name, p, m, seconds, sizes, limit, least_s, near):
    schedule = build(name, p, m, 2 if name == "interleaved" else None)
    costs = StageCosts((StageCost(*seconds, **sizes),) * schedule.num_stages)
    link = Link(latency_s=1.0 if least_s == 39.0 else 0.0)
    own_s = planned_s(schedule, costs, Cluster((Device(memory_bytes=int(limit)),) * p, link))
    assert least_s <= own_s <= near * least_s


@pytest.mark.slow
@pytest.mark.usefixtures("quick_planner")
@pytest.mark.parametrize(("name", "chunks"), [("1f1b", None), ("zb_h1", None), ("zbv", None), ("interleaved", 2)])
def test_what_the_planner_makes_fits_beside_gradients_compiled_or_not(name, chunks, monkeypatch):
    """Without messages it knows all that is held; gradients are larger than a micro-batch, or smaller."""
    schedule = build(name, 2, 4, chunks)
    for seed in range(2):
        draw = random.Random(seed)
        parts = (2.0,) if name in ("1f1b", "interleaved") else (None, 1.0, draw.choice([0.5, 1.0]))
        costs = StageCosts(
            tuple(
                StageCost(1.0, *parts, saved_bytes=4, saved_for_weight_bytes=1, weight_bytes=draw.randint(1, 7))
                for _ in range(schedule.num_stages)
            )
        )
        lists = orderable(schedule, costs)
        weights = max(sum(costs.stages[stage].weight_bytes for stage in lists.stages_on(rank)) for rank in range(2))
        saved = 4 * schedule.num_stages // 2
        for micro_batches in (1, 1.5):
            cluster = Cluster((Device(memory_bytes=2 * weights + int(micro_batches * saved)),) * 2)
            room = bytes_room(lists, costs, cluster)
            problem = order_problem(lists, costs, cluster, room)
            monkeypatch.setattr("pipesched.schedules.columns.machine_code.BREAK_EVEN", 10**12)
            starts = planned_times(problem)
            monkeypatch.setattr("pipesched.schedules.columns.machine_code.BREAK_EVEN", 0)
            assert planned_times(problem) == starts
            planned = schedule_of_times(problem, lists, starts, "planned")
            assert room.holds(planned)
            assert not any(excess_in(room, costs, cluster)(planned))


def test_messages_need_room_that_a_list_is_given_by_fewer_micro_batches():
    """Beside weights and gradients of 2 bytes there are 4: too few for 4 of 1F1B's micro-batches and a message."""
    costs = pipesched.DeviceCost(1.0, 2.0, saved_bytes=10, weight_bytes=10, output_bytes=1)
    devices = pipesched.Cluster((Device(memory_bytes=60),) * 4)
    counts = {"num_ranks": 4, "num_microbatches": 8}
    assert not pipesched.simulate(pipesched.build("1f1b", **counts), pipesched.Setup(costs, devices)).fits
    result = pipesched.optimize(pipesched.build("1f1b", **counts), pipesched.Setup(costs, devices), seconds=0)
    assert result.simulation.fits
    assert result.over_limit is not None
    assert all(pipesched.simulate(order.schedule, pipesched.Setup(costs, devices)).fits for order in result.known)


def test_bytes_leave_room_for_activations_beside_weights_and_state():
    costs = StageCosts((StageCost(1.0, 2.0, saved_bytes=10, weight_bytes=3, optimizer_bytes=4),) * 2)
    lists = orderable(build("1f1b", 2, 4), costs)
    machines = Cluster((Device(memory_bytes=30), Device(memory_bytes=29)))
    room = bytes_room(lists, costs, machines)
    assert (room.limits, [stage.gradients for stage in room.stages]) == ((23, 22), [3, 3])
    assert room.holds(lists), "two micro-batches and gradients are 23 bytes"
    assert not replace(room, limits=(22, 22)).holds(lists)
    fewer = Cluster((Device(memory_bytes=28), Device(memory_bytes=29)))
    assert (excess_in(room, costs, machines)(lists), excess_in(room, costs, fewer)(lists)) == ((0, 0), (2, 0))
    assert bytes_room(lists, costs, flat(2)) is None
    with pytest.raises(
        SimulationError, match=r"rank 1: got room for 0.9 micro-batches, expected room for at least one"
    ):
        bytes_room(lists, costs, Cluster((Device(memory_bytes=31), Device(memory_bytes=19))))


@pytest.mark.slow
def test_an_order_that_recomputes_is_made_anew_in_less_room():
    """Outputs that R makes again hold more than the planner knows of: its first order is above the limit."""
    costs = StageCosts((StageCost(1.0, 2.0, saved_bytes=100, output_bytes=50),) * 3)
    cluster = Cluster((Device(memory_bytes=400),) * 3)
    assert planned_s(recompute(build("1f1b", 3, 4)), costs, cluster) <= 24.0


@pytest.mark.usefixtures("quick_planner")
def test_what_is_held_for_a_rounding_is_above_no_limit():
    """In the planner's order of 56.5 ms 7.2 GB would be held for 3e-18 s; orders without that take 61 ms."""
    schedule = build("v_half", 2, 6)
    sizes = {"saved_bytes": 500_000_000, "saved_for_weight_bytes": 200_000_000, "weight_bytes": 500_000_000}
    costs = StageCosts((StageCost(1e-3, None, 5e-4, 2e-3, output_bytes=10**9, **sizes),) * schedule.num_stages)
    cluster = Cluster((Device(memory_bytes=6_300_000_000),) * 2, Link(latency_s=1e-3))
    optimum = pipesched.optimize(schedule, pipesched.Setup(costs, cluster), seconds=0)
    assert optimum.makespan_s < 0.06
    assert pipesched.simulate(optimum.schedule, pipesched.Setup(costs, cluster)).fits
