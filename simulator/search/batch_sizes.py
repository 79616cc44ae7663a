"""Batch sizes: the equal parts that a batch can be cut into, and that a profile covers."""

from __future__ import annotations

from itertools import count

from pipesched.profiles.costs import Profile


def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of `number`, rising."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def covered_sizes(profile: Profile, most: int) -> tuple[int, ...]:
    """Return the sizes of micro-batches, rising, that divide `most` and that the profile covers, or has measured."""
    sizes = sorted({*divisors(most), *profile.microbatch_sizes})
    return tuple(size for size in sizes if size <= most and profile.covers(size))


def nearest_batch(profile: Profile, batch_size: int, width: int = 1) -> int:
    """Return the batch nearest to `batch_size` that `width` copies share in micro-batches which the profile covers.

    The smaller batch is returned if two are equally near.
    """
    share = batch_size // width
    shares = range(share, 0, -1), count(share + 1)
    near = [next((width * size for size in sizes if _can_be_cut(profile, size)), None) for sizes in shares]
    return min((size for size in near if size is not None), key=lambda size: abs(size - batch_size))


def _can_be_cut(profile: Profile, batch_size: int) -> bool:
    return any(profile.covers(size) for size in divisors(batch_size))
