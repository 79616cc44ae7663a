"""A residual network on handwritten digits: the 1,797 scans of 8 x 8 pixels in scikit-learn (UCI ML repository).

The last 297 scans of a fixed random order are held out, to measure the accuracy.

Shapes: B micro-batch, D width.
"""

# ruff: noqa: N803  # tensor names carry their shape

from __future__ import annotations

from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipesched.profiles import ProfileError
from pipesched.profiles.models.model import Model, class_loss, require_dropout, require_range

_SCAN = (8, 8)
_NUM_PIXELS, _NUM_CLASSES, _NUM_HELD_OUT = 64, 10, 297


def digits(width: int = 64, blocks: int = 6, dropout: float = 0.0) -> Model:
    """Return a stem, `blocks` residual blocks of equal cost and a classifier.

    Args:
        width: Width of every layer.
        blocks: Number of blocks between the stem and the classifier.
        dropout: Dropout probability of each block's result.

    Raises:
        ProfileError: An argument is out of range.
    """
    name = f"digits:width={width},blocks={blocks},dropout={dropout}"
    require_range(name, "width", width, 1, 2**16)
    require_range(name, "blocks", blocks, 0, 10_000)
    require_dropout(name, dropout)
    return Model(
        name,
        (
            partial(nn.Linear, _NUM_PIXELS, width),
            *(partial(DigitsBlock, width, dropout) for _ in range(blocks)),
            partial(DigitsHead, width),
        ),
        ("stem", *(f"block {i}" for i in range(blocks)), "head"),
        class_loss,
        _batch,
        _held_out,
    )


def picture_batch(channels: int, side: int, num_samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return scans enlarged to pictures (B, `channels`, `side`, `side`), and their digits (B,)."""
    pixels, classes = _batch(num_samples, seed)
    return _enlarged(pixels, channels, side), classes


def held_out_pictures(channels: int, side: int) -> tuple[Tensor, Tensor]:
    """Return the held-out scans as in `picture_batch`."""
    pixels, classes = _held_out()
    return _enlarged(pixels, channels, side), classes


class DigitsBlock(nn.Module):
    """Two linear layers, added to a shortcut."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BD: Tensor) -> Tensor:
        """Map (B, D) to (B, D)."""
        update: Tensor = self.dropout(self.down(functional.relu(self.up(self.norm(x_BD)))))
        return x_BD + update


class DigitsHead(nn.Module):
    """Final norm and scores of the ten digits."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, _NUM_CLASSES)

    def forward(self, x_BD: Tensor) -> Tensor:
        """Map (B, D) to (B, 10)."""
        scores: Tensor = self.scores(self.norm(x_BD))
        return scores


@cache
def _scans() -> tuple[Tensor, Tensor]:
    """Return (pixels (1797, 64) of about unit scale, digits (1797,)), always in the same shuffled order."""
    package = find_spec("sklearn")  # not imported: that would take more than a second in each process of a run
    if package is None or package.origin is None:
        raise ProfileError(
            "model digits: got no package scikit-learn, which has the scans, expected it installed; try pip install "
            '"pipesched[digits]"'
        )
    rows = np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    pixels, classes = rows[:, :-1], rows[:, -1]
    order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(0))
    return (torch.as_tensor(pixels, dtype=torch.float32)[order] - 5.0) / 6.0, torch.as_tensor(classes)[order].long()


def _batch(num_samples: int, seed: int) -> tuple[Tensor, Tensor]:
    pixels, classes = _scans()
    random = torch.Generator().manual_seed(seed)
    chosen = torch.randint(len(classes) - _NUM_HELD_OUT, (num_samples,), generator=random)
    return pixels[chosen], classes[chosen]


def _enlarged(pixels: Tensor, channels: int, side: int) -> Tensor:
    scans = pixels.reshape(-1, 1, *_SCAN)
    return functional.interpolate(scans, (side, side), mode="bilinear").expand(-1, channels, -1, -1).contiguous()


def _held_out() -> tuple[Tensor, Tensor]:
    pixels, classes = _scans()
    return pixels[-_NUM_HELD_OUT:], classes[-_NUM_HELD_OUT:]
