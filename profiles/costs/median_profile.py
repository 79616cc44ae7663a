"""The median of several profiles of one model, as measured before and after a run, or now and then."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from statistics import median
from typing import Any

from pipesched.profiles import ProfileError
from pipesched.profiles.costs.layer_profile import Profile
from pipesched.schedules import Yardstick


def median_profile(*profiles: Profile) -> Profile:
    """Return the profile whose seconds are the medians of several, of two their means; all else is as in the first.

    Its yardstick is the mean of theirs.

    Raises:
        ProfileError: They are not of the same model, layers and micro-batch sizes.
    """
    first, *others = profiles
    for other in others:
        if _shape(other) != _shape(first):
            raise ProfileError(
                f"profiles of {first.model} and {other.model}: got different layers or micro-batch sizes, expected "
                "the same; measure the same model twice"
            )
    layers = tuple(_median(several) for several in zip(*(profile.layers for profile in profiles), strict=True))
    yardstick = Yardstick.mean(profile.provenance.yardstick for profile in profiles)
    return replace(first, layers=layers, provenance=replace(first.provenance, yardstick=yardstick))


def _shape(profile: Profile) -> tuple[str, int, tuple[int, ...]]:
    return profile.model, len(profile.layers), profile.microbatch_sizes


def _median(several: tuple[Any, ...]) -> Any:
    """Return the first with every number of seconds in it the median of all; seconds alone are floats."""
    first = several[0]
    if all(isinstance(value, float) for value in several):
        return median(several)
    if all(isinstance(value, tuple) for value in several):
        return tuple(_median(values) for values in zip(*several, strict=True))
    if is_dataclass(first) and not isinstance(first, type) and None not in several:
        names = [field.name for field in fields(first)]
        return replace(first, **{name: _median(tuple(getattr(value, name) for value in several)) for name in names})
    return first
