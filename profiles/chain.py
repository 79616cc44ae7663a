"""A whole model run in the manner of a pipeline: layer after layer, cut from each other at every boundary.

    forward   x0 -> layer 0 -> y0 | x1 = y0.detach() -> layer 1 -> y1 | x2 ... -> layer L-1 -> loss
    backward  layer L-1 from the loss, then layer L-2 from x(L-1).grad, ...

So each layer can be timed, and finds the caches as cold as in a real run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from profiles.errors import ProfileError
from profiles.models.model import Model, build_layers, draw_batch
from profiles.saved_tensors import SavedTensors, address, storage_bytes

_LOSS_SCALE = 1 / 8
"""As for eight micro-batches: any number takes the same time."""


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """The byte fields of a `LayerMeasurement`."""

    input_bytes: int
    output_bytes: int
    output_storage_bytes: int
    saved_bytes: int
    input_saved: bool
    output_saved: bool
    output_is_input: bool


class Chain:
    """The layers of `model` with weights and data on one device.

    Gradients accumulate over runs, as they do over the micro-batches of a batch.
    """

    def __init__(self, model: Model, *, seed: int, dtype: torch.dtype, device: torch.device) -> None:
        self.model = model
        self.layers: list[nn.Module] = list(
            build_layers(model, 0, len(model.layers), seed=seed, dtype=dtype, device=device)
        )
        self._seed = seed
        self._dtype = dtype
        self._device = device

    def batch(self, num_samples: int) -> tuple[Tensor, Tensor]:
        """Return (inputs, targets) of one micro-batch."""
        return draw_batch(self.model, num_samples, self._seed, dtype=self._dtype, device=self._device)

    def run(self, inputs: Tensor, targets: Tensor, mark: Callable[[], None]) -> None:
        """Run forward and backward of one micro-batch.

        Args:
            inputs: As from `batch`.
            targets: As from `batch`.
            mark: Called at the start, after each forward in order and after each backward in reverse.
        """
        ins: list[Tensor] = []
        outs: list[Tensor] = []
        x = inputs
        mark()
        for index in range(len(self.layers)):
            y = self._forward(index, x, targets)
            ins.append(x)
            outs.append(y)
            x = _cut(y)
            mark()
        gradient: Tensor | None = torch.full_like(outs[-1], _LOSS_SCALE)
        while outs:
            x, y = ins.pop(), outs.pop()
            if gradient is not None and y.requires_grad:
                torch.autograd.backward(y, gradient)
            gradient = x.grad
            mark()

    def measure_bytes(self, num_samples: int) -> list[LayerBytes]:
        """Return what crosses each layer's boundaries and what autograd keeps inside, at one micro-batch size.

        Raises:
            ProfileError: A layer fails, or returns something else than one tensor.
        """
        x, targets = self.batch(num_samples)
        found = []
        for index, layer in enumerate(self.layers):
            with self._blaming(index), SavedTensors() as saved:
                y = self._forward(index, x, targets)
            last = index == len(self.layers) - 1
            if last and y.numel() != 1:
                raise self._fault(
                    index,
                    f"got a loss of shape {tuple(y.shape)}, expected one number; return the mean over the micro-batch",
                )
            found.append(_layer_bytes(layer, x, y, saved, last))
            x = _cut(y)
        return found

    def _forward(self, index: int, x: Tensor, targets: Tensor) -> Tensor:
        y = self.layers[index](x)
        if not isinstance(y, Tensor):
            raise self._fault(index, f"got {type(y).__name__}, expected it to return one tensor; pack or split it")
        return self.model.loss(y, targets) if index == len(self.layers) - 1 else y

    @contextmanager
    def _blaming(self, index: int) -> Iterator[None]:
        try:
            yield
        except ProfileError:
            raise
        except Exception as error:  # a user's layer or loss may raise anything
            message = " ".join(str(error).split())[:200]
            raise self._fault(
                index, f"got {type(error).__name__} ({message}), expected it to run; try fewer samples or mend it"
            ) from error

    def _fault(self, index: int, what: str) -> ProfileError:
        return ProfileError(f"model {self.model.name}: layer {index} ({self.model.layer_names[index]}): {what}")


def _cut(y: Tensor) -> Tensor:
    """Return `y` as the next layer gets it: no graph behind it, and a gradient only if someone behind wants one."""
    return y.detach().requires_grad_(y.requires_grad)


def _layer_bytes(layer: nn.Module, x: Tensor, y: Tensor, saved: SavedTensors, last: bool) -> LayerBytes:
    boundary = [x] if last else [x, y]
    resident = [*layer.parameters(), *layer.buffers()]
    return LayerBytes(
        input_bytes=x.nbytes,
        output_bytes=0 if last else y.nbytes,
        output_storage_bytes=0 if last else storage_bytes(y),
        saved_bytes=saved.num_bytes(without=[*boundary, *resident]),
        input_saved=saved.holds(x),
        output_saved=not last and saved.holds(y),
        output_is_input=not last and address(x) == address(y),
    )
