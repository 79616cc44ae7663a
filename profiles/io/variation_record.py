"""How seconds vary, as files of profiles and of costs from runs have it."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from pipesched.profiles.costs import Variation
from pipesched.profiles.io.validation import Record, Seconds

Factors = Annotated[tuple[Seconds, ...], Field(min_length=11, max_length=11)]


class VariationRecord(Record):
    """Factors of whole passes, and of single works: the least, nine deciles, the most."""

    becomes: ClassVar[type] = Variation

    passes: Factors
    works: Factors

    def variation(self) -> Variation:
        """Return what the file says."""
        return Variation(self.passes, self.works)

    def faults(self, place: str) -> list[str]:
        """Return which deciles fall."""
        return falling({f"{place}.{name}": factors for name, factors in self})


def falling(deciles: dict[str, tuple[float, ...]]) -> list[str]:
    """Return which of some deciles, each with its place in the file, fall."""
    return [
        f"{place}: got factors that fall, expected them rising"
        for place, factors in deciles.items()
        if list(factors) != sorted(factors)
    ]
