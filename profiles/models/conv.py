"""A small residual convolutional network, with layers of unequal cost.

The pictures are synthetic: bytes of Python's help topics as pixels. They need no download and are the same everywhere.
The norm is GroupNorm, because the result of a sample must not depend on its micro-batch or on the order of the
micro-batches. With BatchNorm it would.

Shapes: B micro-batch, C channels, picture side S.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn
from torch.nn import functional

from pipesched.profiles import ProfileError
from pipesched.profiles.models.model import Model, class_loss, require_range
from pipesched.profiles.models.text_data import crops

_GROUPS = 4


def conv(channels: int = 32, blocks: int = 6, image: int = 32, classes: int = 10) -> Model:
    """Return a stem, `blocks` residual blocks and a classifier.

    Every second block halves the picture and doubles the channels.

    Args:
        channels: Channels of the stem and the first block.
        blocks: Number of residual blocks, of two convolutions each.
        image: Side of the square picture [pixels].
        classes: Number of classes.

    Raises:
        ProfileError: The arguments do not fit together.
    """
    name = f"conv:channels={channels},blocks={blocks},image={image},classes={classes}"
    _check(name, channels, blocks, image, classes)
    widths = [channels << (i + 1) // 2 for i in range(blocks)]
    befores = [channels, *widths[:-1]]
    return Model(
        name,
        (
            partial(Stem, channels),
            *(partial(ResidualBlock, before, after) for before, after in zip(befores, widths, strict=True)),
            partial(ConvHead, widths[-1], classes),
        ),
        ("stem", *(f"block {i}" for i in range(blocks)), "head"),
        class_loss,
        partial(_batch, image, classes),
    )


def _check(name: str, channels: int, blocks: int, image: int, classes: int) -> None:
    if channels < _GROUPS or channels % _GROUPS:
        raise ProfileError(f"model {name}: channels: got {channels}, expected a multiple of {_GROUPS}; try 32")
    require_range(name, "blocks", blocks, 1, 16)
    halvings = blocks // 2
    if not 1 << halvings <= image <= 128:
        raise ProfileError(
            f"model {name}: image: got {image}, expected {1 << halvings} to 128 "
            f"as {blocks} blocks halve it {halvings} times; try 32 with fewer blocks"
        )
    require_range(name, "classes", classes, 2, 256)


class Stem(nn.Module):
    """The first layer: a convolution from pixels to features, normalized."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(_GROUPS, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, 3, S, S) to (B, C, S, S)."""
        return functional.relu(self.norm(self.conv(x)))


class ResidualBlock(nn.Module):
    """Two convolutions, added to a shortcut."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        stride = 1 if before == after else 2
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(_GROUPS, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(_GROUPS, after)
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(before, after, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, before, S, S) to (B, after, S', S'), with S' = S / 2 where the width grows."""
        hidden = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(hidden)) + self.shortcut(x))


class ConvHead(nn.Module):
    """Mean over the picture, then a linear classifier."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.scores = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, S, S) to (B, classes)."""
        scores: Tensor = self.scores(x.mean((2, 3)))
        return scores


def _batch(image: int, classes: int, num_samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures (B, 3, S, S) of about unit scale, and their classes (B,): the next byte modulo `classes`."""
    size = 3 * image * image
    tokens = crops(num_samples, size + 1, seed)
    pictures = (tokens[:, :size].float() - 80.0) / 40.0
    return pictures.reshape(num_samples, 3, image, image), tokens[:, size] % classes
