"""A graph whose nodes are the layers of a profile, and the bytes that cross a cut of it.

A pipeline cuts such a graph at antichains: the layers before a cut are any set that contains all inputs of its layers.
An output crosses the cut if its layer is before the cut and a layer behind the cut reads it; it counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class LayerGraph:
    """The edges between the layers of a profile, in topological order.

    Attributes:
        needs: For each layer, the indices of the layers whose outputs it reads.
        output_bytes: Output of each layer.
        data_bytes: Bytes of the data that the model reads.
        stages: Stage of each layer in the file, from 0; empty if the file has no stages.
        arranged_for: Number of stages for which the order of the layers was chosen; None for the order of the file.
    """

    needs: tuple[tuple[int, ...], ...]
    output_bytes: tuple[int, ...]
    data_bytes: int = 0
    stages: tuple[int, ...] = ()
    arranged_for: int | None = None

    @property
    def given_counts(self) -> tuple[int, ...]:
        """The number of layers of each stage in the file; empty if the file has no stages."""
        return tuple(map(self.stages.count, range(max(self.stages) + 1))) if self.stages else ()

    def cut_bytes(self) -> list[int]:
        """Return the bytes that cross the cut before each layer, and 0 behind the last; the first entry is the data."""
        last_use = {source: layer for layer, needed in enumerate(self.needs) for source in needed}
        changes = [0] * (len(self.needs) + 1)
        for source, last in last_use.items():
            changes[source + 1] += self.output_bytes[source]
            changes[last + 1] -= self.output_bytes[source]
        return [self.data_bytes, *accumulate(changes[1:-1]), 0]

    def reordered(self, order: Sequence[int], arranged_for: int | None = None) -> LayerGraph:
        """Return the graph with its layers in another order; `arranged_for` records the number of stages it is for."""
        place = {layer: index for index, layer in enumerate(order)}
        return replace(
            self,
            needs=tuple(tuple(sorted(place[source] for source in self.needs[layer])) for layer in order),
            output_bytes=tuple(self.output_bytes[layer] for layer in order),
            stages=tuple(self.stages[layer] for layer in order) if self.stages else (),
            arranged_for=arranged_for,
        )
