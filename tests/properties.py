"""How many examples hypothesis draws for a property, and how many combinations of a grid a test has."""

from itertools import product

from hypothesis import settings

QUICK = "quick"
FEW = 8
"""Examples of a property in the quick tier."""


def examples(count, **given):
    """Return settings of `count` examples; in the quick tier of `FEW` at most."""
    return settings(max_examples=min(count, FEW) if settings.get_current_profile_name() == QUICK else count, **given)


def thinned(*dimensions, every=2):
    """Return each `every`-th combination of a grid, spread over all values of each dimension."""
    cells = product(*map(enumerate, dimensions))
    return [tuple(value for _, value in cell) for cell in cells if sum(index for index, _ in cell) % every == 0]
