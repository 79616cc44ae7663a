"""The least period of a run without a flush: the closed form of 1F1B, and all numbers in flight of three ranks."""

import math
import random
from itertools import product

import pytest

from pipesched.profiles.clusters import Cluster, Device, Link, flat
from pipesched.profiles.costs import StageCost, StageCosts, uniform
from pipesched.schedules import NotRunnableError
from pipesched.schedules.builders import build
from pipesched.schedules.check import find_faults
from pipesched.schedules.lowering import lower
from pipesched.simulator import SimulationError
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.optimum import least_period, unflushed_in_flight, unflushed_lists, unflushed_run

RANKS, MOST = 3, 4
TIMELESS = 5
"""The last seed whose copies and predictions of weights take no time."""


@pytest.mark.parametrize("p", [1, 2, 5])
def test_equal_stages_and_free_links_need_what_1f1b_has(p):
    """Rank k has p - k in flight, and a micro-batch takes F + B."""
    schedule = build("pipedream", p, 8)
    run = unflushed_run(schedule, uniform(p, 1.0, 2.0), flat(p))
    assert least_period(run, lambda counts: True) == tuple(range(p, 0, -1)) == unflushed_in_flight(schedule)
    assert run.period_s(range(p, 0, -1)) == run.bound_s([p] * p) == 3.0
    assert unflushed_lists(schedule, unflushed_in_flight(schedule), 8, "again").ops == schedule.ops


SCHEDULES = ("pipedream", "vanilla_1f1b", "stale_weights", "pipedream_2bw", "spectrain", "xpipe", "pipeoptim")


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("p", [1, 2, 5])
def test_lists_with_as_many_in_flight_are_the_builders(name, p):
    schedule = build(name, p, 4 * p)
    assert unflushed_lists(schedule, unflushed_in_flight(schedule), 8 * p, name).ops == build(name, p, 8 * p).ops


def engine_period_s(schedule, counts, costs, cluster):
    """Return by how much longer a run takes for each micro-batch more, once it has settled."""
    ends = []
    for m in (24, 36):  # 12 is a multiple of all numbers of micro-batches that may go round
        try:
            lists = lower(unflushed_lists(schedule, counts, m, "run"))
        except NotRunnableError:
            return math.inf
        assert not find_faults(lists)
        ends.append(simulate_lists(lists, costs, cluster).makespan_s)
    return (ends[1] - ends[0]) / 12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "seed"),
    [("vanilla_1f1b", 1), ("pipedream", 2), ("pipedream_2bw", 4), ("pipedream", 6), ("xpipe", 8)],
)
def test_the_period_is_the_engines_and_the_least_of_all_numbers_in_flight(name, seed):
    draw = random.Random(seed)
    num_bytes = 7 if seed == 2 else 0  # a message then takes its link longer than any op its device
    stages = [
        StageCost(
            draw.randint(1, 6) / 4,
            draw.randint(1, 9) / 4,
            step_s=0.0 if name == "pipedream_2bw" else draw.choice([0.0, 0.5]),
            output_bytes=num_bytes,
            copy_s=draw.choice([0.0, 0.25, 1.0]) if seed > TIMELESS else 0.0,
            predict_s=draw.choice([0.5, 2.0]) if seed > TIMELESS else None,
        )
        for _ in "012"
    ]
    costs = StageCosts(tuple(stages))
    cluster = Cluster((Device(), Device(speed=2.0), Device()), Link(draw.choice([0.25, 1.5]), 1.0))
    schedule = build(name, RANKS, 12)
    run = unflushed_run(schedule, costs, cluster)
    paces = {
        counts: engine_period_s(schedule, counts, costs, cluster)
        for counts in product(range(1, MOST + 1), repeat=RANKS)
    }
    assert {counts: run.period_s(counts) for counts in paces} == pytest.approx(paces, rel=1e-9)
    for most in range(1, MOST + 1):
        best_s = min(pace_s for counts, pace_s in paces.items() if max(counts) <= most)
        counts = least_period(run, lambda numbers, most=most: max(numbers) <= most)
        assert run.period_s(counts) == pytest.approx(best_s, rel=1e-9)
        assert run.bound_s([most] * RANKS) <= best_s * (1 + 1e-9)
        as_fast = (others for others, pace_s in paces.items() if pace_s <= best_s * (1 + 1e-9) and max(others) <= most)
        assert all(own <= other for others in as_fast for own, other in zip(counts, others, strict=True))


@pytest.mark.parametrize("name", ["wpipe", "hybrid"])
def test_another_run_without_a_flush_is_refused(name):
    schedule = build(name, 2, 8)
    with pytest.raises(SimulationError, match=f"{name}: got a run without a flush that optimize does not cover"):
        unflushed_lists(schedule, (2, 1), 8, "run")
