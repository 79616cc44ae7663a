"""Jitter of the seconds of ops: a log-normal factor for each."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice, repeat


def jitter_factors(sigma: float, seed: int, rank: int) -> Iterator[float]:
    """Yield a factor for each op of a rank in turn, which does not depend on the other ranks; 1 without jitter.

    Args:
        sigma: Sigma of the logarithm of a factor.
        seed: Seed of the factors of all ranks.
        rank: The rank.
    """
    if sigma == 0:
        return repeat(1.0)
    draw = random.Random(f"{seed} {rank}").lognormvariate
    return (draw(0.0, sigma) for _ in repeat(None))


def first_factors(sigma: float, seed: int, rank: int, count: int) -> Sequence[float]:
    """Return the first `count` of these factors, or some more; few of them are kept for the next question."""
    if count > _KEPT:
        return [*islice(jitter_factors(sigma, seed, rank), count)]
    return _kept_factors(sigma, seed, rank, 1 << count.bit_length())


_KEPT = 1 << 12


@lru_cache(maxsize=1024)
def _kept_factors(sigma: float, seed: int, rank: int, count: int) -> Sequence[float]:
    return [*islice(jitter_factors(sigma, seed, rank), count)]
