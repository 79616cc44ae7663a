from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simpy import Environment

from pipesched.simulator.engine.device import OwnDevice, SharedDevice
from tests.properties import examples


def ends(jobs: Sequence[tuple[float, float, float]], speed: float = 1.0) -> list[float]:
    """End of each (start, seconds, utilisation) on one shared device."""
    env = Environment()
    device = SharedDevice(env, speed)
    ends_s = [0.0] * len(jobs)

    def job(index, start_s, seconds, utilisation):
        yield env.timeout(start_s)
        yield device.run(seconds, utilisation)
        ends_s[index] = env.now

    for index, (start_s, seconds, utilisation) in enumerate(jobs):
        env.process(job(index, start_s, seconds, utilisation))
    env.run()
    return ends_s


def test_two_ops_that_want_more_than_the_device_slow_each_other_in_proportion():
    # Together they want 1.5: from 0.5 s on each runs at 2/3, the first for 0.75 s; then the second is alone again.
    assert ends([(0.0, 1.0, 0.75), (0.5, 1.0, 0.75)]) == pytest.approx([1.25, 1.75], rel=1e-12)


def test_ops_that_fit_beside_each_other_do_not_slow_each_other():
    assert ends([(0.0, 1.0, 0.3), (0.25, 2.0, 0.3), (0.5, 1.0, 0.4)]) == pytest.approx([1.0, 2.25, 1.5], rel=1e-12)


def test_unequal_utilisations_slow_all_alike():
    # 0.5 + 1.0: both at 2/3 until the first has done its 1 s at 1.5 s; the second has 2 s left, alone.
    assert ends([(0.0, 1.0, 0.5), (0.0, 3.0, 1.0)]) == pytest.approx([1.5, 3.5], rel=1e-12)


def test_a_device_that_was_idle_starts_afresh():
    assert ends([(0.0, 1.0, 1.0), (5.0, 1.0, 1.0), (5.5, 0.25, 1.0)], speed=0.5) == pytest.approx([2.0, 7.5, 6.5])


@examples(30)
@given(seconds=st.lists(st.floats(0.0, 10.0), min_size=1, max_size=8))
def test_equal_shares_end_as_the_processor_sharing_formula_says(seconds):
    # All from 0 s at full utilisation: the k-th shortest ends when the shorter are done and it has had its share.
    ordered, n = sorted(seconds), len(seconds)
    expected = [sum(ordered[:k]) + (n - k) * ordered[k] for k in range(n)]
    assert sorted(ends([(0.0, work_s, 1.0) for work_s in seconds])) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_a_device_of_one_rank_only_divides_by_the_speed():
    env = Environment()
    over = OwnDevice(env, 2.0).run(3.0, 1.0)
    env.run(until=over)
    assert env.now == 1.5
