"""The lifetimes of columns against the lifetimes of objects, in `readable_lifetimes`."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.schedules import ScheduleError
from pipesched.schedules.builders import CATALOGUE, build
from pipesched.schedules.lowering import lower
from pipesched.schedules.transforms import recompute
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.memory import memory
from tests.properties import examples
from tests.simulator.memory import readable_lifetimes
from tests.strategies import random_cluster, random_costs


@pytest.mark.parametrize("buffers", ["pooled", "at_use", "per_microbatch"])
@examples(25)
@given(
    name=st.sampled_from(sorted(CATALOGUE)),
    p=st.integers(1, 4),
    m=st.integers(1, 9),
    chance=st.randoms(use_true_random=False),
    has_instant_forwards=st.booleans(),
)
def test_samples_are_those_of_the_readable_lifetimes(buffers, name, p, m, chance, has_instant_forwards):
    try:
        schedule = build(name, p, m)
    except ScheduleError:
        return  # these counts are not for this schedule
    schedule = lower(recompute(schedule, None, chance.choice(("early", "late"))) if chance.random() < 0.5 else schedule)
    costs = random_costs(chance, schedule.num_stages)
    if has_instant_forwards:
        costs = replace(costs, stages=tuple(replace(cost, forward_s=0.0) for cost in costs.stages))
    timeline = simulate_lists(schedule, costs, random_cluster(chance, schedule.num_devices))
    assert memory(timeline, costs, schedule, buffers=buffers) == readable_lifetimes.memory(
        timeline, costs, schedule, buffers=buffers
    )
