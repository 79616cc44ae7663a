"""The price of sharing a core: how many times as much processor time work takes where processes take turns on it.

Each finds the caches full of what the others have computed, and every switch takes time itself. It comes on top of the
turns: two processes that share a core take twice as long because each has half of it, and this many times as long as
that because of the price.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipesched.profiles.costs.spread import spread_of


@dataclass(frozen=True, slots=True)
class SharingPrice:
    """What so many processes on one core cost each other.

    Attributes:
        num_processes: Processes that compute on the core, at least 2.
        factors: The least, nine deciles and the most of the processor time of a pass among them over that of one alone.
    """

    num_processes: int
    factors: tuple[float, ...]

    @property
    def factor(self) -> float:
        """The median; what a measurement finds below 1 is noise, for nobody computes faster in turns."""
        return max(1.0, self.factors[5])


def sharing_price_of(num_processes: int, ratios: Sequence[float]) -> SharingPrice:
    """Return the price among so many, of at least one ratio of a pass among them to a pass alone."""
    return SharingPrice(num_processes, spread_of(ratios).deciles_s)


def price_among(prices: Sequence[SharingPrice], num_processes: int) -> float:
    """Return how many times as long work takes among so many processes.

    Between two measured numbers there is a straight line, from 1 for a process alone; above the largest it stays.

    Args:
        prices: Prices by rising number of processes; none: nothing is known, and sharing costs nothing.
        num_processes: Processes that share the core, at least 1.
    """
    below, factor_below = 1, 1.0
    for price in prices:
        if num_processes <= price.num_processes:
            share = (num_processes - below) / (price.num_processes - below)
            return factor_below + share * (price.factor - factor_below)
        below, factor_below = price.num_processes, price.factor
    return factor_below
