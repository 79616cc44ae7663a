"""The work of a run on weights, for timing: optimizer steps, copies, predictions, averages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

_SHARE, _STEPS = 0.5, 3
"""The share of elastic averaging, and the steps of a prediction; any numbers take the same time."""


@final
class WeightWork:
    """The work on the weights of one layer.

    Attributes:
        weights: The layer's parameters.
        optimizer: The optimizer of the trained ones, or None without them.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], optimizer: Optimizer | None) -> None:
        self.weights = tuple(parameters)
        self._trained = [parameter for parameter in parameters if parameter.requires_grad]
        self.optimizer = optimizer
        self._reference = [parameter.detach().clone() for parameter in self._trained]

    def step(self) -> None:
        """Step the optimizer, and drop the gradients."""
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def copy(self) -> dict[nn.Parameter, Tensor]:
        """Copy the weights, as for a version kept for later."""
        return {weight: weight.clone() for weight in self.weights}

    @torch.no_grad()
    def predict(self) -> dict[nn.Parameter, Tensor]:
        """Copy the weights and move the copy as the optimizer would step (`PredictionRule.OPTIMIZER`)."""
        moved = self.copy()
        for group in [] if self.optimizer is None else self.optimizer.param_groups:
            for parameter in group["params"]:
                delta = self._direction(parameter)
                if delta is not None:
                    moved[parameter].sub_(delta, alpha=float(group["lr"]) * _STEPS)
        return moved

    @torch.no_grad()
    def average(self) -> list[Tensor]:
        """Average elastically: copy the weights, return the updates, and move the weights towards the reference."""
        before = [parameter.clone() for parameter in self._trained]
        updates = [now - then for now, then in zip(self._trained, before, strict=True)]
        for now, then, reference in zip(self._trained, before, self._reference, strict=True):
            now.add_(reference - then, alpha=_SHARE)
        return updates

    def _direction(self, parameter: nn.Parameter) -> Tensor | None:
        assert self.optimizer is not None, "only layers with trained weights are predicted"
        state = self.optimizer.state.get(parameter, {})
        if isinstance(self.optimizer, SGD):
            buffer: Tensor | None = state.get("momentum_buffer")
            return parameter if buffer is None else buffer  # its last gradient takes the same time
        if "exp_avg" not in state:
            return None  # the parameter never had a gradient
        return adams_direction(state["exp_avg"], state["exp_avg_sq"], float(state["step"]))


def adams_direction(
    first: Tensor, second: Tensor, num_steps: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
) -> Tensor:
    """Return Adam's step divided by the learning rate, after `num_steps` updates of the two moments."""
    m_hat = first / (1 - betas[0] ** num_steps)
    v_hat = second / (1 - betas[1] ** num_steps)
    delta: Tensor = m_hat / (v_hat.sqrt() + eps)
    return delta
