"""Tiny chains whose layers pass several tensors on, also by name: ``tests.executor.tuple_models:mixed:layers=4``."""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipesched.profiles.models import Model, trace_model
from pipesched.profiles.models.mlp import mlp
from tests.executor.models import WIDTH


def of(name, builders, loss=functional.mse_loss, batch=None):
    """Return the model of some layers; by default it has the data of `mlp`."""
    names = tuple(map(str, range(len(builders))))
    return Model(name, tuple(builders), names, loss, mlp(WIDTH).batch if batch is None else batch)


class Paired(nn.Module):
    """A layer of `models.plain` whose sum is left to the next one; it passes (x, hidden, integers, None)."""

    def __init__(self, *, is_last):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.is_last = is_last

    def forward(self, value):
        if isinstance(value, Tensor):
            x, ones = value, torch.ones(len(value), 1, dtype=torch.int64)
        else:
            x, hidden, ones, absent = value
            assert absent is None
            x = x + hidden * ones
        hidden = torch.tanh(self.linear(x))
        return x + hidden if self.is_last else (x, hidden, ones, None)


def paired(layers: int):
    """Compute `models.plain`, and pass two floating tensors, an integer one and None."""
    return of("paired", [partial(Paired, is_last=index == layers - 1) for index in range(layers)])


class First(nn.Module):
    """Makes all carried tensors: tensors that layers change, that they pass on, and that no layer uses."""

    def __init__(self):
        super().__init__()
        self.linear, self.skip, self.idle = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        keeps, order = x > 0, x.argsort(-1)
        constant = x.detach().abs() + 0.5
        return torch.tanh(self.linear(x)), self.skip(x), keeps, order, None, constant, self.idle(x)


class Middle(nn.Module):
    """Uses all tensors but the last; a layer with a bias makes the later summand from its parameter alone."""

    def __init__(self, *, has_bias):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.bias = nn.Parameter(torch.randn(WIDTH)) if has_bias else None

    def forward(self, value):
        x, skip, keeps, order, bias, constant, idle = value
        x = torch.where(keeps, torch.tanh(self.linear(x)), x * constant).gather(-1, order) + 0.1 * skip.sin()
        if bias is not None:
            x = x + bias
        if self.bias is not None:
            bias = 2 * self.bias
        return x, skip, keeps, order, bias, constant, idle


class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, value):
        x, skip, *_ = value
        return self.linear(x) + skip


def mixed(layers: int):
    """Pass seven tensors of four types, changed and as they are; one of them is used by nobody."""
    middle = [partial(Middle, has_bias=index == 1) for index in range(1, layers - 1)]
    return of("mixed", [First, *middle, Last])


class Twin(nn.Module):
    """Passes one tensor twice; a stage of this layer alone gives the very tensors that it was given, exchanged."""

    def __init__(self, *, learns):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH) if learns else None

    def forward(self, value):
        x, other = (value, value) if isinstance(value, Tensor) else value
        if self.linear is None:
            return other, x
        x = torch.tanh(self.linear(x)) + other
        return x, x


class Sum(nn.Module):
    def forward(self, value):
        return value[0] + 2 * value[1]


def twins(layers: int):
    """Pass a tensor twice, through layers that learn and layers that only exchange the two."""
    return of("twins", [*(partial(Twin, learns=index % 2 == 0) for index in range(layers - 1)), Sum])


class Embedding(nn.Module):
    """Takes (numbers, vectors), which are no chain of one tensor from the beginning."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(8, WIDTH)

    def forward(self, value):
        numbers, vectors = value
        return self.table(numbers) + vectors, vectors


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, value):
        x, vectors = value
        return torch.tanh(self.linear(x)) * vectors, vectors


def weighted_loss(output, targets):
    """Take an output of two tensors and targets of two."""
    expected, weights = targets
    return ((output[0] - expected).square().mean(-1) * weights).mean()


def fed(layers: int):
    """Have inputs, output and targets of several tensors."""

    def batch(num_samples, seed):
        random = torch.Generator().manual_seed(seed)
        vectors = torch.randn(num_samples, WIDTH, generator=random)
        numbers = torch.randint(8, (num_samples,), generator=random)
        return (numbers, vectors), (vectors.flip(-1), torch.rand(num_samples, generator=random))

    model = of("fed", [Embedding, *[Gated] * (layers - 1)], weighted_loss, batch)
    return replace(model, held_out=lambda: batch(7, 99))


class Numbers(nn.Module):
    """Gives one integer tensor."""

    def forward(self, x):
        return (4 * x).long().clamp(0, 7)


class Looked(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(8, 1)

    def forward(self, numbers):
        return self.table(numbers).squeeze(-1)


def numbered(layers: int):
    """Pass one integer tensor from the first layer to the second, and none of several after that."""
    return of("numbered", [Numbers, Looked, *[partial(nn.Linear, WIDTH, WIDTH)] * (layers - 2)])


class Masked(nn.Module):
    """Begins (x, mask, skip, None), or changes x under the mask and carries the rest."""

    def __init__(self, width, *, is_first):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.is_first = is_first

    def forward(self, value):
        x = value if self.is_first else value[0]
        change = self.down(self.up(x).relu())
        _, mask, skip, none = (x, x > 0, change.sin(), None) if self.is_first else value
        return x + change.masked_fill(mask, 0.0), mask, skip, none


class Skipped(nn.Module):
    """Multiplies x with the skipped tensor, which no layer has kept before."""

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, value):
        x, _, skip, _ = value
        return self.linear(x * skip)


def carried(layers: int, width: int):
    """Carry a mask that every layer keeps, and a tensor that only the last one keeps."""
    masked = [partial(Masked, width, is_first=index == 0) for index in range(layers - 1)]
    return of("carried", [*masked, partial(Skipped, width)], batch=mlp(width).batch)


class MaskedTokens(nn.Module):
    """A module to trace: a mask (bool) and the tokens (int64) cross every cut beside the hidden state."""

    def __init__(self, layers):
        super().__init__()
        self.table = nn.Embedding(8, 16)
        self.blocks = nn.ModuleList([nn.Linear(16, 16) for _ in range(layers)])

    def forward(self, tokens):
        x, is_padding = self.table(tokens), (tokens == 0).unsqueeze(-1)
        for block in self.blocks:
            x = x + block(x).masked_fill(is_padding, 0.0) * tokens.unsqueeze(-1)
        return x.mean(1)


def masked_tokens(layers: int):
    """Trace `MaskedTokens`, for samples of 8 tokens."""

    def batch(num_samples, seed):
        random = torch.Generator().manual_seed(seed)
        return torch.randint(8, (num_samples, 8), generator=random), torch.randn(num_samples, 16, generator=random)

    return trace_model("masked_tokens", MaskedTokens(layers - 1), functional.mse_loss, batch)


class Mixture(nn.Module):
    """Two blocks, each the sum of three linear experts: the longest lists are the experts."""

    def __init__(self):
        super().__init__()
        experts = [nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3)) for _ in range(2)]
        self.blocks = nn.ModuleList(nn.ModuleDict({"experts": its}) for its in experts)
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        for block in self.blocks:
            x = x + torch.stack([expert(x) for expert in block["experts"]]).mean(0).tanh()
        return self.head(x)


def mixture():
    """Trace `Mixture`, cut between its blocks by name."""
    cuts = ["blocks.1.experts.0", "head"]
    return trace_model("mixture", Mixture, functional.mse_loss, mlp(WIDTH).batch, cuts=cuts)
