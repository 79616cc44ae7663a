import pytest

from pipesched.workflows.tuning import rank_correlation


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
