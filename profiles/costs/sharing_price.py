"""The price of sharing a core: the factor on processor time when several processes take turns on it.

Each process finds the caches full of data of the others, and every switch takes time. The price multiplies the cost of
the turns: two processes that share a core take twice as long because each has half of it, times the price.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipesched.profiles.costs.spread import spread_of


@dataclass(frozen=True, slots=True)
class SharingPrice:
    """The slowdown of a given number of processes on one core.

    Attributes:
        num_processes: Processes that compute on the core, at least 2.
        factors: The least, nine deciles and the most of the ratio of the processor time of a pass among them to a pass
            alone.
    """

    num_processes: int
    factors: tuple[float, ...]

    @property
    def factor(self) -> float:
        """The median, but at least 1: smaller values are noise, because sharing never speeds up."""
        return max(1.0, self.factors[5])


def sharing_price_of(num_processes: int, ratios: Sequence[float]) -> SharingPrice:
    """Return the price among `num_processes`, from at least one ratio of a pass among them to a pass alone."""
    return SharingPrice(num_processes, spread_of(ratios).deciles_s)


def price_among(prices: Sequence[SharingPrice], num_processes: int) -> float:
    """Return the factor on the time of work among `num_processes`.

    The factor is linear between two measured numbers, starting from 1 for a process alone, and constant above the
    largest.

    Args:
        prices: Prices by rising number of processes; without any, sharing is free.
        num_processes: Processes that share the core, at least 1.
    """
    below, factor_below = 1, 1.0
    for price in prices:
        if num_processes <= price.num_processes:
            share = (num_processes - below) / (price.num_processes - below)
            return factor_below + share * (price.factor - factor_below)
        below, factor_below = price.num_processes, price.factor
    return factor_below
