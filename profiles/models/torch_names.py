"""Torch's number types and optimizers by their names."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeAlias

import torch
from torch import nn, optim

from pipesched.profiles import ProfileError


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype called `name`, one of `DTYPES`."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


OptimizerFactory: TypeAlias = Callable[[list[nn.Parameter]], optim.Optimizer]
"""A function that makes an optimizer of some parameters."""

OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter], float], optim.Optimizer]] = {
    "sgd": lambda parameters, lr: optim.SGD(parameters, lr),
    "momentum": lambda parameters, lr: optim.SGD(parameters, lr, momentum=0.9),
    "adam": lambda parameters, lr: optim.Adam(parameters, lr),
    "adamw": lambda parameters, lr: optim.AdamW(parameters, lr),
}
"""Optimizers by name, from (parameters, learning rate); other settings are PyTorch's defaults."""


def make_optimizer(name: str, parameters: Iterable[nn.Parameter], lr: float) -> optim.Optimizer:
    """Return the optimizer called `name`.

    Raises:
        ProfileError: The name is unknown, or `lr` is not a non-negative number.
    """
    if name not in OPTIMIZERS:
        raise ProfileError(f"optimizer: got {name!r}, expected one of {', '.join(OPTIMIZERS)}; check its spelling")
    if not math.isfinite(lr) or lr < 0:
        raise ProfileError(f"learning rate: got {lr}, expected a finite number, 0 or more; try 0.001")
    return OPTIMIZERS[name](parameters, lr)
