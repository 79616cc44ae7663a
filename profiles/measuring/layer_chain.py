"""The layers of a model in a row, cut from each other at every boundary, with the bytes of each.

    forward   x0 -> layer 0 -> y0 | x1 = y0.detach() -> layer 1 -> y1 | x2 ... -> layer L-1 -> loss
    backward  layer L-1 from the loss, then layer L-2 from x(L-1).grad, ...
    split     I of layer L-1 from the loss, W of layer L-1, I of layer L-2 from x(L-1).grad, W of layer L-2, ...

Each layer can be timed by itself, with the caches as cold as in a real run. W follows I at once, so that memory is
freed and reused as in the backward of a stage. If all I came first, the gradients of the whole model would be held, and
their page faults would count as I (18 % more for GPT blocks on a CPU).

Equal layers take the same time, so a chain has only a few of each kind (`short_chain`).
"""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from pipesched.profiles import ProfileError
from pipesched.profiles.costs import BoundaryStorage, LayerMeasurement, LayerSplit
from pipesched.profiles.measuring.equal_layers import ValueLayout, is_alike, short_chain, value_layout
from pipesched.profiles.models import (
    Model,
    Value,
    build_layers,
    draw_batch,
    gets_gradient,
    is_value,
    mapped,
    tensors_of,
)
from pipesched.schedules.common import error_text, users_place

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
        self._hooks = saved_tensors_hooks(self._pack, attrgetter("tensor"))

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

    def holds(self, *tensors: Tensor) -> bool:
        """Return whether the storages of all `tensors` were saved; False without tensors."""
        return bool(tensors) and all(address(tensor) in self._tensors for tensor in tensors)

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


_LOSS_SCALE = 1 / 8
"""Factor on the loss, as for eight micro-batches; any number takes the same time."""


def _no_mark() -> None:
    """Do nothing in place of a timer's mark."""


_ACCELERATOR_COPIES = 4
"""Least layers of a kind in a chain on another device than the CPU, where fewer were not measured."""
_CHAIN_BYTES, _CHAIN_S = 16 * 2**20, 0.004
"""Weights [bytes] and forward [s] of the equal layers in a chain, one of which ends its growth.

The weights fill the caches with their gradients. The forward takes longer than to read the caches anew.
"""


