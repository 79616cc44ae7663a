"""Jitter of the seconds of ops: a log-normal factor for each."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import repeat


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
