"""Models whose layers share parameters, for the tests: the layers, and the same module as users write it."""

import torch
from torch import nn
from torch.nn import functional

CLASSES, WIDTH = 11, 6


class Scores(nn.Module):
    """Scores with the weights of an embedding."""

    def __init__(self, embedding):
        super().__init__()
        self.embedding = embedding

    def forward(self, x):
        return functional.linear(x, self.embedding.weight)


class Again(nn.Module):
    """Adds embeddings, weighted by the input, and scales them by a gain."""

    def __init__(self, embedding, gain):
        super().__init__()
        self.table = embedding
        self.gain = gain

    def forward(self, x):
        return x + self.gain * functional.linear(
            functional.linear(x, self.table.weight).softmax(-1), self.table.weight.T
        )


def block():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())


def loss(scores, targets):
    return functional.cross_entropy(scores, targets)


def batch(num_samples, seed):
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randint(CLASSES, (num_samples,), generator=generator) for _ in range(2))


def two_places():
    """An embedding that is the head too."""
    embedding = nn.Embedding(CLASSES, WIDTH)
    return [embedding, *(block() for _ in range(6)), Scores(embedding)], loss, batch


def three_places():
    """An embedding in three layers, and a gain in two of them and another layer."""
    embedding, gain = nn.Embedding(CLASSES, WIDTH), nn.Parameter(torch.full((WIDTH,), 0.5))
    middle = [block(), block(), Again(embedding, gain), block(), block(), Gain(gain)]
    return [embedding, *middle, Scores(embedding)], loss, batch


class Gain(nn.Module):
    """Scales its input."""

    def __init__(self, gain):
        super().__init__()
        self.gain = gain

    def forward(self, x):
        return self.gain * x


class Whole(nn.Module):
    """A module whose embedding is used at three places, in one of them under another name."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(CLASSES, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(4))
        self.again = Again(self.table, nn.Parameter(torch.full((WIDTH,), 0.5)))
        self.scale = nn.BatchNorm1d(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens):
        x = self.table(tokens)
        for index, part in enumerate(self.blocks):
            x = part(x)
            if index == 1:
                x = self.again(x)
        return self.head(self.scale(x))


MODELS = {name: f"tests.executor.tied_models:{name}" for name in ("two_places", "three_places")}
