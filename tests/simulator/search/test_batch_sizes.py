import pytest

from pipesched.simulator.search import covered_sizes, divisors
from tests.profiles.hand_profiles import layer, measurement, profile


def test_sizes_between_two_that_were_measured_are_covered_and_so_are_those_that_divide_nothing():
    measured = profile(layer(*(measurement(size, 1.0, 2.0) for size in (2, 5, 8))))
    assert covered_sizes(measured, 12) == (2, 3, 4, 5, 6, 8)
    assert covered_sizes(measured, 4) == (2, 4)


@pytest.mark.parametrize(
    ("number", "expected"), [(1, (1,)), (12, (1, 2, 3, 4, 6, 12)), (36, (1, 2, 3, 4, 6, 9, 12, 18, 36))]
)
def test_divisors_are_all_of_them(number, expected):
    assert divisors(number) == expected
