from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesched.profiles import ProfileError
from pipesched.profiles.partitioning import balanced_partition, parse_partition, uniform_partition
from tests.profiles.partitioning.brute_force import all_partitions

CASES = st.lists(st.integers(0, 50), min_size=1, max_size=9).flatmap(
    lambda seconds: st.tuples(st.just(seconds), st.integers(1, len(seconds)))
)


def check_contiguous(bounds, num_layers, num_stages):
    assert len(bounds) == num_stages
    assert bounds[0][0] == 0
    assert bounds[-1][1] == num_layers
    assert all(a < b for a, b in bounds)
    assert all(before[1] == after[0] for before, after in pairwise(bounds))


@given(CASES)
def test_no_partition_has_a_faster_slowest_stage_and_none_as_fast_is_more_even(case):
    seconds, num_stages = case

    def worth(bounds):
        return max(sum(seconds[a:b]) for a, b in bounds), sum(sum(seconds[a:b]) ** 2 for a, b in bounds)

    partition = balanced_partition(seconds, num_stages)
    check_contiguous(partition, len(seconds), num_stages)
    assert worth(partition) == min(map(worth, all_partitions(len(seconds), num_stages)))


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=8), st.data())
def test_seconds_with_rounding_still_give_a_partition(seconds, data):
    num_stages = data.draw(st.integers(1, len(seconds)))
    check_contiguous(balanced_partition(seconds, num_stages), len(seconds), num_stages)


@given(st.integers(1, 200), st.data())
def test_uniform_stages_differ_by_one_layer_at_most(num_layers, data):
    num_stages = data.draw(st.integers(1, num_layers))
    bounds = uniform_partition(num_layers, num_stages)
    check_contiguous(bounds, num_layers, num_stages)
    sizes = [b - a for a, b in bounds]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_a_partition_is_read_from_text():
    seconds = [1.0, 1.0, 1.0, 9.0]
    assert parse_partition("uniform", seconds, 2) == ((0, 2), (2, 4))
    assert parse_partition("balanced", seconds, 2) == ((0, 3), (3, 4))
    assert parse_partition("1, 3", seconds, 2) == ((0, 1), (1, 4))


@pytest.mark.parametrize("text", ["", "even", "2,2,x", "2.5,1.5", "2,1", "4", "0,4", "-1,5", "1,1,2", "2,3"])
def test_any_other_text_is_refused_in_one_line(text):
    with pytest.raises(ProfileError, match="expected"):
        parse_partition(text, [1.0] * 4, 2)


@pytest.mark.parametrize("num_stages", [0, -1, 5])
@pytest.mark.parametrize("text", ["uniform", "balanced", "1,1"])
def test_more_stages_than_layers_are_refused(text, num_stages):
    with pytest.raises(ProfileError, match="expected 1 to 4 stages"):
        parse_partition(text, [1.0] * 4, num_stages)


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_a_time_that_is_no_time_is_refused(bad):
    with pytest.raises(ProfileError, match="layer 1"):
        balanced_partition([1.0, bad], 2)
