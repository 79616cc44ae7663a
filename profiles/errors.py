"""The errors of costs, clusters, models and the files that hold them."""

from __future__ import annotations


class ProfileError(ValueError):
    """A cost, a cluster, a model or a file of one is not what it must be."""


def require_count(name: str, value: object, least: int = 1) -> None:
    """Refuse what is no integer, or a smaller one than `least`.

    Raises:
        ProfileError: It is.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ProfileError(f"{name}: got {value!r}, expected an integer of at least {least}")
