import pytest

from pipesched.profiles.clusters import flat
from pipesched.profiles.costs import uniform
from pipesched.schedules.builders import build
from pipesched.schedules.lowering import lower
from pipesched.simulator import NetworkOptions
from pipesched.simulator.engine import simulate_lists
from pipesched.simulator.fast import Distribution, distribution, makespans


def test_percentiles_lie_between_the_sorted_makespans_in_proportion():
    values = [float(value) for value in range(100, -1, -1)]
    assert distribution(values) == Distribution(101, 0.0, 50.0, 90.0, 99.0, 100.0)
    assert distribution([3.0]) == Distribution(1, 3.0, 3.0, 3.0, 3.0, 3.0)


@pytest.mark.parametrize("num_processes", [1, 2])
def test_every_seed_gives_its_makespan_in_order_also_in_several_processes(num_processes):
    schedule, costs, cluster = lower(build("1f1b", 3, 4)), uniform(3, 1.0, 2.0), flat(3)
    seeds = range(3, 9)
    makespans_s = makespans(
        schedule, costs, cluster, network=NetworkOptions(), jitter=0.1, seeds=seeds, num_processes=num_processes
    )
    assert list(makespans_s) == [
        simulate_lists(schedule, costs, cluster, jitter=0.1, seed=seed).makespan_s for seed in seeds
    ]
