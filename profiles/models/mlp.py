"""A stack of equal linear layers, whose costs are easy to compute by hand."""

# ruff: noqa: N803  # tensor names carry their shape

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipesched.profiles.models.model import Model, require_range


def mlp(width: int = 256, layers: int = 8) -> Model:
    """Return `layers` linear layers with ReLU (the last without) that learn to reverse a random vector.

    Raises:
        ProfileError: An argument is out of range.
    """
    name = f"mlp:width={width},layers={layers}"
    require_range(name, "width", width, 1, 2**16)
    require_range(name, "layers", layers, 1, 10_000)
    return Model(
        name,
        (*(partial(Hidden, width) for _ in range(layers - 1)), partial(nn.Linear, width, width)),
        (*(f"hidden {i}" for i in range(layers - 1)), "output"),
        functional.mse_loss,
        partial(_batch, width),
    )


class Hidden(nn.Module):
    """A hidden layer: linear, then ReLU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x_BD: Tensor) -> Tensor:
        """Map x (B, D) to relu(W x + b) (B, D)."""
        return functional.relu(self.linear(x_BD))


def _batch(width: int, num_samples: int, seed: int) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(num_samples, width, generator=torch.Generator().manual_seed(seed))
    return inputs, inputs.flip(1)
