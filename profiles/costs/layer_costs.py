"""The costs of a model's layers as a user gives them, for any cut into stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pipesched.profiles import ProfileError
from pipesched.profiles.costs.single_stage import StageCost, added_up
from pipesched.profiles.costs.stage_costs import CostSource, StageCosts

_ADVICE = "give backward_input_s and backward_weight_s of every layer, and B takes their sum, or `input_share=0.5`"


@dataclass(frozen=True, slots=True)
class LayerCosts(CostSource):
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

    way_to_profile: ClassVar[str] = "make one of a table of layers, with pipesched.profile_of_layers"

    @property
    def given(self) -> Mapping[str, object]:
        """The costs of the layers."""
        return {"layers": self.layers}

    @property
    def num_layers(self) -> int:
        """The number of layers."""
        return len(self.layers)

    @property
    def weights_of_layers(self) -> tuple[int, ...]:
        """Bytes of the weights of every layer."""
        return tuple(layer.weight_bytes for layer in self.layers)

    def seconds_of_layers(self, microbatch_size: int | None = None) -> tuple[float, ...]:
        """Return forward plus backward of every layer [s]."""
        del microbatch_size
        return tuple(layer.both_s for layer in self.layers)

    def cost_of_layers(self, first: int, last: int, microbatch_size: int | None, num_sharing: int) -> StageCost:
        """Return the cost of layers `first` to `last` (exclusive) as one stage."""
        del microbatch_size, num_sharing
        return added_up(self.layers[first:last])

    def costs_of_layers(
        self, bounds: Sequence[tuple[int, int]], microbatch_size: int | None = None, num_sharing: int = 1
    ) -> StageCosts:
        """Return the costs of the stages: the sums over their layers; a stage has the output of its last layer.

        Args:
            bounds: (first, last) layers of each stage, last exclusive, in order and without gaps.
            microbatch_size: Ignored: the costs are of one size.
            num_sharing: Ignored: sharing has no price.

        Raises:
            ProfileError: The bounds are of another number of layers.
        """
        del microbatch_size, num_sharing
        if bounds[-1][1] != len(self.layers):
            raise ProfileError(
                f"costs ({self.origin or 'of layers'}): got {len(self.layers)} layers, expected {bounds[-1][1]} as the "
                "stages have; give the costs of every layer"
            )
        stages = tuple(added_up(self.layers[first:last]) for first, last in bounds)
        return StageCosts(stages, origin=self.origin, overlap=self.overlap, advice=_ADVICE)
