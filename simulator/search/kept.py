"""A cache of the last used objects, found by the identities of the objects from which they were made."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar, final

MadeT = TypeVar("MadeT")


@final
class Kept(Generic[MadeT]):
    """A cache of the last used objects, by source identity: to hash their op lists or layers would take too long.

    Args:
        most: Most objects that are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._made: dict[Hashable, tuple[object, MadeT]] = {}

    def __reduce__(self) -> tuple[type[Kept[MadeT]], tuple[int]]:
        return Kept, (self._most,)  # another process makes its own

    def __len__(self) -> int:
        """Return the number of objects that are kept."""
        return len(self._made)

    def get(self, sources: tuple[object, ...], key: Hashable, make: Callable[[], MadeT]) -> MadeT:
        """Return the object that was made of sources under a key, made now if it is missing.

        Args:
            sources: Objects of which it is made; they are kept too, so that their ids stay valid.
            key: The other inputs.
            make: Makes the object.
        """
        known = *map(id, sources), key
        entry = self._made.pop(known) if known in self._made else (sources, make())
        while len(self._made) >= self._most:
            del self._made[next(iter(self._made))]
        self._made[known] = entry
        return entry[1]
