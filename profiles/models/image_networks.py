"""Networks of the literature: LeNet-5, AlexNet and VGG-16 for small pictures, and ResNets of depth 6n + 2.

A layer is a convolution or a linear map with all that follows it up to the next one; a layer of a ResNet is a whole
residual block. The pictures are the scans of `digits`, enlarged, the same in every channel.

BatchNorm takes its statistics from each micro-batch, as in the papers; results then depend on the micro-batch size.

Shapes: B micro-batch, C channels, picture side S.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from torch import Tensor, nn
from torch.nn import functional

from pipesched.profiles import ProfileError
from pipesched.profiles.models.conv import ConvHead
from pipesched.profiles.models.digits import held_out_pictures, picture_batch
from pipesched.profiles.models.model import Model, class_loss, require_dropout, require_range

_Builder: TypeAlias = Callable[[], nn.Module]
_RGB = 3
"""Channels of a picture."""
_VGG_WIDTHS = ((1, 1), (2, 2), (4, 4, 4), (8, 8, 8), (8, 8, 8))
"""Channels of VGG-16's convolutions, in the width of the first; a pooling after each group."""
_ALEX_WIDTHS = (1, 3, 6, 4, 4)
"""Channels of AlexNet's convolutions, in the width of the first."""


def lenet5(image: int = 28, classes: int = 10) -> Model:
    """Return LeNet-5 (LeCun et al., 1998) with ReLU and max pooling: five layers, 61,706 parameters by default.

    Args:
        image: Side of the square picture of one channel [pixels].
        classes: Number of classes.

    Raises:
        ProfileError: An argument is out of range.
    """
    name = f"lenet5:image={image},classes={classes}"
    _require_pictures(name, image, classes, least=16)
    side = (image // 2 - 4) // 2
    layers: list[_Builder] = [
        partial(ConvLayer, 1, 6, kernel=5, padding=2, is_pooled=True),
        partial(ConvLayer, 6, 16, kernel=5, padding=0, is_pooled=True),
        partial(LinearLayer, 16 * side**2, 120),
        partial(LinearLayer, 120, 84),
        partial(nn.Linear, 84, classes),
    ]
    return _classifier(name, layers, [*_numbered("conv", 2), *_numbered("linear", 3)], image, channels=1)


def alexnet(width: int = 64, linear: int = 4096, image: int = 32, classes: int = 10, dropout: float = 0.5) -> Model:
    """Return AlexNet for small pictures: five convolutions, three linear maps, 23.3 million parameters by default.

    Args:
        width: Channels of the first convolution; the others have 3, 6, 4 and 4 times as many.
        linear: Width of the two hidden linear maps.
        image: Side of the square picture [pixels].
        classes: Number of classes.
        dropout: Dropout probability before the hidden linear maps.

    Raises:
        ProfileError: An argument is out of range.
    """
    name = f"alexnet:width={width},linear={linear},image={image},classes={classes},dropout={dropout}"
    require_range(name, "width", width, 1, 2**12)
    require_range(name, "linear", linear, 1, 2**16)
    _require_pictures(name, image, classes, least=16)
    require_dropout(name, dropout)
    channels = [_RGB, *(width * times for times in _ALEX_WIDTHS)]
    layers: list[_Builder] = [
        partial(ConvLayer, channels[i], channels[i + 1], stride=2 if i == 0 else 1, is_pooled=i in (0, 1, 4))
        for i in range(5)
    ]
    side = (image + 1) // 2 // 8
    layers += _linears(channels[-1] * side**2, linear, classes, dropout)
    return _classifier(name, layers, [*_numbered("conv", 5), *_numbered("linear", 3)], image)


def vgg16(
    width: int = 64,
    linear: int = 4096,
    image: int = 32,
    classes: int = 10,
    dropout: float = 0.5,
    batch_norm: bool = True,
) -> Model:
    """Return VGG-16: 13 convolutions, three linear maps; ``image=224,classes=1000,batch_norm=false`` as published.

    Args:
        width: Channels of the first two convolutions; the others have 2, 4 and 8 times as many.
        linear: Width of the two hidden linear maps.
        image: Side of the square picture [pixels].
        classes: Number of classes.
        dropout: Dropout probability before the hidden linear maps.
        batch_norm: Whether a BatchNorm follows each convolution.

    Raises:
        ProfileError: An argument is out of range.
    """
    name = f"vgg16:width={width},linear={linear},image={image},classes={classes},dropout={dropout}"
    name += f",batch_norm={str(batch_norm).lower()}"
    require_range(name, "width", width, 1, 2**12)
    require_range(name, "linear", linear, 1, 2**16)
    _require_pictures(name, image, classes, least=32)
    require_dropout(name, dropout)
    convolutions, before = list[_Builder](), _RGB
    for group in _VGG_WIDTHS:
        for index, times in enumerate(group):
            is_last = index == len(group) - 1
            convolutions.append(partial(ConvLayer, before, width * times, is_normalized=batch_norm, is_pooled=is_last))
            before = width * times
    layers = [*convolutions, *_linears(before * (image // 32) ** 2, linear, classes, dropout)]
    return _classifier(name, layers, [*_numbered("conv", 13), *_numbered("linear", 3)], image)


def resnet(depth: int = 20, width: int = 16, image: int = 32, classes: int = 10) -> Model:
    """Return the ResNet for CIFAR (He et al., 2016): a stem, three groups of (depth - 2) / 6 blocks, and a classifier.

    The second and the third group halve the picture and double the channels; their shortcut has no parameters.

    Args:
        depth: Number of convolutions and linear maps, 6n + 2.
        width: Channels of the stem and the first group.
        image: Side of the square picture [pixels].
        classes: Number of classes.

    Raises:
        ProfileError: An argument is out of range.
    """
    name = f"resnet:depth={depth},width={width},image={image},classes={classes}"
    if depth % 6 != 2 or not 8 <= depth <= 2000:
        raise ProfileError(f"model {name}: depth: got {depth}, expected 6n + 2, from 8 to 2000; try 20")
    require_range(name, "width", width, 1, 2**12)
    _require_pictures(name, image, classes, least=4)
    per_group = (depth - 2) // 6
    widths = [width << group for group in range(3) for _ in range(per_group)]
    blocks = [partial(NormedBlock, before, after) for before, after in zip([width, *widths], widths, strict=False)]
    stem, head = partial(ConvLayer, _RGB, width, is_normalized=True), partial(ConvHead, widths[-1], classes)
    layers: list[_Builder] = [stem, *blocks, head]
    return _classifier(name, layers, ["stem", *_numbered("block", len(blocks)), "head"], image)


class ConvLayer(nn.Module):
    """A convolution, a BatchNorm (in place of the bias) if wanted, ReLU, and a pooling over 2 x 2 if wanted."""

    def __init__(
        self,
        before: int,
        after: int,
        *,
        kernel: int = 3,
        stride: int = 1,
        padding: int = 1,
        is_normalized: bool = False,
        is_pooled: bool = False,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, kernel, stride=stride, padding=padding, bias=not is_normalized)
        self.norm = nn.BatchNorm2d(after) if is_normalized else nn.Identity()
        self.is_pooled = is_pooled

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, before, S, S) to (B, after, S', S')."""
        features = functional.relu(self.norm(self.conv(x)))
        return functional.max_pool2d(features, 2) if self.is_pooled else features


class LinearLayer(nn.Module):
    """Dropout, a linear map and ReLU; pictures are flattened first."""

    def __init__(self, before: int, after: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(before, after)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, ...) to (B, after)."""
        return functional.relu(self.linear(self.dropout(x.flatten(1))))


class NormedBlock(nn.Module):
    """Two convolutions with BatchNorm, added to a shortcut.

    Where the width grows, the shortcut takes every second pixel and fills the new channels with zeros.
    """

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.stride, self.num_new = (1, 0) if before == after else (2, after - before)
        self.conv1 = nn.Conv2d(before, after, 3, stride=self.stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, before, S, S) to (B, after, S', S'), with S' = S / 2 where the width grows."""
        hidden = functional.relu(self.norm1(self.conv1(x)))
        shortcut = x[:, :, :: self.stride, :: self.stride]
        left = self.num_new // 2
        shortcut = functional.pad(shortcut, (0, 0, 0, 0, left, self.num_new - left)) if self.num_new else shortcut
        return functional.relu(self.norm2(self.conv2(hidden)) + shortcut)


def _linears(features: int, hidden: int, classes: int, dropout: float) -> list[_Builder]:
    return [
        partial(LinearLayer, features, hidden, dropout),
        partial(LinearLayer, hidden, hidden, dropout),
        partial(nn.Linear, hidden, classes),
    ]


def _classifier(
    name: str, layers: Sequence[_Builder], layer_names: Sequence[str], image: int, channels: int = _RGB
) -> Model:
    return Model(
        name,
        tuple(layers),
        tuple(layer_names),
        class_loss,
        partial(picture_batch, channels, image),
        partial(held_out_pictures, channels, image),
    )


def _numbered(word: str, count: int) -> list[str]:
    return [f"{word} {index}" for index in range(count)]


def _require_pictures(name: str, image: int, classes: int, least: int) -> None:
    require_range(name, "image", image, least, 512)
    require_range(name, "classes", classes, 10, 2**16)
