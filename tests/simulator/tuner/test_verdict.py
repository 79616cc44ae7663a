import pytest

from pipesched.simulator.tuner import rank_correlation, regret


def test_the_regret_is_what_the_chosen_one_takes_longer_than_the_best():
    assert regret([1.1, 1.0, 3.0]) == pytest.approx(0.1)
    assert regret([1.0, 2.0]) == 0.0


@pytest.mark.parametrize(
    ("predicted", "measured", "expected"),
    [
        ([1, 2, 3], [10, 20, 40], 1.0),
        ([1, 2, 3], [3, 2, 1], -1.0),
        ([1, 2, 3, 4, 5], [2, 1, 4, 3, 5], 0.8),  # 1 - 6 * (1 + 1 + 1 + 1) / (5 * 24)
        ([1, 1, 2], [1, 2, 3], 3**0.5 / 2),  # equal ones share a rank: 0.5, 0.5, 2 against 0, 1, 2
        ([1], [2], None),
        ([1, 1], [1, 2], None),
    ],
)
def test_the_rank_correlation_is_spearmans(predicted, measured, expected):
    correlation = rank_correlation(predicted, measured)
    assert correlation == (None if expected is None else pytest.approx(expected))
