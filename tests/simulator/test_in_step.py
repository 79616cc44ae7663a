import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.cluster import Cluster, Device, Link, flat
from profiles.stage_costs import StageCost, StageCosts
from schedules.avgpipe import avgpipe, one_pipeline
from schedules.lower import lower
from schedules.op import Compute
from schedules.recompute import recompute
from simulator.errors import SimulationError
from simulator.in_step import in_step
from simulator.memory import memory
from simulator.simulate import simulate


def random_costs(chance, num_stages):
    return StageCosts(
        tuple(
            StageCost(
                chance.uniform(0.1, 2),
                chance.uniform(0.1, 4),
                step_s=chance.uniform(0, 1),
                copy_s=chance.uniform(0, 1),
                predict_s=chance.choice([None, chance.uniform(0, 1)]),
                average_s=chance.uniform(0, 1),
                output_bytes=chance.randint(0, 100),
                saved_bytes=chance.randint(0, 100),
                weight_bytes=chance.randint(0, 1000),
                optimizer_bytes=chance.randint(0, 1000),
                utilisation=chance.uniform(0.1, 1.0),
            )
            for _ in range(num_stages)
        )
    )


def random_cluster(chance, num_devices):
    devices = tuple(Device(chance.uniform(0.5, 2)) for _ in range(num_devices))
    links = tuple(
        (a, b, Link(chance.uniform(0, 1), chance.uniform(20, 500)))
        for a in range(num_devices)
        for b in range(num_devices)
        if chance.random() < 0.5
    )
    return Cluster(devices, Link(chance.uniform(0, 1), chance.uniform(20, 500)), links=links)


def totals(samples, device, instants):
    """Return the bytes held on a device at each instant, by kind."""
    mine = [sample for sample in samples if sample.device == device]
    return [dict([s for s in mine if s.time_s <= time_s][-1].bytes_by_kind) for time_s in instants]


@settings(deadline=None, max_examples=80)
@given(
    p=st.integers(1, 4),
    each=st.integers(1, 6),
    pipelines=st.integers(1, 5),
    advance=st.integers(0, 5),
    is_recomputed=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_it_equals_simpy_on_all_pipelines_whatever_they_cost(p, each, pipelines, advance, is_recomputed, seed):
    chance = random.Random(seed)
    costs, cluster = random_costs(chance, p), random_cluster(chance, p)
    every, one = avgpipe(p, each * pipelines, pipelines, advance), one_pipeline(p, each, pipelines, advance)
    every, one = (lower(recompute(s) if is_recomputed else s) for s in (every, one))
    found, expected = in_step(one, costs, cluster, pipelines), simulate(every, costs, cluster)
    for rank in range(every.num_ranks):
        for mine, theirs in zip(found.of_rank(rank % p), expected.of_rank(rank), strict=True):
            if isinstance(mine.op, Compute):
                assert mine.op == replace(theirs.op, microbatch=theirs.op.microbatch - rank // p * each)
            assert type(mine.op) is type(theirs.op)
            assert (mine.posted_s, mine.start_s, mine.end_s) == pytest.approx(
                (theirs.posted_s, theirs.start_s, theirs.end_s), rel=1e-9, abs=1e-9
            )
    samples = memory(expected, costs, every)
    for device in range(p):  # between changes, where roundings of the instants do not matter
        instants = sorted({s.time_s for s in found.memory if s.device == device})
        middles = [(a + b) / 2 for a, b in pairwise(instants) if b - a > 1e-6]
        assert totals(found.memory, device, middles) == totals(samples, device, middles)


def test_a_shared_nic_is_refused():
    cluster = replace(flat(2), nics=((0, 1),))
    with pytest.raises(SimulationError, match="1 shared NICs"):
        in_step(lower(one_pipeline(2, 2)), random_costs(random.Random(0), 2), cluster, 2)
