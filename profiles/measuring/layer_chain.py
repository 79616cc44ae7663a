"""The layers of a model in a row, cut from each other at every boundary, with the bytes of each.

    forward   x0 -> layer 0 -> y0 | x1 = y0.detach() -> layer 1 -> y1 | x2 ... -> layer L-1 -> loss
    backward  layer L-1 from the loss, then layer L-2 from x(L-1).grad, ...
    split     I of layer L-1 from the loss, W of layer L-1, I of layer L-2 from x(L-1).grad, W of layer L-2, ...

Each layer can be timed by itself, with the caches as cold as in a real run. W follows I at once, so that memory is
freed and reused as in the backward of a stage. If all I came first, the gradients of the whole model would be held, and
their page faults would count as I (18 % more for GPT blocks on a CPU).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Iterable
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from pipesched.profiles import ProfileError
from pipesched.profiles.costs import LayerMeasurement, LayerSplit
from pipesched.profiles.models import Model, build_layers, draw_batch

if TYPE_CHECKING:
    from pipesched.profiles.measuring.split_backward import Rest


class _Packed:
    """Autograd's placeholder for a saved tensor; it lives as long as autograd keeps the tensor."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class SavedTensors:
    """Watches the tensors that autograd saves for backward inside a ``with`` block, each storage once.

    The tensors are kept alive, so that no storage is freed and its address reused during the count. They are detached:
    a saved output with its graph would be a reference cycle.
    """

    def __init__(self) -> None:
        self._tensors: dict[int, Tensor] = {}
        self._packed: list[weakref.ref[_Packed]] = []
        self._hooks = saved_tensors_hooks(self._pack, _unpack)

    def __enter__(self) -> SavedTensors:
        self._hooks.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hooks.__exit__(kind, error, trace)

    def forget_released(self) -> None:
        """Drop the tensors that autograd has freed."""
        kept = [packed.tensor for reference in self._packed if (packed := reference()) is not None]
        self._tensors = {address(tensor): tensor for tensor in kept}

    def holds(self, tensor: Tensor) -> bool:
        """Return whether the storage of `tensor` was saved."""
        return address(tensor) in self._tensors

    def num_bytes(self, without: Iterable[Tensor] = ()) -> int:
        """Return the size of all saved storages except the storages of `without`."""
        excluded = {address(tensor) for tensor in without}
        return sum(storage_bytes(tensor) for key, tensor in self._tensors.items() if key not in excluded)

    def _pack(self, tensor: Tensor) -> _Packed:
        packed = _Packed(tensor.detach())
        self._tensors.setdefault(address(tensor), packed.tensor)
        self._packed.append(weakref.ref(packed))
        return packed


def address(tensor: Tensor) -> int:
    """Return the address of the storage of `tensor`, unique among live storages."""
    return tensor.untyped_storage().data_ptr()


def storage_bytes(tensor: Tensor) -> int:
    """Return the size of the storage behind `tensor`."""
    return tensor.untyped_storage().nbytes()


def _unpack(packed: _Packed) -> Tensor:
    return packed.tensor


_LOSS_SCALE = 1 / 8
"""Factor on the loss, as for eight micro-batches; any number takes the same time."""


def _no_mark() -> None:
    """Do nothing in place of a timer's mark."""


