"""The planner counts the messages that lists hold as the simulator does."""

import random

import pytest

from pipesched.profiles.clusters import Cluster, Device, Link
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.memory import memory, peak_memory
from pipesched.simulator.optimum import bytes_room, order_problem, orderable
from pipesched.simulator.optimum.due_arrays import due_arrays, message_arrays, message_state
from pipesched.simulator.optimum.message_room import messages_fit
from pipesched.simulator.optimum.op_times import listed_times
from pipesched.simulator.optimum.order_annealing import order_state, ordered_ticks

LARGE = 10**9


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb_h1", "zb_h2", "interleaved", "zbv", "v_half", "v_min", "hanayo"])
@pytest.mark.parametrize("seed", range(20))
def test_lists_have_room_in_the_peak_that_the_simulator_counts_and_in_no_byte_less(name, seed):
    draw = random.Random(f"{name} {seed}")
    p = draw.choice((2, 3, 4))
    schedule = build(name, p, p * draw.choice((1, 2)), 2 if name == "interleaved" else None)
    is_split = name.startswith(("z", "v"))
    costs = StageCosts(
        tuple(
            StageCost(
                draw.choice((0.5, 1.0)),
                *((None, draw.choice((0.5, 1.0)), 1.0) if is_split else (draw.choice((1.0, 2.0)),)),
                saved_bytes=draw.randint(8, 20),
                saved_for_weight_bytes=8,
                weight_bytes=draw.randint(1, 8),
                output_bytes=draw.randint(1, 4),
                output_is_saved=draw.random() < 0.3,
                step_s=draw.choice((0.0, 0.5)),
            )
            for _ in range(schedule.num_stages)
        )
    )
    cluster = Cluster((Device(memory_bytes=LARGE),) * p, Link(draw.choice((0.125, 0.25))))
    lists = orderable(schedule, costs)
    lowered = lower(lists)
    peaks = peak_memory(memory(simulate_lists(lowered, costs, cluster), costs, lowered))
    problem = order_problem(lists, costs, cluster, bytes_room(lists, costs, cluster))
    arrays, messages = due_arrays(problem), message_arrays(problem)
    state = message_state(problem, messages)
    starts = [start for row in listed_times(problem, lists) for start in row]
    orders = order_state(arrays, starts, problem.num_microbatches)
    ordered_ticks(arrays, orders, problem.num_microbatches)
    unit = problem.room.unit_bytes
    for rank in range(p):
        weights = sum(costs.stages[stage].weight_bytes for stage in lists.stages_on(rank))
        peak = (peaks[rank].total_bytes - weights) // unit
        for limit, fits in ((peak, True), (peak - 1, False)):
            limits = [LARGE] * rank + [limit] + [LARGE] * (p - rank - 1)
            with_limits = arrays._replace(limits=limits)
            order = orders.kinds, orders.starts, problem.num_microbatches
            assert messages_fit(with_limits, messages, state, *order) is fits
