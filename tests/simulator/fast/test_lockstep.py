import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipesched.profiles.clusters import Cluster, Device, Link, flat
from pipesched.profiles.costs import Compression, StageCost, StageCosts
from pipesched.schedules import Compute
from pipesched.schedules.builders import build
from pipesched.schedules.builders.avgpipe import avgpipe, one_pipeline
from pipesched.schedules.lowering import lower
from pipesched.schedules.transforms import recompute
from pipesched.simulator import SimulationError
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.fast import lockstep_of, longest_path
from pipesched.simulator.memory import memory, over_capacity, peak_memory
from tests.strategies import random_cluster, random_costs


def totals(samples, device, instants):
    """Return the bytes held on a device at each instant, by kind."""
    device_samples = [sample for sample in samples if sample.device == device]
    return [dict([s for s in device_samples if s.time_s <= time_s][-1].bytes_by_kind) for time_s in instants]


def most(samples):
    """Return the most bytes of each device."""
    return {device: sample.total_bytes for device, sample in peak_memory(samples).items()}


def limited(cluster, chance, peaks):
    """Give devices as much memory as they need, or less."""
    shares = [chance.choice([None, 1.0, chance.random()]) for _ in cluster.devices]
    limits = [None if share is None else math.floor(share * peaks[device]) for device, share in enumerate(shares)]
    devices = zip(cluster.devices, limits, strict=True)
    return replace(cluster, devices=tuple(replace(device, memory_bytes=limit) for device, limit in devices))


def pipelines(p, share, pipelines, advance, is_recomputed):
    """Return the lists of all, lowered, and of one of several."""
    every, single = avgpipe(p, share * pipelines, pipelines, advance), one_pipeline(p, share, 2, advance)
    return tuple(lower(recompute(schedule) if is_recomputed else schedule) for schedule in (every, single))


SHAPES = {
    "p": st.integers(1, 4),
    "share": st.integers(1, 6),
    "advance": st.integers(0, 5),
    "is_recomputed": st.booleans(),
    "seed": st.integers(0, 10**6),
}


