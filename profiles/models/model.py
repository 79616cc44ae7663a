"""A model: a chain of layers, a loss, and data to feed it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TypeAlias

import numpy  # noqa: F401 -- before torch, whose C code would load it and lose an interrupt
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parameter import is_lazy

from pipesched.profiles import ProfileError
from pipesched.profiles.models.kept_state import kept_random_state
from pipesched.profiles.models.values import Value, mapped
from pipesched.schedules.common import error_text

Tie: TypeAlias = tuple[tuple[int, str], ...]
"""A parameter that layers share: (layer, name in the layer) of each place."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model: a chain of layers; one `Value` crosses each boundary between two layers.

    Attributes:
        name: Name by which `resolve_model` finds the model.
        layers: ``layers[i]()`` builds layer ``i``.
        layer_names: One name per layer, for tables.
        loss: (output of the last layer, targets) -> the mean over the micro-batch, a scalar.
        batch: (number of samples, seed) -> (inputs, targets), both with the samples in dimension 0.
        held_out: () -> (inputs, targets) to score a trained model, from samples that `batch` never returns; or None.
        build_range: (first, last, seed) -> layers ``first`` to ``last - 1``, with the weights of the whole model for
            that seed; shared parameters within the range are one object. None: every layer is built alone.
        ties: The parameters that layers share, each as its (layer, name in the layer) at every place, in order.
        state_names: The names in the state dict of the whole module, each with the name that layers have for it.
            None: tensor ``NAME`` of layer 3 is called ``3.NAME``, as in a Sequential of all layers.
        kinds: A key of each layer: layers with equal keys run the same ops on equal inputs. None: compare the builders.
        is_resolved: Whether `resolve_model` made the model: another process can then make it by its name. False for a
            changed copy.
    """

    name: str
    layers: tuple[Callable[[], nn.Module], ...]
    layer_names: tuple[str, ...]
    loss: Callable[[Any, Any], Tensor]
    batch: Callable[[int, int], tuple[Value, Value]]
    held_out: Callable[[], tuple[Value, Value]] | None = None
    build_range: Callable[[int, int, int], Sequence[nn.Module]] | None = None
    ties: tuple[Tie, ...] = ()
    state_names: Mapping[str, str] | None = field(default=None, compare=False)
    kinds: tuple[Hashable, ...] | None = None
    is_resolved: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.layers:
            raise ProfileError(f"model {self.name}: got no layers, expected at least 1; return the layers as a list")
        for index, layer in enumerate(self.layers):
            if isinstance(layer, nn.Module) or not callable(layer):
                raise ProfileError(
                    f"model {self.name}: layer {index}: got {type(layer).__name__}, expected a function that builds "
                    "the layer; try functools.partial(copy.deepcopy, layer)"
                )
        if len(self.layers) != len(self.layer_names):
            raise ProfileError(
                f"model {self.name}: got {len(self.layer_names)} layer names for {len(self.layers)} layers, expected "
                "one per layer; name every layer"
            )
        if self.ties and self.build_range is None:
            raise ProfileError(
                f"model {self.name}: got ties without build_range, expected a function that builds layers with shared "
                "parameters; give both"
            )

    @property
    def outline(self) -> Mapping[str, object]:
        """The layers, ties and names as JSON can hold them, without the weights; equal models have equal outlines."""
        kinds = self.kinds or ()
        return {
            "layers": self.layer_names,
            "kinds": [kind if isinstance(kind, str) else kinds.index(kind) for kind in kinds],
            "ties": self.ties,
            "names": None if self.state_names is None else dict(self.state_names),
        }

    def resolved(self, name: str) -> Model:
        """Return the model, marked as the result of `resolve_model` for `name`."""
        model = replace(self, name=name)
        object.__setattr__(model, "is_resolved", True)
        return model


def build_layers(
    model: Model,
    first: int,
    last: int,
    *,
    seed: int,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> nn.Sequential:
    """Build layers `first` to `last` - 1.

    The weights of layer i depend only on (`seed`, i), so a rank that builds a slice gets the same weights as in the
    whole model. Weights are drawn on the CPU in the layer's own dtype, then moved. The caller's random state is
    unchanged.

    Raises:
        ProfileError: The range is not within this model's layers, or a builder fails.
    """
    if not 0 <= first < last <= len(model.layers):
        raise ProfileError(
            f"model {model.name}: got layers {first} to {last} (exclusive), expected a non-empty range within "
            f"0 to {len(model.layers)}; check the partition"
        )
    built = []
    for index, layer in enumerate(_built(model, first, last, seed), first):
        if not isinstance(layer, nn.Module):
            raise ProfileError(
                f"model {model.name}: layer {index}: got {type(layer).__name__}, expected a torch.nn.Module; return a "
                "module from its builder"
            )
        if any(map(is_lazy, chain(layer.parameters(), layer.buffers()))):  # its first input would draw its weights
            raise ProfileError(
                f"model {model.name}: layer {index}: got {type(layer).__name__} with parameters of unknown shape, "
                "expected a layer with weights; give its number of inputs, or run it once in its builder"
            )
        built.append(layer)
    return nn.Sequential(*built).to(device=device, dtype=dtype)


def _built(model: Model, first: int, last: int, seed: int) -> Iterator[nn.Module]:
    if model.build_range is not None:
        with users_code(f"model {model.name}: layers {first} to {last - 1}: their builder", seed):
            layers = model.build_range(first, last, seed)
        yield from layers
        return
    for index in range(first, last):
        with users_code(f"model {model.name}: layer {index}: its builder", layer_seed(seed, index)):
            layer = model.layers[index]()
        yield layer


def draw_batch(
    model: Model,
    num_samples: int,
    seed: int,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> tuple[Value, Value]:
    """Return (inputs, targets) on `device`, floating-point tensors as `dtype`; each has its own storage.

    Raises:
        ProfileError: The model's `batch` fails.
    """
    with users_code(f"model {model.name}: batch({num_samples}, {seed})", seed):
        inputs, targets = model.batch(num_samples, seed)
    return _placed(inputs, dtype, device), _placed(targets, dtype, device)


def draw_held_out(
    model: Model, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> tuple[Value, Value] | None:
    """Return the held-out (inputs, targets), placed as in `draw_batch`, or None if the model has none.

    Raises:
        ProfileError: The model's `held_out` fails.
    """
    if model.held_out is None:
        return None
    with users_code(f"model {model.name}: held_out()"):
        inputs, targets = model.held_out()
    return _placed(inputs, dtype, device), _placed(targets, dtype, device)


@contextmanager
def users_code(what: str, seed: int = 0) -> Iterator[None]:
    """Report an error of a user's function in one line; random numbers inside the block have their own seed."""
    try:
        with kept_random_state(seed):
            yield
    except ProfileError:  # has its message already
        raise
    except Exception as error:  # a user's code may raise anything
        message = error_text(error)
        raise ProfileError(
            f"{what}: got {type(error).__name__} ({message}), expected a result; correct the function"
        ) from error


