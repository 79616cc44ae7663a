import pytest

from pipesched.simulator.search import covered_sizes, divisors, nearest_batch
from tests.profiles.hand_profiles import layer, measurement, profile


def test_sizes_between_two_that_were_measured_are_covered_and_so_are_those_that_divide_nothing():
    measured = profile(layer(*(measurement(size, 1.0, 2.0) for size in (2, 5, 8))))
    assert covered_sizes(measured, 12) == (2, 3, 4, 5, 6, 8)
    assert covered_sizes(measured, 4) == (2, 4)


@pytest.mark.parametrize("sizes", [(1, 4), (3, 5), (6,), (4, 6, 9)])
@pytest.mark.parametrize(("width", "batch_size"), [(1, 1), (1, 23), (2, 17), (3, 5), (3, 24)])
def test_the_nearest_batch_is_the_nearest_of_all_that_copies_can_share(sizes, width, batch_size):
    measured = profile(layer(*(measurement(size, 1.0, 2.0) for size in sizes)))
    covered = sizes if len(sizes) == 1 else range(sizes[0], sizes[-1] + 1)
    possible = [copies for copies in range(1, 200) if any(copies % (width * size) == 0 for size in covered)]
    expected = min(possible, key=lambda possible_size: (abs(possible_size - batch_size), possible_size))
    assert nearest_batch(measured, batch_size, width) == expected


@pytest.mark.parametrize(
    ("number", "expected"), [(1, (1,)), (12, (1, 2, 3, 4, 6, 12)), (36, (1, 2, 3, 4, 6, 9, 12, 18, 36))]
)
def test_divisors_are_all_of_them(number, expected):
    assert divisors(number) == expected
