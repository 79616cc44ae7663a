"""The costs of a model's layers as a person gives them: cut into stages, they are the costs of any schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipesched.profiles import ProfileError
from pipesched.profiles.costs.stage_costs import StageCost, StageCosts, added_up

_ADVICE = "give backward_input_s and backward_weight_s of every layer, and B takes their sum, or `input_share=0.5`"


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """Every layer of a model, for one micro-batch.

    Attributes:
        layers: ``layers[k]`` is the cost of layer ``k``, as that of a stage which has no other layer.
        origin: Where the numbers come from, in a few words.
        overlap: How much of the shorter op of an Overlap hides behind the longer, as in `StageCosts`.
        unitless: The columns of seconds in the table that it was read from, where none says a unit; else empty.
        names: One per layer, for tables; empty where they have none.
    """

    layers: tuple[StageCost, ...]
    origin: str = ""
    overlap: float = 0.0
    unitless: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def seconds(self) -> tuple[float, ...]:
        """Forward plus backward of every layer [s], for `balanced_partition`."""
        return tuple(layer.both_s for layer in self.layers)

    def stage_costs(self, bounds: Sequence[tuple[int, int]]) -> StageCosts:
        """Return the costs of the stages: those of their layers added up; a stage sends what its last layer sends.

        Args:
            bounds: (first, last) layers of each stage, last exclusive, in order and without gaps.

        Raises:
            ProfileError: The bounds are of another number of layers.
        """
        if bounds[-1][1] != len(self.layers):
            raise ProfileError(
                f"costs ({self.origin or 'of layers'}): got {len(self.layers)} layers, expected {bounds[-1][1]} as the "
                "stages have; give the costs of every layer"
            )
        stages = tuple(added_up(self.layers[first:last]) for first, last in bounds)
        return StageCosts(stages, origin=self.origin, overlap=self.overlap, advice=_ADVICE)
