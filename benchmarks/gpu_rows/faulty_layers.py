"""A model whose second layer hangs; run as ``benchmarks.gpu_rows.faulty_layers:hanging``."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipesched.executor.launch.injected_faults import note_time

LAYER, CALL, WIDTH = 1, 2, 8
"""The layer that hangs, the number of its forward, and the width."""
CYCLES = 60 * 2 * 10**9
"""Cycles of a GPU's clock: about a minute."""


class Hanging(nn.Module):
    """Keeps the device busy for a minute at one forward; on a CPU it stops its process."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self._num_calls = 0

    def forward(self, x: Tensor) -> Tensor:
        """Hang at forward number `CALL`."""
        if self.training and self._num_calls == CALL:
            note_time()
            if x.is_cuda:
                torch.cuda._sleep(CYCLES)  # type: ignore[no-untyped-call]  # noqa: SLF001 -- torch's own tests use it
            else:
                os.kill(os.getpid(), signal.SIGSTOP)
        self._num_calls += self.training
        return self.linear(x)  # type: ignore[no-any-return]


def hanging() -> tuple[list[nn.Module], Callable[..., Tensor], Callable[[int, int], tuple[Tensor, Tensor]]]:
    """Return layers, loss and data."""
    layers: list[nn.Module] = [Hanging() if index == LAYER else nn.Linear(WIDTH, WIDTH) for index in range(2)]
    return layers, functional.mse_loss, lambda n, seed: (torch.ones(n, WIDTH), torch.zeros(n, WIDTH))  # noqa: ARG005
