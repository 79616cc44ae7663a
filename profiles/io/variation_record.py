"""The variation of seconds in files of profiles and of costs from runs."""

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
        """Return the variation in the file."""
        return Variation(self.passes, self.works)

    def faults(self, place: str) -> list[str]:
        """Return a fault for each field with falling deciles."""
        return falling({f"{place}.{name}": factors for name, factors in self})


def falling(deciles: dict[str, tuple[float, ...]]) -> list[str]:
    """Return a fault for each field with falling deciles; the keys are places in the file."""
    return [
        f"{place}: got factors that fall, expected them rising"
        for place, factors in deciles.items()
        if list(factors) != sorted(factors)
    ]
