"""The planner counts the messages that lists hold as the simulator does."""

import random

import pytest

from pipesched.profiles.clusters import Cluster, Device, Link
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from pipesched.schedules.transforms import recompute
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.memory import memory, peak_memory
from pipesched.simulator.optimum import bytes_room, order_problem, orderable, schedule_of_times
from pipesched.simulator.optimum.due_arrays import due_arrays, message_state
from pipesched.simulator.optimum.message_room import messages_fit
from pipesched.simulator.optimum.op_times import listed_times
from pipesched.simulator.optimum.order_annealing import order_state, ordered_ticks

LARGE = 10**9


NAMES = ["gpipe", "1f1b", "zb_h1", "zb_h2", "interleaved", "zbv", "v_half", "v_min", "hanayo"]


def drawn(name, seed, *, recomputes):
    """Return lists with Steps as soon as they can be, their costs and machines, and their order problem."""
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
                weight_bytes=draw.choice((4, 8, 40)),
                output_bytes=draw.randint(1, 4),
                output_is_saved=draw.random() < 0.3,
                step_s=draw.choice((0.0, 0.5)),
                working_bytes=draw.choice((0, 3, 12)),
            )
            for _ in range(schedule.num_stages)
        )
    )
    cluster = Cluster((Device(memory_bytes=LARGE),) * p, Link(draw.choice((0.125, 0.25))))
    lists = orderable(schedule, costs)
    if recomputes:
        lists = recompute(lists, draw.sample(range(lists.num_stages), draw.randint(1, lists.num_stages)))
    problem = order_problem(lists, costs, cluster, bytes_room(lists, costs, cluster))
    return schedule_of_times(problem, lists, listed_times(problem, lists), name), costs, cluster, problem


def peaks_of(lists, costs, cluster, problem):
    """Return what the simulator says that each rank holds at most beside its weights."""
    lowered = lower(lists)
    peaks = peak_memory(memory(simulate_lists(lowered, costs, cluster), costs, lowered))
    weights = [sum(costs.stages[s].weight_bytes for s in lists.stages_on(rank)) for rank in range(lists.num_ranks)]
    return [(peaks[rank].total_bytes - weights[rank]) // problem.room.unit_bytes for rank in range(lists.num_ranks)]


def fitting(lists, problem):
    """Return what says whether a rank has room for the lists with a limit, all others with any."""
    arrays = due_arrays(problem)
    state = message_state(problem, arrays)
    starts = [start for row in listed_times(problem, lists) for start in row]
    orders = order_state(arrays, starts, problem.num_microbatches)
    ordered_ticks(arrays, orders, problem.num_microbatches)

    def fits(rank, limit):
        limits = [limit if other == rank else LARGE for other in range(lists.num_ranks)]
        order = orders.kinds, orders.starts, problem.num_microbatches
        return messages_fit(arrays._replace(limits=limits), state, *order)

    return fits


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(4))
def test_lists_have_room_in_the_peak_that_the_simulator_counts_and_in_no_byte_less(name, seed):
    lists, costs, cluster, problem = drawn(name, seed, recomputes=False)
    fits = fitting(lists, problem)
    for rank, peak in enumerate(peaks_of(lists, costs, cluster, problem)):
        assert fits(rank, peak)
        assert not fits(rank, peak - 1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(4))
def test_with_r_it_is_the_peak_but_for_two_messages(name, seed):
    """The planner lets an R wait for the gradient that its backward needs, so that other ops begin later."""
    lists, costs, cluster, problem = drawn(name, seed, recomputes=True)
    fits, messages = fitting(lists, problem), 2 * max(cost.output_bytes for cost in costs.stages)
    for rank, peak in enumerate(peaks_of(lists, costs, cluster, problem)):
        assert fits(rank, peak + messages)
        assert not fits(rank, peak - messages - 1)
