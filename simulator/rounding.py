"""Tolerance for times that are equal up to rounding."""

from __future__ import annotations

from typing import Any

SAME = 1e-9
"""Relative, of a makespan or a period: times nearer to each other than this are one, but for roundings."""

_SUMMED = 1e-12
"""Relative, of a time: by how much two sums may differ that are one time, but for roundings."""


def differ(since_s: Any, until_s: Any) -> Any:
    """Return whether `until_s` is later than `since_s` by more than a rounding error; both may be arrays [s].

    An op may begin a rounding error after the previous op: the arrival of its message is a different sum.
    """
    return until_s - since_s > _SUMMED * abs(since_s)
