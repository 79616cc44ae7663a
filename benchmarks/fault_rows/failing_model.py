"""A model of eight layers, one of which raises, or gives another shape or NaN, at one of its forwards of a training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

NUM_LAYERS = 8
WIDTH = 16


class _Failing(nn.Module):
    """A linear layer that does not do as it should at its forward number `at`, those of training counted."""

    def __init__(self, how: str, at: int) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self._how, self._at, self._count = how, at, 0

    def forward(self, x: Tensor) -> Tensor:  # (batch, width)
        y: Tensor = self.linear(x)
        is_now = self.training and self._count == self._at
        self._count += self.training
        if is_now and self._how == "raise":
            raise RuntimeError("a layer's own fault")
        if is_now and self._how == "shape":
            return y[:, : WIDTH // 2]
        return y * torch.nan if is_now else y


def failing(
    how: str, layer: int, at: int
) -> tuple[Sequence[nn.Module], Callable[..., Tensor], Callable[[int, int], tuple[Tensor, Tensor]]]:
    """Return the model: layers, loss and samples.

    Args:
        how: ``raise``, ``shape`` or ``nan``.
        layer: Which layer.
        at: Its forward that fails.
    """
    layers = [_Failing(how, at) if index == layer else nn.Linear(WIDTH, WIDTH) for index in range(NUM_LAYERS)]
    return layers, functional.mse_loss, lambda n, seed: (torch.ones(n, WIDTH), torch.zeros(n, WIDTH))  # noqa: ARG005