def _placed(value: Value, dtype: torch.dtype | None, device: torch.device | str | None) -> Value:
    return mapped(lambda tensor: _placed_tensor(tensor, dtype, device), value)


def _placed_tensor(tensor: Tensor, dtype: torch.dtype | None, device: torch.device | str | None) -> Tensor:
    own = tensor.to(dtype=dtype if tensor.is_floating_point() else tensor.dtype, copy=True).contiguous()
    return own if device is None else on_device(pinned_for(own, device), device)


def pinned_for(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Return `tensor`, in pinned memory if it is on the CPU and `device` is a GPU, as the source of a copy."""
    return tensor.pin_memory() if tensor.is_cpu and torch.device(device).type == "cuda" else tensor


def on_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Return `tensor` on `device`; the host does not wait for a copy from pinned memory."""
    return tensor.to(device, non_blocking=tensor.is_cpu)


def require_range(name: str, key: str, got: float, least: int, most: int) -> None:
    """Refuse an argument of a model outside of its range.

    Raises:
        ProfileError: `got` is not from `least` to `most`.
    """
    if not least <= got <= most:
        raise ProfileError(f"model {name}: {key}: got {got}, expected {least} to {most}; try {least}")


def require_dropout(name: str, dropout: float) -> None:
    """Refuse an invalid dropout probability of a model.

    Raises:
        ProfileError: `dropout` is not from 0 to below 1.
    """
    if not 0.0 <= dropout < 1.0:
        raise ProfileError(f"model {name}: dropout: got {dropout}, expected 0 <= dropout < 1; try 0.1")


def class_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy [nats]; 16-bit scores are widened to float32 first.

    Args:
        scores: Scores of the classes, shape (samples, classes).
        targets: Classes, shape (samples,).
    """
    return functional.cross_entropy(scores.float() if scores.dtype.itemsize < 4 else scores, targets)


def layer_seed(seed: int, index: int) -> int:
    """Return the seed of layer `index`: a hash, so that neighbouring seeds and layers are independent."""
    digest = hashlib.blake2b(f"layer {index} of seed {seed}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
