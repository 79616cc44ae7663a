"""Pipelines that drift: SimPy is the oracle, iteration by iteration."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.profiles.clusters import Link, flat
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules import repeat
from pipesched.schedules.builders import build
from pipesched.schedules.builders.avgpipe import avgpipe, one_pipeline
from pipesched.schedules.columns import machine_code
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Average
from pipesched.schedules.transforms import recompute, replicate
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.fast import EqualPipelines
from tests.properties import examples
from tests.strategies import random_cluster, random_costs


def simpy_ends(schedule, costs, cluster, num_ranks, num_pipelines, iterations, jitter=0.0):
    """When SimPy says that each iteration of each pipeline is over on all its ranks."""
    timeline = simulate_lists(repeat(schedule, iterations).held(), costs, cluster, jitter=jitter)
    ends = [[0.0] * iterations for _ in range(num_pipelines)]
    for rank in range(num_ranks * num_pipelines):
        last = [span.end_s for span in timeline.spans if span.rank == rank and span.op == Average(rank % num_ranks)]
        for iteration, end_s in enumerate(last):
            ends[rank // num_ranks][iteration] = max(ends[rank // num_ranks][iteration], end_s)
    return ends


@examples(25)
@given(
    seed=st.integers(0, 10**6),
    num_ranks=st.integers(1, 4),
    num_microbatches=st.integers(1, 5),
    num_pipelines=st.integers(2, 4),
    iterations=st.integers(1, 3),
    recomputes=st.booleans(),
)
def test_any_iterations_are_simpys(seed, num_ranks, num_microbatches, num_pipelines, iterations, recomputes):
    chance = random.Random(seed)
    costs, cluster = random_costs(chance, num_ranks), random_cluster(chance, num_ranks)
    advance = chance.randint(0, 2)
    everyone = avgpipe(num_ranks, num_microbatches * num_pipelines, num_pipelines, advance)
    single = one_pipeline(num_ranks, num_microbatches, num_pipelines, advance)
    if recomputes:
        everyone, single = recompute(everyone), recompute(single)
    expected = simpy_ends(lower(everyone), costs, cluster, num_ranks, num_pipelines, iterations)
    ends_s = EqualPipelines(single, costs, cluster).ends_s(num_pipelines, iterations)
    for end_s, expected_s in zip(ends_s, expected, strict=True):
        assert end_s == pytest.approx(expected_s, rel=1e-9)


def test_two_pipelines_that_drift_take_longer_than_one_and_less_than_two_in_lockstep():
    """Of two devices one pipeline with one micro-batch leaves one idle, always; in step two take twice as long."""
    pipelines = EqualPipelines(one_pipeline(2, 1, 1, 0), StageCosts((StageCost(1.0, 2.0),) * 2), flat(2))
    assert pipelines.ends_s(1, 3) == [[6.0, 12.0, 18.0]]
    assert pipelines.ends_s(2) == [[12.0], [12.0]]
    pace, (ends_s, _) = pipelines.pace(2), pipelines.ends_s(2, 12_000, 0.05, seed=1)
    assert pace.seconds == pytest.approx((ends_s[-1] - ends_s[1_999]) / 10_000, rel=0.05)
    assert pace.error < 0.1


@pytest.mark.parametrize("num_pipelines", [1, 2, 3])
def test_a_device_without_bubbles_is_shared_and_no_more(num_pipelines):
    costs = StageCosts((StageCost(1.0, 2.0, step_s=0.5),))
    pace_s = EqualPipelines(one_pipeline(1, 4, 1, 0), costs, flat(1)).pace(num_pipelines).seconds
    assert pace_s == pytest.approx(12.5 * num_pipelines, rel=0.01)


@examples(25)
@given(
    seed=st.integers(0, 10**6),
    num_ranks=st.integers(1, 8),
    num_microbatches=st.integers(1, 16),
    num_pipelines=st.integers(2, 8),
)
def test_no_device_and_no_link_does_more_than_it_can(seed, num_ranks, num_microbatches, num_pipelines):
    chance = random.Random(seed)
    costs, cluster = random_costs(chance, num_ranks), random_cluster(chance, num_ranks)
    schedule = one_pipeline(num_ranks, num_microbatches, num_pipelines, chance.randint(0, 7))
    pace_s = EqualPipelines(schedule, costs, cluster).pace(num_pipelines).seconds
    for stage, cost in enumerate(costs.stages):
        seconds = num_microbatches * (cost.forward_s + cost.backward_s) + cost.step_s + cost.average_s
        least = max(1.0, num_pipelines * cost.utilisation) * seconds / cluster.devices[stage].speed
        assert pace_s >= least * (1 - 1e-9)


def test_long_lists_of_many_pipelines_take_about_what_they_take_over_more_iterations(monkeypatch):
    monkeypatch.setattr(machine_code, "BREAK_EVEN", 0)
    costs = StageCosts((StageCost(1.0, 2.0),) * 8)
    for num_pipelines, advance in ((5, 7), (8, 10)):
        pipelines = EqualPipelines(one_pipeline(8, 16, num_pipelines, advance), costs, flat(8))
        ends = pipelines.ends_s(num_pipelines, 40, 0.05)
        from_s, until_s = max(ends_s[19] for ends_s in ends), min(ends_s[-1] for ends_s in ends)
        counted = [[end_s for end_s in ends_s if from_s <= end_s <= until_s] for ends_s in ends]
        long_run_s = sum(ends_s[-1] - ends_s[0] for ends_s in counted) / sum(len(ends_s) - 1 for ends_s in counted)
        assert pipelines.pace(num_pipelines).seconds == pytest.approx(long_run_s, rel=0.02)


@pytest.mark.parametrize("seed", range(2))
def test_compiled_they_are_the_same_bit_for_bit(seed, monkeypatch):
    chance = random.Random(seed)
    costs, cluster = random_costs(chance, 3), random_cluster(chance, 3)
    pipelines = EqualPipelines(one_pipeline(3, chance.randint(1, 5), 2, chance.randint(0, 2)), costs, cluster)
    ends_s = []
    for break_even in (0, 10**18):
        monkeypatch.setattr(machine_code, "BREAK_EVEN", break_even)
        ends_s.append(pipelines.ends_s(3, 4, 0.05))
    assert ends_s[0] == ends_s[1]


@pytest.mark.parametrize("transfer_s", [0.5, 2.0])
def test_pipelines_that_share_no_device_time_but_a_link_drift_too(transfer_s):
    """An iteration alone is F c F B c B; of two in lockstep, each message takes twice as long."""
    stages = StageCost(1.0, 1.0, output_bytes=10, utilisation=0.5), StageCost(1.0, 1.0, utilisation=0.5)
    pipelines = EqualPipelines(one_pipeline(2, 1, 2, 0), StageCosts(stages), flat(2, Link(0.0, 10 / transfer_s)))
    assert pipelines.ends_s(2, 2) == [[4 + 4 * transfer_s, 8 + 8 * transfer_s]] * 2
    assert pipelines.slow_each_other(2)
    assert 0.99 * (4 + 2 * transfer_s) < pipelines.pace(2).seconds < 4 + 3 * transfer_s


def test_pipelines_that_share_neither_device_time_nor_a_link_do_not_slow_each_other():
    costs = StageCosts((StageCost(1.0, 1.0, output_bytes=10, utilisation=0.5),) * 2)
    pipelines = EqualPipelines(one_pipeline(2, 1, 2, 0), costs, flat(2, Link(1.0)))
    assert [pipelines.slow_each_other(number) for number in (1, 2, 3)] == [False, False, True]


def test_pipelines_with_reductions_are_judged_by_their_ops_only():
    costs = StageCosts((StageCost(1.0, 1.0, output_bytes=10, weight_bytes=10, utilisation=0.5),) * 2)
    pipelines = EqualPipelines(replicate(lower(build("1f1b", 2, 4)), 2), costs, flat(4, Link(0.0, 5.0)))
    assert [pipelines.slow_each_other(number) for number in (1, 2, 3)] == [False, False, True]
