"""Tiny models for the tests, also by name: ``tests.executor.models:dropping:layers=6``."""

import os
import signal
from dataclasses import replace
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from pipesched.profiles.models import Model
from pipesched.profiles.models.mlp import mlp

WIDTH = 4


class Layer(nn.Module):
    """A residual layer that drops half of what it adds, or nothing."""

    def __init__(self, probability):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.probability = probability

    def forward(self, x):
        hidden = torch.tanh(self.linear(x))
        return x + (functional.dropout(hidden, self.probability, self.training) if self.probability else hidden)


def _model(name, layers, probability):
    return _of(name, [partial(Layer, probability)] * layers)


def _of(name, builders):
    """Return a model that learns what `mlp` does: to reverse a random vector."""
    layers = len(builders)
    return Model(name, tuple(builders), tuple(str(i) for i in range(layers)), functional.mse_loss, mlp(WIDTH).batch)


def plain(layers: int):
    return _model("plain", layers, 0.0)


def dropping(layers: int):
    return _model("dropping", layers, 0.5)


def normed(layers: int):
    """Have running means, which no gradient makes equal on replicas."""
    return _of("normed", [partial(Layer, 0.0), partial(nn.BatchNorm1d, WIDTH)] * (layers // 2))


def signalling(layers: int, at: int):
    """Send SIGUSR1 to the process that draws the samples for the `at`-th time, and to no other."""
    quiet, count = plain(layers), iter(range(1, 10**9))

    def batch(num_samples, seed):
        if next(count) == at:
            os.kill(os.getpid(), signal.SIGUSR1)
        return quiet.batch(num_samples, seed)

    return replace(quiet, batch=batch)
