"""How many examples hypothesis draws for a property: all of them, or a few in the quick tier."""

from hypothesis import settings

QUICK = "quick"
FEW = 8
"""Examples of a property in the quick tier."""


def examples(count, **given):
    """Return settings of `count` examples; in the quick tier of `FEW` at most."""
    return settings(max_examples=min(count, FEW) if settings.get_current_profile_name() == QUICK else count, **given)
