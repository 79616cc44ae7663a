"""Statistics of paired differences: two schemes with the same seeds, and verdicts that hold over many pairs.

A pair has the same weights and samples under both schemes, seed by seed. If the schemes are equal, each difference is
as likely to have the opposite sign. So the sign-flip test is exact for any distribution: its p-value is the share of
all 2^n signs whose mean is at least as far from 0. Holm's correction bounds the probability that a family of equal
pairs has any verdict but "undecided".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.stats import bootstrap  # type: ignore[import-untyped]  # it has no types

Numbers: TypeAlias = NDArray[np.float64]
Verdict: TypeAlias = Literal["ahead", "behind", "undecided"]

LEVEL = 0.05
"""Largest probability of a wrong verdict in a family of equal pairs."""
_RESAMPLES = 10_000
_ROUNDING = 1e-9
"""Share of the largest difference that counts as rounding."""
_MOST_SEEDS = 16
"""Most seeds of the exact test, which tries half of 2^n signs."""


def sign_flip_p(differences: Numbers) -> Numbers:
    """Return the two-sided p-value of each pair, shape (pairs,), for differences of shape (seeds, pairs).

    Raises:
        ValueError: There are fewer than 2 or more than 16 seeds.
    """
    num_seeds = len(differences)
    if not 2 <= num_seeds <= _MOST_SEEDS:
        raise ValueError(f"seeds: got {num_seeds}, expected 2 to {_MOST_SEEDS}")
    flipped = np.arange(2 ** (num_seeds - 1))[:, None] >> np.arange(num_seeds) & 1  # the other half mirrors these
    sums = np.abs((1.0 - 2.0 * flipped) @ differences)
    p: Numbers = (sums >= sums[0] - _ROUNDING * np.abs(differences).max(axis=0)).mean(axis=0)
    return p


def holm(p: Numbers) -> Numbers:
    """Return p-values, shape (pairs,), after Holm's correction for the number of pairs."""
    order = np.argsort(p, kind="stable")
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return corrected


def verdicts(differences: Numbers) -> list[Verdict]:
    """Return, for each pair of a family, whether its first scheme is ahead.

    Args:
        differences: Score of the first scheme minus the second, larger is better; shape (seeds, pairs).
    """
    clear = holm(sign_flip_p(differences)) <= LEVEL
    means = differences.mean(axis=0)
    return [
        ("ahead" if mean > 0 else "behind") if is_clear else "undecided"
        for mean, is_clear in zip(means, clear, strict=True)
    ]


def interval(differences: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Return the 95 % interval of the mean by the BCa bootstrap; the value itself if all differences are equal."""
    values = np.asarray(differences, dtype=np.float64)
    if np.ptp(values) == 0.0:
        return float(values[0]), float(values[0])
    drawn = bootstrap((values,), np.mean, n_resamples=_RESAMPLES, method="BCa", rng=np.random.default_rng(seed))
    return float(drawn.confidence_interval.low), float(drawn.confidence_interval.high)
