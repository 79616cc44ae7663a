"""Models that depend on the rank of the process that builds them, by mistake."""

import os
from functools import partial

import torch
from torch import nn

from tests.executor import tuple_models
from tests.executor.models import WIDTH


def _rank():
    return int(os.environ.get("RANK", "0"))


def deeper():
    """Have a layer more on each rank."""
    return tuple_models.of("deeper", [partial(nn.Linear, WIDTH, WIDTH)] * (4 + _rank()))


class Filled(nn.Linear):
    def __init__(self):
        super().__init__(WIDTH, WIDTH)
        nn.init.constant_(self.weight, 0.1 * _rank())


def filled():
    """Have other weights on each rank."""
    return tuple_models.of("filled", [Filled] * 4)


def tied():
    """Have another shared weight on each rank."""
    weight = nn.Parameter(torch.full((WIDTH, WIDTH), 0.1 * _rank()))
    first, *others = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
    first.weight = others[-1].weight = weight
    return [first, *others], nn.functional.mse_loss, tuple_models.of("tied", [nn.Tanh]).batch
