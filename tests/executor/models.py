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


class Halving(nn.Module):
    """Scales by a buffer that every training forward replaces, and counts its forwards in an attribute."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("forwards", torch.zeros((), dtype=torch.int64))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.training:
            self.scale = 0.9 * self.scale + 0.05
            self.forwards.fill_(self.calls)
        return x * self.scale


def frozen(layers: int):
    """Have layers in training and in evaluation mode, inside one stage and alone, and forwards that change buffers."""
    parts = [
        lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5).eval(), nn.BatchNorm1d(WIDTH)),
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)),
        Halving,
        lambda: nn.BatchNorm1d(WIDTH).eval(),
        lambda: nn.utils.spectral_norm(nn.Linear(WIDTH, WIDTH)),
        lambda: Halving().eval(),
        lambda: nn.Dropout(0.5).eval(),
        lambda: nn.Linear(WIDTH, WIDTH).requires_grad_(requires_grad=False),
    ]
    return _of("frozen", [parts[index % len(parts)] for index in range(layers)])
