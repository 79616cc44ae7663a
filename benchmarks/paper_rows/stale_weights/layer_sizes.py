"""Sizes of a model's layers by torchsummary's rule: every output of an operation counts twice, for its gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from pipesched.profiles.models import resolve_model

MIB = 2**20
_COUNTED = ("convolution", "native_batch_norm", "relu", "max_pool2d", "mul.Tensor", "addmm", "mean", "add.Tensor")
"""Beginnings of the names of operations that torchsummary sees as modules; dropout multiplies."""


@dataclass(frozen=True, slots=True)
class LayerSize:
    """Sizes of a layer.

    Attributes:
        parameters: Number of parameters.
        output_bytes: Bytes per sample of the outputs of its operations, in float32, without gradients.
    """

    parameters: int
    output_bytes: int


@dataclass(frozen=True, slots=True)
class Network:
    """A network of the paper.

    Attributes:
        name: As in the paper.
        layers: Sizes of its layers.
        first: Layers before the only pair of registers, for four stages on two accelerators.
    """

    name: str
    layers: tuple[LayerSize, ...]
    first: int

    @property
    def weight_mib(self) -> float:
        """Weights [MiB]."""
        return sum(layer.parameters for layer in self.layers) * 4 / MIB

    @property
    def sample_mib(self) -> float:
        """Activations and their gradients [MiB per sample]."""
        return 2 * self.kept_mib(len(self.layers))

    def kept_mib(self, layers: int) -> float:
        """Return the activations of the first `layers` layers, without gradients [MiB per sample]."""
        return sum(layer.output_bytes for layer in self.layers[:layers]) / MIB

    def total_mib(self, batch_size: int) -> float:
        """Return the memory of non-pipelined training [MiB]."""
        return self.sample_mib * batch_size + self.weight_mib

    def increase(self, batch_size: int, activation_copies: int, weight_copies: float, weight_layers: int = 0) -> float:
        """Return the increase in memory over non-pipelined training, in percent.

        Args:
            batch_size: Samples.
            activation_copies: Further copies of the activations of the first forward stage.
            weight_copies: Further copies of weights.
            weight_layers: Layers with such copies, from the first on; 0 for all.
        """
        held = self.layers[:weight_layers] if weight_layers else self.layers
        weight_mib = sum(layer.parameters for layer in held) * 4 / MIB
        further_mib = activation_copies * self.kept_mib(self.first) * batch_size + weight_copies * weight_mib
        return 100 * further_mib / self.total_mib(batch_size)


class _Outputs(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Counts the bytes of outputs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.__name__.startswith(_COUNTED):
            output: Tensor = result[0] if isinstance(result, tuple) else result
            self.num_bytes += output.nbytes
        return result


@cache
def layer_sizes(model: str) -> tuple[LayerSize, ...]:
    """Return the sizes of the layers of a built-in model; no tensor has memory."""
    built = resolve_model(model)
    pictures, _ = built.batch(2, 0)
    assert isinstance(pictures, Tensor)
    x, sizes = pictures.to("meta"), list[LayerSize]()
    for layer in built.layers:
        size, x = _size(layer, x)
        sizes.append(size)
    return tuple(sizes)


def _size(layer: Callable[[], nn.Module], x: Tensor) -> tuple[LayerSize, Tensor]:
    with torch.device("meta"):
        module = layer()
    with _Outputs() as outputs, torch.no_grad():
        result: Tensor = module(x)
    return LayerSize(sum(p.numel() for p in module.parameters()), outputs.num_bytes // len(x)), result
