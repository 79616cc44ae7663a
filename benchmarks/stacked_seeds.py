"""A model of several seeds at once: the same layers with other weights, on other samples, in one training run.

Tensors have the samples in dimension 0 and the seeds in dimension 1; parameters have the seeds in dimension 0. The loss
is the sum over the seeds, and optimizers work element by element, so each seed is trained as if alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from pipesched.executor.training import step_seed
from pipesched.profiles.models import Model, Value


class StackedLayer(nn.Module):
    """A layer with other weights for each seed.

    Args:
        build: Builds the layer of one seed.
        num_seeds: Number of seeds.
    """

    def __init__(self, build: Callable[[], nn.Module], num_seeds: int) -> None:
        super().__init__()
        layers = [build() for _ in range(num_seeds)]
        states = [dict(layer.named_parameters()) for layer in layers]
        self._names = [*states[0]]
        self._layer = [layers[0].to("meta")]  # in a list, as its parameters are not learned
        self.stacked = nn.ParameterList(torch.stack([state[name].detach() for state in states]) for name in self._names)

    def forward(self, x: Tensor) -> Tensor:
        """Map (samples, seeds, ..) to (samples, seeds, ..)."""
        with sdpa_kernel(SDPBackend.MATH):  # the others take one seed after the other
            output: Tensor = torch.vmap(self._of_seed, in_dims=(0, 1), out_dims=1)(tuple(self.stacked), x)
        return output

    def _of_seed(self, parameters: tuple[Tensor, ...], x: Tensor) -> Tensor:
        output: Tensor = functional_call(self._layer[0], dict(zip(self._names, parameters, strict=True)), (x,))
        return output


@dataclass(slots=True)
class SeedScores:
    """The scores of each seed, as the loss function sees them.

    Attributes:
        losses: Training losses of each micro-batch, in the order of the forwards; each of shape (seeds,).
        looks: Shares of right answers in each evaluation on the held-out samples, in order; each of shape (seeds,).
    """

    num_held_out: int
    losses: list[Tensor] = field(default_factory=list)
    looks: list[Tensor] = field(default_factory=list)
    _right: Tensor | None = None
    _seen: int = 0

    def loss(self, output: Any, target: Any) -> Tensor:
        """Return the sum over the seeds of the mean cross entropy; output (samples, seeds, .., classes)."""
        entropy = functional.cross_entropy(output.flatten(0, -2), target.flatten(), reduction="none").view_as(target)
        losses = entropy.transpose(0, 1).flatten(1).mean(1)
        if torch.is_grad_enabled():
            self.losses.append(losses.detach())
            return losses.sum()
        right = (output.argmax(-1) == target).double().transpose(0, 1).flatten(1).mean(1) * len(target)
        self._right = right if self._right is None else self._right + right
        self._seen += len(target)
        if self._seen == self.num_held_out:
            self.looks.append(self._right / self._seen)
            self._right, self._seen = None, 0
        return losses.sum()

    def final_losses(self, num_microbatches: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the mean training loss of each seed over the last micro-batches, shape (seeds,)."""
        return torch.stack(self.losses[-num_microbatches:]).double().mean(0).numpy()


def stacked(model: Model, num_seeds: int) -> tuple[Model, SeedScores]:
    """Return a model of several seeds with one tensor between layers and without dropout, and its scores.

    Seed k draws its samples as `model` does with a seed that depends on the seed of the step and k.
    """
    assert model.held_out is not None, "it is judged"
    inputs, targets = model.held_out()
    assert isinstance(inputs, Tensor)
    assert isinstance(targets, Tensor)
    scores = SeedScores(len(inputs))

    def batch(num_samples: int, seed: int) -> tuple[Value, Value]:
        parts = [model.batch(num_samples, step_seed(seed, k)) for k in range(num_seeds)]
        return _stacked([x for x, _ in parts]), _stacked([y for _, y in parts])

    layers = tuple(partial(StackedLayer, build, num_seeds) for build in model.layers)
    name = f"{model.name}, {num_seeds} seeds"
    held_out = (_stacked([inputs] * num_seeds), _stacked([targets] * num_seeds))
    return replace(
        model, name=name, layers=layers, loss=scores.loss, batch=batch, held_out=lambda: held_out, kinds=None
    ), scores


def _stacked(parts: Sequence[Value]) -> Tensor:
    return torch.stack([part for part in parts if isinstance(part, Tensor)], 1)
