"""Verdicts on paired differences, beside scipy and beside schemes that are equal by construction."""

import numpy as np
import pytest

SEEDS = 12
"""Seeds of the benchmark."""
LEVEL = 0.05
SCANS = 297
"""Held-out samples: accuracies are multiples of one over this."""


@pytest.fixture
def paired(rows):
    return rows("paired_statistics")


@pytest.mark.parametrize("num_seeds", [2, 5, 10])
def test_the_sign_flip_test_is_the_exact_permutation_test_of_scipy(paired, num_seeds):
    from scipy import stats

    rng = np.random.default_rng(num_seeds)
    differences = np.column_stack([rng.normal(size=num_seeds), rng.integers(-2, 3, num_seeds), np.zeros(num_seeds)])
    for column, p in zip(differences.T, paired.sign_flip_p(differences), strict=True):
        exact = stats.permutation_test(
            (column, np.zeros(num_seeds)),
            lambda a, b, axis: np.abs((a - b).mean(axis=axis)),
            permutation_type="samples",
            alternative="greater",
            n_resamples=np.inf,
        )
        assert p == pytest.approx(exact.pvalue, rel=1e-12)


def test_p_values_are_corrected_as_holm_does(paired):
    p = np.array([0.01, 0.04, 0.03, 0.005])
    assert paired.holm(p) == pytest.approx([0.03, 0.06, 0.06, 0.02])  # Holm's example: 4, 3, 2 and 1 times, rising
    assert paired.holm(np.array([0.6, 0.9])) == pytest.approx([1.0, 1.0])


def test_the_interval_covers_the_mean_of_drawn_differences(paired):
    rng = np.random.default_rng(1)
    within = [low <= 1.0 <= high for low, high in (paired.interval(rng.normal(1.0, 2.0, 12)) for _ in range(100))]
    assert 85 <= sum(within) <= 99  # 95 % at many seeds; BCa is too short at few
    assert paired.interval([0.5] * 12) == (0.5, 0.5)


def drawn(kind, rng, shape):
    """Return the accuracies of equal schemes, in points: independent beyond what all schemes of a seed share."""
    noise = {
        "normal": lambda: rng.normal(size=shape),
        "heavy": lambda: rng.standard_t(2, size=shape),
        "skewed": lambda: rng.exponential(size=shape),
        "outliers": lambda: rng.normal(size=shape) - 20 * (rng.random(shape) < 0.05),
        "saturated": lambda: np.minimum(rng.normal(0.5, 0.5, size=shape), 1.0),
    }[kind]()
    accuracies = 97 + rng.normal(size=(shape[0], 1)) + noise
    return np.round(accuracies * SCANS / 100) * 100 / SCANS


@pytest.mark.parametrize("kind", ["normal", "heavy", "skewed", "outliers", "saturated"])
def test_equal_schemes_are_called_different_in_at_most_one_of_twenty_families(paired, rows, kind):
    """A family is the table of a data set: the pairs of the benchmark with three optimizers, schemes drawn alike."""
    convergence = rows("convergence")
    rng, num_schemes = np.random.default_rng(7), len(convergence.SCHEMES)
    indices = [
        (convergence.SCHEMES.index(pair.first), convergence.SCHEMES.index(pair.second)) for pair in convergence.PAIRS
    ]
    places = np.array(indices)[:, None] + num_schemes * np.arange(3)[None, :, None]
    firsts, seconds = places.reshape(-1, 2).T
    num_families, wrong = 400, 0
    for _ in range(num_families):
        scores = drawn(kind, rng, (SEEDS, 3 * num_schemes))
        wrong += {*paired.verdicts(scores[:, firsts] - scores[:, seconds])} != {"undecided"}
    assert wrong <= LEVEL * num_families


def test_the_seeds_are_enough_for_verdicts_on_all_pairs_of_a_table(paired, rows):
    """The smallest p-value of n seeds is 2 / 2^n; with ten seeds every pair of a table is undecided."""
    num_pairs = 3 * len(rows("convergence").PAIRS)
    for num_seeds, verdict in ((10, "undecided"), (SEEDS, "ahead")):
        assert {*paired.verdicts(np.ones((num_seeds, num_pairs)))} == {verdict}


def test_a_difference_of_two_deviations_is_told_among_many_pairs_and_has_its_sign(paired):
    rng = np.random.default_rng(3)
    right = 0
    for _ in range(100):
        differences = rng.normal(size=(SEEDS, 42))
        differences[:, 0] += 2.0
        differences[:, 1] -= 2.0
        first, second, *_ = paired.verdicts(differences)
        right += (first, second) == ("ahead", "behind")
    assert right >= 60


def test_the_seeds_of_an_exact_test_are_limited(paired):
    for num_seeds in (1, 17):
        with pytest.raises(ValueError, match="expected 2 to 16"):
            paired.sign_flip_p(np.zeros((num_seeds, 1)))
