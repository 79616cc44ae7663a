"""Equal pipelines that begin together: what is known of one is what SimPy says of all."""

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipesched.profiles.clusters import Cluster, Device, Link
from pipesched.schedules.builders import build
from pipesched.schedules.builders.avgpipe import avgpipe, one_pipeline
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Compute
from pipesched.schedules.transforms import recompute
from pipesched.simulator import USUAL_NETWORK
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.fast import EqualPipelines, LoadedProgram, compile_lists
from pipesched.simulator.memory import memory, over_capacity, peak_memory
from tests.properties import examples
from tests.simulator.memory import readable_lifetimes
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


@examples(25)
@given(number=st.integers(1, 5), **SHAPES)
def test_it_equals_simpy_on_all_pipelines_whatever_they_cost(p, share, number, advance, is_recomputed, seed):
    chance = random.Random(seed)
    costs, cluster = random_costs(chance, p), random_cluster(chance, p)
    every, single = pipelines(p, share, number, advance, is_recomputed)
    expected, answer = simulate_lists(every, costs, cluster), EqualPipelines(single, costs, cluster).together(number)
    assert answer.seconds == pytest.approx(expected.makespan_s, rel=1e-9)
    if number == 1:
        return
    program = compile_lists(single, USUAL_NETWORK, has_hand_over=cluster.has_hand_over)
    timeline = program.timeline(LoadedProgram(program, costs, cluster, num_pipelines=number).times())
    for rank in range(every.num_ranks):
        for span, expected_span in zip(timeline.of_rank(rank % p), expected.of_rank(rank), strict=True):
            if isinstance(span.op, Compute):
                assert span.op == replace(expected_span.op, microbatch=expected_span.op.microbatch - rank // p * share)
            assert type(span.op) is type(expected_span.op)
            assert (span.posted_s, span.start_s, span.end_s) == pytest.approx(
                (expected_span.posted_s, expected_span.start_s, expected_span.end_s), rel=1e-9, abs=1e-9
            )
    held = readable_lifetimes.memory(timeline, costs, single, num_pipelines=number)
    samples = memory(expected, costs, every)
    assert answer.peak_bytes == most(held)
    for device in range(p):  # between changes, where roundings of the instants do not matter
        instants = sorted({s.time_s for s in held if s.device == device})
        middles = [(a + b) / 2 for a, b in pairwise(instants) if b - a > 1e-6]
        assert totals(held, device, middles) == totals(samples, device, middles)


@examples(25)
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
    tight = limited(cluster, chance, most(samples))
    answer, overflow = EqualPipelines(single, costs, tight).together(number), over_capacity(samples, tight, expected)
    assert answer.seconds == expected.makespan_s
    assert answer.peak_bytes == most(samples)
    where = None if overflow is None else str(overflow).split(", at ")[0]  # the op is that of another pipeline
    assert (answer.over_memory and answer.over_memory.split(", at ")[0]) == where


@examples(25)
@example("chimera", 1, True, 1055)  # a B begins a rounding after its R of no time, which takes the device over
@example("1f1b", 1, True, 7)
@given(
    name=st.sampled_from(["gpipe", "zb_h1", "interleaved", "1f1b", "dualpipe", "pipedream", "spectrain", "chimera"]),
    m=st.integers(1, 2),
    is_recomputed=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_alone_it_is_any_lists_with_their_memory_and_the_op_that_takes_too_much(name, m, is_recomputed, seed):
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
    program = compile_lists(schedule, USUAL_NETWORK, has_hand_over=cluster.has_hand_over)
    timeline = program.timeline(LoadedProgram(program, costs, cluster).times())
    assert timeline.makespan_s == pytest.approx(simulate_lists(schedule, costs, cluster).makespan_s, rel=1e-9)
    samples = memory(timeline, costs, schedule)
    tight = limited(cluster, chance, most(samples))
    answer, overflow = EqualPipelines(schedule, costs, tight).together(1), over_capacity(samples, tight, timeline)
    assert answer.seconds == timeline.makespan_s
    assert answer.peak_bytes == most(samples)
    assert answer.over_memory == (None if overflow is None else str(overflow))
