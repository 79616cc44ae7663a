"""Asynchronous training of a small network as a plain loop, beside which op lists are checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import pipesched
from pipesched.executor.training import step_seed
from pipesched.profiles.models import build_layers, draw_batch, resolve_model
from pipesched.schedules.transforms import ScheduleSpec

_MODEL, _STAGES, _STEPS, _SAMPLES, _LR = "mlp:width=8,layers=3", 3, 12, 16, 0.3


@dataclass(frozen=True, slots=True)
class Version:
    """The weights of a layer after some steps, and their momentum."""

    values: tuple[Tensor, Tensor]
    momentum: tuple[Tensor, Tensor] | None = None

    def after(self, gradients: tuple[Tensor, Tensor], momentum: float) -> Version:
        """Return the weights after a step of SGD."""
        old = self.momentum or (torch.zeros(()), torch.zeros(()))
        new = (momentum * old[0] + gradients[0], momentum * old[1] + gradients[1])
        return Version((self.values[0] - _LR * new[0], self.values[1] - _LR * new[1]), new)

    def ahead(self, steps: int) -> tuple[Tensor, Tensor]:
        """Return the weights predicted some steps ahead, along the momentum."""
        if self.momentum is None:
            return self.values
        return self.values[0] - _LR * steps * self.momentum[0], self.values[1] - _LR * steps * self.momentum[1]


def largest_error(
    scheme: str, seed: int, momentum: float, behind: Callable[[int], int], ahead: Callable[[int], int]
) -> float:
    """Return the largest difference of a step's loss between op lists and the plain loop, in float64.

    Args:
        scheme: Schedule of three ranks.
        momentum: Momentum of SGD: 0 or 0.9.
        behind: Steps by which the forward of a stage is behind its backward, which reads the newest weights.
        ahead: Steps by which the forward looks ahead.
    """
    run = pipesched.train(
        _MODEL,
        ScheduleSpec(name=scheme, num_ranks=_STAGES),
        num_steps=_STEPS,
        batch_size=_SAMPLES,
        optimizer="momentum" if momentum else "sgd",
        lr=_LR,
        seed=seed,
        dtype="float64",
    )
    losses = _plain_losses(seed, momentum, behind, ahead)
    return max(abs(a - b) for a, b in zip(run.losses, losses, strict=True))


def _plain_losses(seed: int, momentum: float, behind: Callable[[int], int], ahead: Callable[[int], int]) -> list[float]:
    model = resolve_model(_MODEL)
    history = []
    for layer in build_layers(model, 0, _STAGES, seed=seed, dtype=torch.float64):
        weight, bias = (parameter.detach() for parameter in layer.parameters())
        history.append([Version((weight, bias))])
    losses = []
    for step in range(_STEPS):
        x, targets = draw_batch(model, _SAMPLES, step_seed(seed, step), dtype=torch.float64)
        assert isinstance(x, Tensor)
        assert isinstance(targets, Tensor)
        inputs = [x]
        for stage in range(_STAGES):
            weight, bias = history[stage][max(0, step - behind(stage))].ahead(ahead(stage))
            x = x @ weight.T + bias
            x = x.relu() if stage < _STAGES - 1 else x
            inputs.append(x)
        losses.append(float((x - targets).square().mean()))
        gradient = 2 * (x - targets) / targets.numel()
        for stage in reversed(range(_STAGES)):
            newest = history[stage][step]
            gradient = gradient * (inputs[stage + 1] > 0) if stage < _STAGES - 1 else gradient
            history[stage].append(newest.after((gradient.T @ inputs[stage], gradient.sum(0)), momentum))
            gradient = gradient @ newest.values[0]
    return losses