class LayerChain:
    """The layers of `model` with weights and data on one device.

    Gradients accumulate over runs, as over the micro-batches of a batch.
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
        drawn = draw_batch(self.model, num_samples, self._seed, dtype=self._dtype, device=self._device)
        return cast("tuple[Tensor, Tensor]", drawn)

    def run(self, inputs: Tensor, targets: Tensor, mark: Callable[[], None] = _no_mark) -> None:
        """Run forward and backward of one micro-batch.

        Args:
            inputs: Inputs of the micro-batch, as `batch` returns them.
            targets: Targets of the micro-batch, as `batch` returns them.
            mark: Called at the start, after each forward in order and after each backward in reverse.
        """
        ins, outs = self._forwards(inputs, targets, mark)
        gradient: Tensor | None = torch.full_like(outs[-1], _LOSS_SCALE)
        while outs:
            x, y = ins.pop(), outs.pop()
            if gradient is not None and y.requires_grad:
                self._backward(len(outs), y, gradient)
            gradient = x.grad
            mark()

    def run_split(self, inputs: Tensor, targets: Tensor, mark: Callable[[], None], layers: Container[int]) -> None:
        """Run forward, I and W of one micro-batch.

        Args:
            inputs: Inputs of the micro-batch, as `batch` returns them.
            targets: Targets of the micro-batch, as `batch` returns them.
            mark: Called at the start of the backward, then after I and after W of each layer in reverse.
            layers: The layers that can be split; the others run their backward whole at the time of I.
        """
        from pipesched.profiles.measuring.split_backward import run_input_pass, run_weight_pass

        ins, outs = self._forwards(inputs, targets)
        gradient: Tensor | None = torch.full_like(outs[-1], _LOSS_SCALE)
        mark()
        for index in range(len(self.layers) - 1, -1, -1):
            x, y = ins.pop(), outs.pop()
            parameters, rest = _trained(self.layers[index]), None
            if gradient is not None and index in layers:
                rest = run_input_pass(y, gradient, x, parameters)
            elif gradient is not None and y.requires_grad:
                self._backward(index, y, gradient)
            gradient = x.grad
            mark()
            if rest is not None:
                run_weight_pass(rest, parameters)
            mark()

    def measure_bytes(self, num_samples: int) -> list[LayerMeasurement]:
        """Return the bytes of each layer, with all seconds 0; the split is None for a layer without I.

        Args:
            num_samples: Samples of the micro-batch.

        Raises:
            ProfileError: A layer fails, or does not return one tensor.
        """
        x, targets = self.batch(num_samples)
        layers_bytes = []
        for index, layer in enumerate(self.layers):
            with SavedTensors() as saved:
                y = self._forward(index, x, targets)
            last = index == len(self.layers) - 1
            if last and y.numel() != 1:
                raise self._fault(
                    index,
                    f"got a loss of shape {tuple(y.shape)}, expected one number; return the mean over the micro-batch",
                )
            whole, following = _layer_bytes(num_samples, layer, x, y, saved, last), _cut(y)
            whole = replace(whole, working_bytes=self._working_bytes(index, x, targets))
            rest = _input_half(layer, x, y)
            del y
            layers_bytes.append(
                whole if rest is None else replace(whole, split=_kept_bytes(layer, x, following, saved, rest))
            )
            x = following
        return layers_bytes

    def _forwards(
        self, inputs: Tensor, targets: Tensor, mark: Callable[[], None] = _no_mark
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Run every layer, cut from the next; return the inputs and outputs of all layers."""
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
        return ins, outs

    def _forward(self, index: int, x: Tensor, targets: Tensor) -> Tensor:
        try:
            y = self.layers[index](x)
            if isinstance(y, Tensor):
                return self.model.loss(y, targets) if index == len(self.layers) - 1 else y
        except Exception as error:  # a user's layer or loss may raise anything
            raise self._blamed(index, error) from error
        raise self._fault(index, f"got {type(y).__name__}, expected it to return one tensor; pack or split it")

    def _working_bytes(self, index: int, x: Tensor, targets: Tensor) -> int | None:
        """Return the peak memory of a layer's backward besides its inputs [bytes], or None without a GPU."""
        if self._device.type != "cuda":
            return None
        num_bytes = 0
        for _ in range(2):  # the second backward does not allocate the gradients of the parameters
            y = self._forward(index, x, targets)
            if y.requires_grad:
                gradient, x.grad = torch.ones_like(y), None
                before = torch.cuda.memory_allocated(self._device)
                torch.cuda.reset_peak_memory_stats(self._device)
                self._backward(index, y, gradient)
                num_bytes = torch.cuda.max_memory_allocated(self._device) - before
        x.grad = None
        return num_bytes

    def _backward(self, index: int, y: Tensor, gradient: Tensor) -> None:
        try:
            torch.autograd.backward(y, gradient)
        except Exception as error:  # a user's backward may raise anything
            raise self._blamed(index, error) from error

    def _blamed(self, index: int, error: Exception) -> ProfileError:
        message = " ".join(str(error).split())[:200]
        return self._fault(
            index, f"got {type(error).__name__} ({message}), expected it to run; try fewer samples, or correct it"
        )

    def _fault(self, index: int, what: str) -> ProfileError:
        return ProfileError(f"model {self.model.name}: layer {index} ({self.model.layer_names[index]}): {what}")


def _cut(y: Tensor) -> Tensor:
    """Return `y` as the next layer gets it: detached, with a gradient only if `y` requires one."""
    return y.detach().requires_grad_(y.requires_grad)


def _layer_bytes(
    num_samples: int, layer: nn.Module, x: Tensor, y: Tensor, saved: SavedTensors, last: bool
) -> LayerMeasurement:
    boundary = [x] if last else [x, y]
    resident = [*layer.parameters(), *layer.buffers()]
    return LayerMeasurement(
        microbatch_size=num_samples,
        forward_s=0.0,
        backward_s=0.0,
        input_bytes=x.nbytes,
        output_bytes=0 if last else y.nbytes,
        output_storage_bytes=0 if last else storage_bytes(y),
        saved_bytes=saved.num_bytes(without=[*boundary, *resident]),
        input_saved=saved.holds(x),
        output_saved=not last and saved.holds(y),
        output_is_input=not last and address(x) == address(y),
    )


def _input_half(layer: nn.Module, x: Tensor, y: Tensor) -> Rest | None:
    """Run I and return its state for W; None if the layer has no I, or PyTorch cannot split its backward."""
    if not x.requires_grad:
        return None
    from pipesched.profiles.measuring.split_backward import run_input_pass

    try:
        return run_input_pass(y, torch.ones_like(y), x, _trained(layer))
    except ProfileError:
        return None


def _kept_bytes(layer: nn.Module, x: Tensor, y: Tensor, saved: SavedTensors, rest: Rest) -> LayerSplit:
    """Return the bytes held after I; in the graph of the output, only the bytes that `rest` keeps alive."""
    from pipesched.profiles.measuring.split_backward import kept_gradients

    x.grad = None
    saved.forget_released()
    gradients = {address(gradient): storage_bytes(gradient) for gradient in kept_gradients(rest)}
    return LayerSplit(
        backward_input_s=0.0,
        backward_weight_s=0.0,
        gradient_bytes=sum(gradients.values()),
        saved_bytes=saved.num_bytes(without=[x, y, *layer.parameters(), *layer.buffers()]),
        input_saved=saved.holds(x),
        output_saved=saved.holds(y),
    )


def _trained(layer: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in layer.parameters() if parameter.requires_grad]
