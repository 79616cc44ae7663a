"""Builders of lists in memory, made from builders of generated lists."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from pipesched.schedules import Schedule

P = ParamSpec("P")


def held_builder(builder: Callable[P, Schedule]) -> Callable[P, Schedule]:
    """Return the builder of the same schedule with its lists in memory."""

    @wraps(builder)
    def build(*args: P.args, **kwargs: P.kwargs) -> Schedule:
        return builder(*args, **kwargs).held()

    return build