@settings(deadline=None, max_examples=80)
@given(number=st.integers(1, 5), **SHAPES)
def test_it_equals_simpy_on_all_pipelines_whatever_they_cost(p, share, number, advance, is_recomputed, seed):
    chance = random.Random(seed)
    costs, cluster = random_costs(chance, p), random_cluster(chance, p)
    every, single = pipelines(p, share, number, advance, is_recomputed)
    pipeline, expected = lockstep_of(single, costs, cluster), simulate_lists(every, costs, cluster)
    times_s = pipeline.times_s(number)
    timeline = pipeline.timeline(times_s, number)
    assert pipeline.makespan_s(times_s, number) == pytest.approx(expected.makespan_s, rel=1e-9)
    for rank in range(every.num_ranks):
        for span, expected_span in zip(timeline.of_rank(rank % p), expected.of_rank(rank), strict=True):
            if isinstance(span.op, Compute):
                assert span.op == replace(expected_span.op, microbatch=expected_span.op.microbatch - rank // p * share)
            assert type(span.op) is type(expected_span.op)
            assert (span.posted_s, span.start_s, span.end_s) == pytest.approx(
                (expected_span.posted_s, expected_span.start_s, expected_span.end_s), rel=1e-9, abs=1e-9
            )
    held, samples = memory(timeline, costs, single, num_pipelines=number), memory(expected, costs, every)
    assert pipeline.peaks(times_s, number) == most(held)
    for device in range(p):  # between changes, where roundings of the instants do not matter
        instants = sorted({s.time_s for s in held if s.device == device})
        middles = [(a + b) / 2 for a, b in pairwise(instants) if b - a > 1e-6]
        assert totals(held, device, middles) == totals(samples, device, middles)


@settings(deadline=None, max_examples=80)
@given(number=st.sampled_from([1, 2, 4]), **SHAPES)
def test_where_all_sums_are_exact_the_most_that_is_held_and_who_takes_too_much_are_simpys(
    p, share, number, advance, is_recomputed, seed
):
    chance = random.Random(seed)
    costs, cluster = (
        random_costs(chance, p),
        Cluster((Device(),) * p, Link(chance.randint(0, 3), 2.0 ** chance.randint(3, 7))),
    )
    whole = [
        replace(
            cost,
            forward_s=chance.randint(0, 3),
            backward_s=chance.randint(0, 5),
            step_s=chance.randint(0, 1),
            average_s=2,
            utilisation=1.0,
        )
        for cost in costs.stages
    ]
    costs = replace(costs, stages=tuple(whole))
    every, single = pipelines(p, share, number, advance, is_recomputed)
    expected = simulate_lists(every, costs, cluster)
    samples = memory(expected, costs, every)
    pipeline = lockstep_of(single, costs, limited(cluster, chance, most(samples)))
    times_s = pipeline.times_s(number)
    peaks = pipeline.peaks(times_s, number)
    assert pipeline.makespan_s(times_s, number) == expected.makespan_s
    assert peaks == most(samples)
    overflow = pipeline.over_capacity(times_s, number, peaks)
    expected_overflow = over_capacity(samples, pipeline.cluster, expected)
    assert (overflow is None) == (expected_overflow is None)
    if overflow is not None and expected_overflow is not None:
        assert replace(overflow, rank=0, op=None) == replace(expected_overflow, rank=0, op=None)


@settings(deadline=None, max_examples=40)
@given(
    name=st.sampled_from(["gpipe", "zb_h1", "interleaved", "1f1b", "dualpipe", "pipedream", "spectrain", "chimera"]),
    m=st.integers(1, 2),
    is_recomputed=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_alone_it_is_the_longest_path_of_any_lists_with_their_memory_and_the_op_that_takes_too_much(
    name, m, is_recomputed, seed
):
    chance = random.Random(seed)
    schedule = lower(recompute(build(name, 4, 8 * m)) if is_recomputed else build(name, 4, 8 * m))
    costs, cluster = random_costs(chance, schedule.num_stages), random_cluster(chance, 4)
    split = (
        replace(
            cost,
            forward_s=chance.choice([0.0, cost.forward_s]),
            backward_s=chance.choice([0.0, 2.0]),
            backward_input_s=chance.choice([0.0, 1.5]),
            backward_weight_s=chance.choice([0.0, 0.7]),
        )
        for cost in costs.stages
    )
    costs = replace(costs, stages=tuple(split))
    timeline = longest_path(schedule, costs, cluster)
    samples = memory(timeline, costs, schedule)
    pipeline = lockstep_of(schedule, costs, limited(cluster, chance, most(samples)))
    times_s = pipeline.times_s(1)
    peaks = pipeline.peaks(times_s, 1)
    assert pipeline.timeline(times_s, 1) == timeline
    assert pipeline.makespan_s(times_s, 1) == timeline.makespan_s
    assert peaks == most(samples)
    assert pipeline.over_capacity(times_s, 1, peaks) == over_capacity(samples, pipeline.cluster, timeline)


def test_a_shared_nic_is_refused():
    cluster = replace(flat(2), nics=((0, 1),))
    with pytest.raises(SimulationError, match="1 shared NICs"):
        lockstep_of(lower(one_pipeline(2, 2)), random_costs(random.Random(0), 2), cluster)


def test_a_device_that_never_holds_too_much_is_not_asked_when():
    pipeline = lockstep_of(lower(one_pipeline(1, 1)), random_costs(random.Random(0), 1), flat(1))
    with pytest.raises(SimulationError, match="device 0: got 1000000 bytes, expected less than it ever holds"):
        pipeline.held[0].first_over(pipeline.times_s(2), 2, 10**6)


def test_pipelines_that_slow_each_other_slow_the_conversion_of_their_messages_too():
    cost = StageCost(1.0, 2.0, output_bytes=1000, utilisation=0.8)
    costs = StageCosts((cost, cost), compression=Compression(4, 1000))
    every, single = pipelines(2, 4, 2, 0, is_recomputed=False)
    pipeline = lockstep_of(single, costs, flat(2))
    assert pipeline.makespan_s(pipeline.times_s(2), 2) == pytest.approx(40.0)
    assert simulate_lists(every, costs, flat(2)).makespan_s == pytest.approx(40.0)
