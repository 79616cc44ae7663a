"""Batch sizes: the equal parts that a batch can be cut into, and that a profile covers."""

from __future__ import annotations

from pipesched.profiles.costs import Profile


def divisors(number: int) -> tuple[int, ...]:
    """Return what divides `number`, rising."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def covered_sizes(profile: Profile, most: int) -> tuple[int, ...]:
    """Return the sizes of micro-batches, rising, that divide `most` and that the profile covers, or has measured."""
    sizes = sorted({*divisors(most), *profile.microbatch_sizes})
    return tuple(size for size in sizes if size <= most and profile.covers(size))