class LayerChain:
    """The layers of `model` with weights and data on one device: all of them, or some of each kind.

    Gradients accumulate over runs, as over the micro-batches of a batch.

    Args:
        model: The model.
        num_samples: Samples of a micro-batch, which shows the tensors at each boundary.
        seed: Seed of weights and data.
        dtype: Data type of weights and data.
        device: Device of weights and data.

    Attributes:
        layers: The layers of the chain.
        numbers: Number in the model of each layer of the chain.
        kinds: Kind of each layer of the model; equal layers have the same kind.
    """

    def __init__(self, model: Model, num_samples: int, *, seed: int, dtype: torch.dtype, device: torch.device) -> None:
        self.model = model
        self.device = device
        self._seed = seed
        self._dtype = dtype
        self.kinds, built, forwards_s = self._find_kinds(num_samples)
        weights = {self.kinds[number]: sum(p.nbytes for p in layer.parameters()) for number, layer in built.items()}
        least_copies = 1 if device.type == "cpu" else _ACCELERATOR_COPIES
        self.numbers = _numbers(self.kinds, weights, forwards_s, least_copies)
        for first, last in _ranges([number for number in self.numbers if number not in built]):
            built |= zip(range(first, last), self._built(first, last), strict=True)
        self.layers: list[nn.Module] = [built[number] for number in self.numbers]

    def places(self, number: int) -> list[int]:
        """Return the places in the chain of the layers that are equal to layer `number` of the model."""
        kind = self.kinds[number]
        return [place for place, there in enumerate(self.numbers) if self.kinds[there] == kind]

    def batch(self, num_samples: int) -> tuple[Value, Value]:
        """Return (inputs, targets) of one micro-batch."""
        return draw_batch(self.model, num_samples, self._seed, dtype=self._dtype, device=self.device)

    def run(self, inputs: Value, targets: Value, mark: Callable[[], None] = _no_mark) -> None:
        """Run forward and backward of one micro-batch.

        Args:
            inputs: Inputs of the micro-batch, as `batch` returns them.
            targets: Targets of the micro-batch, as `batch` returns them.
            mark: Called at the start, after each forward in order and after each backward in reverse.
        """
        ins, outs = self._forwards(inputs, targets, mark)
        gradients = _loss_gradients(outs[-1])
        while outs:
            x, y = ins.pop(), outs.pop()
            self._backward(len(outs), *_learned(y, gradients))
            gradients = [tensor.grad for tensor in tensors_of(x)]
            mark()

    def run_split(self, inputs: Value, targets: Value, mark: Callable[[], None], layers: Container[int]) -> None:
        """Run forward, I and W of one micro-batch.

        Args:
            inputs: Inputs of the micro-batch, as `batch` returns them.
            targets: Targets of the micro-batch, as `batch` returns them.
            mark: Called at the start of the backward, then after I and after W of each layer in reverse.
            layers: The layers that can be split; the others run their backward whole at the time of I.
        """
        from pipesched.profiles.measuring.split_backward import run_input_pass, run_weight_pass

        ins, outs = self._forwards(inputs, targets)
        gradients = _loss_gradients(outs[-1])
        mark()
        for index in range(len(self.layers) - 1, -1, -1):
            x, (ys, arrived) = ins.pop(), _learned(outs.pop(), gradients)
            parameters, rest = _trained(self.layers[index]), None
            if ys and index in layers:
                rest = run_input_pass(ys, arrived, _requiring(x), parameters)
            else:
                self._backward(index, ys, arrived)
            del ys
            gradients = [tensor.grad for tensor in tensors_of(x)]
            mark()
            if rest is not None:
                run_weight_pass(rest, parameters)
            mark()

    def measure_bytes(self, num_samples: int) -> list[LayerMeasurement]:
        """Return the bytes of each layer, with all seconds 0; the split is None for a layer without I.

        Args:
            num_samples: Samples of the micro-batch.

        Raises:
            ProfileError: A layer fails, or returns neither a tensor nor a tuple of tensors.
        """
        x, targets = self.batch(num_samples)
        measured: dict[int, tuple[LayerMeasurement, Value]] = {}
        for index, layer in enumerate(self.layers):
            kind = self.kinds[self.numbers[index]]
            if kind in measured:
                x = measured[kind][1]
                continue
            self._forward(index, x, targets)  # a traced layer is traced at a new size, outside of the hooks
            with SavedTensors() as saved:
                y = self._forward(index, x, targets)
            following = _cut(y)
            around = _Around(layer, x, () if index == len(self.layers) - 1 else following)
            whole = _layer_bytes(num_samples, around, saved)
            whole = replace(whole, working_bytes=self._working_bytes(index, x, targets))
            rest = _input_half(layer, x, y)
            del y
            if rest is not None:
                whole = replace(whole, split=_kept_bytes(around, saved, rest))
            measured[kind], x = (whole, following), following
        return [measured[self.kinds[number]][0] for number in self.numbers]

    def _built(self, first: int, last: int) -> nn.Sequential:
        return build_layers(self.model, first, last, seed=self._seed, dtype=self._dtype, device=self.device)

    def _find_kinds(self, num_samples: int) -> tuple[list[int], dict[int, nn.Module], list[float]]:
        """Return the kind of each layer, the layers that were built to find it, by number, and a forward by kind [s].

        The last layer, which includes the loss, has a kind of its own.
        """
        x, targets = self.batch(num_samples)
        keys, last = self.model.kinds or self.model.layers, len(self.model.layers) - 1
        kinds, built, known = list[int](), dict[int, nn.Module](), list[tuple[int, ValueLayout, Value]]()
        forwards_s = list[float]()
        for number, key in enumerate(keys[:last]):
            entering = value_layout(x)
            for kind, (first, entered, y) in enumerate(known):  # noqa: B007 -- both are used below
                if entered == entering and is_alike(keys[first], key):
                    break
            else:
                kind, (built[number],) = len(known), self._built(number, number + 1)
                y = _cut(self._called(number, built[number], x, targets))
                known.append((number, entering, y))
                begun_s = time.thread_time()
                self._called(number, built[number], x, targets)
                forwards_s.append(time.thread_time() - begun_s if self.device.type == "cpu" else 0.0)
            kinds.append(kind)
            x = y
        return [*kinds, len(known)], built, forwards_s

    def _forwards(
        self, inputs: Value, targets: Value, mark: Callable[[], None] = _no_mark
    ) -> tuple[list[Value], list[Value]]:
        """Run every layer, cut from the next; return the inputs and outputs of all layers."""
        ins: list[Value] = []
        outs: list[Value] = []
        x = inputs
        mark()
        for index in range(len(self.layers)):
            y = self._forward(index, x, targets)
            ins.append(x)
            outs.append(y)
            x = _cut(y)
            mark()
        return ins, outs

    def _forward(self, index: int, x: Value, targets: Value) -> Value:
        return self._called(self.numbers[index], self.layers[index], x, targets)

    def _called(self, number: int, layer: nn.Module, x: Value, targets: Value) -> Value:
        """Return the output of layer `number` of the model, or the loss after the last layer."""
        is_last = number == len(self.model.layers) - 1
        try:
            y = layer(x)
            if is_value(y):
                y = self.model.loss(y, targets) if is_last else y
        except Exception as error:  # a user's layer or loss may raise anything
            raise self._blamed(number, error) from error
        if not is_value(y):
            raise self._fault(
                number,
                f"got {type(y).__name__}, expected a tensor or a tuple of tensors as the output; pack or split the "
                "output",
            )
        if is_last and not (isinstance(y, Tensor) and y.numel() == 1):
            shape = f"shape {tuple(y.shape)}" if isinstance(y, Tensor) else f"{len(y)} tensors"
            raise self._fault(
                number, f"got a loss of {shape}, expected one number; return the mean over the micro-batch"
            )
        return y

    def _working_bytes(self, index: int, x: Value, targets: Value) -> int | None:
        """Return the peak memory of a layer's backward besides its inputs [bytes], or None without a GPU."""
        if self.device.type != "cuda":
            return None
        num_bytes = 0
        for _ in range(2):  # the second backward does not allocate the gradients of the parameters
            ys = _requiring(self._forward(index, x, targets))
            gradients = [torch.ones_like(y) for y in ys]
            _drop_gradients(x)
            before = torch.cuda.memory_allocated(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            self._backward(index, ys, gradients)
            num_bytes = torch.cuda.max_memory_allocated(self.device) - before
        _drop_gradients(x)
        return num_bytes

    def _backward(self, index: int, ys: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        if not ys:
            return
        try:
            torch.autograd.backward(ys, gradients)
        except Exception as error:  # a user's backward may raise anything
            raise self._blamed(self.numbers[index], error) from error

    def _blamed(self, number: int, error: Exception) -> ProfileError:
        message = error_text(error)
        got = f"got {type(error).__name__} ({message}){users_place(error)}"
        return self._fault(number, f"{got}, expected a result; try fewer samples, or correct the layer")

    def _fault(self, number: int, what: str) -> ProfileError:
        return ProfileError(f"model {self.model.name}: layer {number} ({self.model.layer_names[number]}): {what}")


def _numbers(
    kinds: Sequence[int], weights: Mapping[int, int], forwards_s: Sequence[float], least_copies: int
) -> list[int]:
    """Return the numbers of the model's layers that form the shortest chain with enough work to measure.

    Args:
        kinds: Kind of each layer of the model.
        weights: Weights of a layer of each kind [bytes].
        forwards_s: Time of the forward of a layer of each kind but the last [s]; 0 on an accelerator.
        least_copies: Smallest number of layers of each kind.
    """
    counts = Counter(kinds)
    for copies in range(least_copies, len(kinds) + 1):
        numbers = short_chain(kinds, copies)
        equal = [kind for kind in (kinds[number] for number in numbers) if counts[kind] > 1]
        if sum(weights[kind] for kind in equal) >= _CHAIN_BYTES or sum(forwards_s[kind] for kind in equal) >= _CHAIN_S:
            return numbers
    return [*range(len(kinds))]


def _ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the half-open ranges of successive numbers."""
    ranges = list[tuple[int, int]]()
    for number in numbers:
        if ranges and ranges[-1][1] == number:
            ranges[-1] = ranges[-1][0], number + 1
        else:
            ranges.append((number, number + 1))
    return ranges


def _cut(y: Value) -> Value:
    """Return `y` as the next layer gets it: detached, with gradients only of the tensors that require one."""
    return mapped(lambda tensor: tensor.detach().requires_grad_(tensor.requires_grad), y)


def _requiring(value: Value) -> list[Tensor]:
    """Return the tensors that require a gradient."""
    return [tensor for tensor in tensors_of(value) if tensor.requires_grad]


def _loss_gradients(loss: Value) -> list[Tensor | None]:
    return [torch.full_like(tensor, _LOSS_SCALE) for tensor in tensors_of(loss)]


def _learned(y: Value, gradients: Sequence[Tensor | None]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the tensors of `y` that a backward starts from, and their gradients."""
    pairs = [
        (tensor, gradient)
        for tensor, gradient in zip(tensors_of(y), gradients, strict=True)
        if gradient is not None and tensor.requires_grad
    ]
    return [tensor for tensor, _ in pairs], [gradient for _, gradient in pairs]


def _drop_gradients(value: Value) -> None:
    for tensor in tensors_of(value):
        tensor.grad = None


class _Around(NamedTuple):
    """A layer with its input and its output; the output of the last layer, the loss, is left out."""

    layer: nn.Module
    x: Value
    y: Value

    @property
    def resident(self) -> list[Tensor]:
        """The layer's parameters and buffers."""
        return [*self.layer.parameters(), *self.layer.buffers()]

    def other_bytes(self, saved: SavedTensors) -> int:
        """Return the bytes of the saved storages inside the layer."""
        return saved.num_bytes(without=[*tensors_of(self.x), *tensors_of(self.y), *self.resident])

    def boundary(self, saved: SavedTensors) -> tuple[BoundaryStorage, ...]:
        """Return the storages of input and output, or none if both are single tensors.

        A parameter or a buffer in the output counts as saved without bytes: the layer holds it anyway.
        """
        if isinstance(self.x, Tensor) and (isinstance(self.y, Tensor) or not self.y):
            return ()
        sides = [{address(tensor): tensor for tensor in tensors_of(side)} for side in (self.x, self.y)]
        places = [{key: place for place, key in enumerate(side)} for side in sides]
        resident = {*map(address, self.resident)}
        return tuple(
            BoundaryStorage(
                num_bytes=0 if key in resident else storage_bytes(tensor),
                input_place=places[0].get(key),
                output_place=places[1].get(key),
                is_saved=key in resident or saved.holds(tensor),
            )
            for key, tensor in (sides[0] | sides[1]).items()
        )


def _layer_bytes(num_samples: int, around: _Around, saved: SavedTensors) -> LayerMeasurement:
    ins, outs = tensors_of(around.x), tensors_of(around.y)
    output_bytes = sum(tensor.nbytes for tensor in outs)
    gradient_bytes = sum(tensor.nbytes for tensor in outs if gets_gradient(around.y, tensor))
    return LayerMeasurement(
        microbatch_size=num_samples,
        forward_s=0.0,
        backward_s=0.0,
        input_bytes=sum(tensor.nbytes for tensor in ins),
        output_bytes=output_bytes,
        output_storage_bytes=sum({address(tensor): storage_bytes(tensor) for tensor in outs}.values()),
        saved_bytes=around.other_bytes(saved),
        input_saved=saved.holds(*ins),
        output_saved=saved.holds(*outs),
        output_is_input=bool(outs) and {*map(address, ins)} >= {*map(address, outs)},
        boundary=around.boundary(saved),
        output_gradient_bytes=None if gradient_bytes == output_bytes else gradient_bytes,
    )


def _input_half(layer: nn.Module, x: Value, y: Value) -> Rest | None:
    """Run I and return its state for W; None if the layer has no I, or PyTorch cannot split its backward."""
    xs, ys = _requiring(x), _requiring(y)
    if not xs:
        return None
    from pipesched.profiles.measuring.split_backward import run_input_pass

    try:
        return run_input_pass(ys, [torch.ones_like(tensor) for tensor in ys], xs, _trained(layer))
    except ProfileError:
        return None


def _kept_bytes(around: _Around, saved: SavedTensors, rest: Rest) -> LayerSplit:
    """Return the bytes held after I; the graph of the output holds only the tensors that `rest` keeps alive."""
    from pipesched.profiles.measuring.split_backward import kept_gradients

    _drop_gradients(around.x)
    saved.forget_released()
    gradients = {address(gradient): storage_bytes(gradient) for gradient in kept_gradients(rest)}
    return LayerSplit(
        backward_input_s=0.0,
        backward_weight_s=0.0,
        gradient_bytes=sum(gradients.values()),
        saved_bytes=around.other_bytes(saved),
        input_saved=saved.holds(*tensors_of(around.x)),
        output_saved=saved.holds(*tensors_of(around.y)),
        boundary=around.boundary(saved),
    )


def _trained(layer: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in layer.parameters() if parameter.requires_grad]
