"""All ways to cut things in a row into parts: the brute force beside the partitioners."""

from itertools import combinations, pairwise


def all_partitions(num_things, num_parts):
    """Yield the half-open ranges of each way, none of them empty."""
    for cuts in combinations(range(1, num_things), num_parts - 1):
        yield tuple(pairwise((0, *cuts, num_things)))
