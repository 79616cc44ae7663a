"""A model of eight layers, one of which raises, or gives another shape or NaN, at one of its forwards of a training.

When a process comes to the first forward of a training, it leaves its number in a folder that the environment names.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

NUM_LAYERS = 8
WIDTH = 16
AT_WORK = "PIPESCHED_FAULTS_AT_WORK"
"""Names the folder."""


class _Failing(nn.Module):
    """A linear layer that does not do as it should at its forward number `at`, those of training counted."""

    def __init__(self, how: str, at: int) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self._how, self._at, self._count = how, at, 0

    def forward(self, x: Tensor) -> Tensor:  # (batch, width)
        y: Tensor = self.linear(x)
        if not self._count and self.training and AT_WORK in os.environ:
            (Path(os.environ[AT_WORK]) / str(os.getpid())).touch()
        is_now = self.training and self._count == self._at and self._how != "none"
        self._count += self.training
        if is_now and "PIPESCHED_FAULT_TIMES" in os.environ:
            Path(os.environ["PIPESCHED_FAULT_TIMES"]).write_text(f"{time.monotonic_ns()}\n")
        if is_now and self._how == "raise":
            raise RuntimeError("a layer's own fault")
        if is_now and self._how == "shape":
            return y[:, : WIDTH // 2]
        return y * torch.nan if is_now else y


def failing(
    how: str, layer: int = -1, at: int = 0
) -> tuple[Sequence[nn.Module], Callable[..., Tensor], Callable[[int, int], tuple[Tensor, Tensor]]]:
    """Return the model: layers, loss and samples.

    Args:
        how: ``raise``, ``shape``, ``nan`` or ``none``.
        layer: Which layer.
        at: Its forward that fails.
    """
    layers = [_Failing(how if index == layer else "none", at) for index in range(NUM_LAYERS)]
    return layers, functional.mse_loss, lambda n, seed: (torch.ones(n, WIDTH), torch.zeros(n, WIDTH))  # noqa: ARG005
