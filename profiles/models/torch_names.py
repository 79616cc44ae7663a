"""Torch's number types and optimizers by their names."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
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

OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {
    "sgd": optim.SGD,
    "momentum": partial(optim.SGD, momentum=0.9),
    "adam": optim.Adam,
    "adamw": optim.AdamW,
}
"""Optimizers by name, from (parameters, learning rate, further settings); other settings are PyTorch's defaults."""


def make_optimizer(
    name: str,
    parameters: Iterable[nn.Parameter],
    lr: float,
    *,
    weight_decay: float | None = None,
    is_nesterov: bool = False,
) -> optim.Optimizer:
    """Return the optimizer called `name`.

    Args:
        name: Name in `OPTIMIZERS`.
        parameters: The parameters.
        lr: Learning rate.
        weight_decay: Weight decay, or None for PyTorch's default.
        is_nesterov: Whether momentum is Nesterov's.

    Raises:
        ProfileError: The name is unknown, or `lr` is not a non-negative number.
    """
    if name not in OPTIMIZERS:
        raise ProfileError(f"optimizer: got {name!r}, expected one of {', '.join(OPTIMIZERS)}; check its spelling")
    if not math.isfinite(lr) or lr < 0:
        raise ProfileError(f"learning rate: got {lr}, expected a finite number, 0 or more; try 0.001")
    given = {"nesterov": True} if is_nesterov else {}
    return OPTIMIZERS[name](parameters, lr, **given | ({} if weight_decay is None else {"weight_decay": weight_decay}))
