"""The event loop in plain Python and compiled: the same numbers."""

import random

import pytest

from pipesched.schedules.builders import one_pipeline
from pipesched.schedules.lowering import lower
from pipesched.simulator.fast import arrays_of_lists
from pipesched.simulator.fast import drift_loop as module
from pipesched.simulator.fast.drift_loop import run_lanes
from tests.strategies import random_cluster, random_costs


def some_lists(seed):
    chance = random.Random(seed)
    costs, cluster = random_costs(chance, 4), random_cluster(chance, 4)
    return arrays_of_lists(lower(one_pipeline(4, chance.randint(1, 6), 2, chance.randint(0, 2))), costs, cluster)


def forget():
    """Arrays are for numba, lists for plain Python."""
    module._factors.cache_clear()
    module._numbers.cache_clear()


def test_a_seed_says_all_factors():
    lists, starts_s = some_lists(0), [0.0, 0.5]
    assert run_lanes(lists, starts_s, 3, 0.05, seed=1) == run_lanes(lists, starts_s, 3, 0.05, seed=1)
    assert run_lanes(lists, starts_s, 3, 0.05, seed=1) != run_lanes(lists, starts_s, 3, 0.05, seed=2)


@pytest.mark.parametrize("seed", range(12))
def test_compiled_it_is_the_same_bit_for_bit(seed, monkeypatch):
    lists, starts_s = some_lists(seed), [0.0, 0.0, 0.25]
    compiled = run_lanes(lists, starts_s, 6, 0.05)
    monkeypatch.setattr(module, "_run", module._run.py_func)
    monkeypatch.setattr(module, "numba", None)
    forget()
    assert [list(ends_s) for ends_s in compiled] == run_lanes(lists, starts_s, 6, 0.05)
    forget()
