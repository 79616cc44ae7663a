"""The costs of a model's layers as a user gives them, for any cut into stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipesched.profiles import ProfileError
from pipesched.profiles.costs.stage_costs import StageCost, StageCosts, added_up

_ADVICE = "give backward_input_s and backward_weight_s of every layer, and B takes their sum, or `input_share=0.5`"


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """The costs of every layer of a model, for one micro-batch.

    Attributes:
        layers: ``layers[k]`` is the cost of layer ``k`` as a stage of its own.
        origin: Where the numbers come from, in a few words.
        overlap: Share of the shorter op of an Overlap that hides behind the longer, as in `StageCosts`.
        unitless: Columns of seconds without a unit in the table that was read, or empty.
        names: One per layer, for tables; empty if the layers have no names.
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
        """Return the costs of the stages: the sums over their layers; a stage has the output of its last layer.

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
