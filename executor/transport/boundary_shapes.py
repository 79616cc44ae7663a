"""The shape of every value that crosses a boundary between stages, found by one forward on a sample."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TypeAlias

import torch
from torch import Tensor, nn

from pipesched.executor import ExecutionError
from pipesched.executor.core import ModuleStage, Stage
from pipesched.executor.transport.exchange import share
from pipesched.profiles import DTYPES
from pipesched.profiles.costs import StageCosts
from pipesched.profiles.models import Value, gets_gradient, is_value, tensors_of, torch_dtype
from pipesched.schedules import Schedule
from pipesched.schedules.common import error_text, users_place
from pipesched.schedules.ops import Message, Payload

_INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_DTYPES = (*map(torch_dtype, DTYPES), *_INTEGERS)
_ALIGNED = 16
"""Alignment of each tensor in a message of several [bytes]; also the fewest bytes of such a message."""


@dataclass(frozen=True, slots=True)
class TensorShape:
    """The shape, type and memory layout of a tensor that crosses a boundary.

    Attributes:
        strides: Memory layout without gaps, at both ends (default: row by row).
        requires_grad: Whether a gradient travels back.
    """

    size: tuple[int, ...]
    dtype: torch.dtype
    strides: tuple[int, ...] | None = None
    requires_grad: bool = True

    @property
    def num_elements(self) -> int:
        """The number of elements of the tensor."""
        return math.prod(self.size)

    @property
    def num_bytes(self) -> int:
        """The bytes of the tensor."""
        return self.num_elements * self.dtype.itemsize

    @property
    def gradient(self) -> BoundaryShape:
        """The shape of the gradient."""
        return self if self.requires_grad else TupleShape((None,))

    def fits(self, value: Value) -> bool:
        """Return whether `value` is a tensor of this shape and type."""
        return isinstance(value, Tensor) and (tuple(value.shape), value.dtype) == (self.size, self.dtype)

    def flat(self, value: Value) -> Tensor:
        """Return the elements of a tensor in the order of `strides`, in one dimension; copy if the layout differs."""
        assert isinstance(value, Tensor), "it fits"
        if self.strides is None:
            return value.contiguous().view(-1)
        if value.stride() != self.strides:
            value = value.new_empty_strided(self.size, self.strides).copy_(value)
        return value.as_strided((self.num_elements,), (1,))

    def of(self, flat: Tensor) -> Tensor:
        """Return the tensor that `flat` holds, in the same memory."""
        return flat.view(self.size) if self.strides is None else flat.as_strided(self.size, self.strides)

    def __str__(self) -> str:
        return f"{self.dtype}, {self.size}"


@dataclass(frozen=True, slots=True)
class _EmulatedShape(TensorShape):
    """The shape of an emulated activation of some bytes.

    Attributes:
        gradient_bytes: Bytes of the gradient.
    """

    gradient_bytes: int = 0

    @property
    def gradient(self) -> BoundaryShape:
        return TensorShape((self.gradient_bytes,), torch.uint8)


@dataclass(frozen=True)
class TupleShape:
    """The shape of a tuple of tensors, which crosses a boundary as one message of bytes.

    The tensors stand one after the other in the message, each at a multiple of `_ALIGNED` bytes.

    Attributes:
        parts: The shape of each tensor, or None for an absent one.
    """

    parts: tuple[TensorShape | None, ...]

    dtype = torch.uint8

    @cached_property
    def num_elements(self) -> int:
        """The number of elements of the message, which are bytes."""
        return max(self._begins[-1], _ALIGNED)

    @cached_property
    def gradient(self) -> TupleShape:
        """The shape of the gradient: only of tensors that require one."""
        return TupleShape(tuple(part if part is not None and part.requires_grad else None for part in self.parts))

    @cached_property
    def _begins(self) -> list[int]:
        """The first byte of each part, and the end of the last one."""
        begins = [0]
        for part in self.parts:
            begins.append(begins[-1] + (0 if part is None else math.ceil(part.num_bytes / _ALIGNED) * _ALIGNED))
        return begins

    def fits(self, value: Value) -> bool:
        """Return whether `value` is a tuple of such tensors."""
        if not isinstance(value, tuple) or len(value) != len(self.parts):
            return False
        return all(
            tensor is None if part is None else tensor is not None and part.fits(tensor)
            for part, tensor in zip(self.parts, value, strict=True)
        )

    def flat(self, value: Value) -> Tensor:
        """Return the message of a tuple with at least one tensor."""
        tensors = tensors_of(value)
        message = torch.empty(self.num_elements, dtype=self.dtype, device=tensors[0].device)
        for target, tensor in zip(tensors_of(self.of(message)), tensors, strict=True):
            target.detach().copy_(tensor.detach())
        return message

    def of(self, flat: Tensor) -> tuple[Tensor | None, ...]:
        """Return the tensors of a message, in the same memory; `requires_grad` of each is the same as at the sender."""
        return tuple(
            None if part is None else _part(part, flat[begin : begin + part.num_bytes])
            for part, begin in zip(self.parts, self._begins[:-1], strict=True)
        )

    def __str__(self) -> str:
        return "; ".join("None" if part is None else str(part) for part in self.parts)


BoundaryShape: TypeAlias = TensorShape | TupleShape
"""The shape of a value that crosses a boundary."""


def _part(part: TensorShape, content: Tensor) -> Tensor:
    tensor = part.of(content.view(part.dtype)).data  # so that a change in place of one tensor is none of the others
    return tensor.requires_grad_(part.requires_grad)


def described(value: object) -> str:
    """Return the types and shapes of a value, for an error message."""
    if isinstance(value, Tensor):
        return f"a tensor of {value.dtype}, {tuple(value.shape)}"
    if not isinstance(value, tuple):
        return type(value).__name__
    parts = (f"{part.dtype}, {tuple(part.shape)}" if isinstance(part, Tensor) else str(part) for part in value)
    return f"a tuple of {'; '.join(parts)}"


def emulated_shapes(costs: StageCosts, most_bytes: int = sys.maxsize) -> dict[int, BoundaryShape]:
    """Return the shapes of emulated messages: the bytes in `costs`, but not more than `most_bytes`."""

    def num_bytes(payload: Payload, stage: int) -> int:
        return min(most_bytes, costs.message_bytes(Message(payload, stage, 0)))

    return {
        index: _EmulatedShape(
            (num_bytes(Payload.ACTIVATION, index),),
            torch.uint8,
            gradient_bytes=num_bytes(Payload.GRADIENT, index + 1),
        )
        for index in range(costs.num_stages - 1)
    }


def find_shapes(
    schedule: Schedule, rank: int, stages: Mapping[int, Stage], sample: Value | None
) -> dict[int, BoundaryShape]:
    """Return the output shape of every stage except the last; all ranks call this together.

    The stages run in order, each on the lowest rank that holds the stage. This rank runs the stage on a sample and
    sends the shape to the other ranks. The run does not change the stage.

    Args:
        stages: The stages that the rank holds.
        sample: Inputs of one micro-batch; a rank without stage 0 needs none.

    Raises:
        ExecutionError: A stage gives anything but a tensor or a tuple of tensors.
    """
    shapes: dict[int, BoundaryShape] = {}
    for index in range(schedule.num_stages - 1):
        owner = next(r for r in range(schedule.num_ranks) if index in schedule.stages_on(r))
        text = ""
        if owner == rank:
            stage = stages[index]
            assert isinstance(stage, ModuleStage)
            x = sample if index == 0 else _zeros(shapes[index - 1], _device_of(stage.module))
            assert x is not None, "who holds stage 0 has a sample"
            text = _to_json(_shape_of(index, _try(index, stage, x)))
        shapes[index] = _from_json(share(text, owner, f"the shape of the output of stage {index}"))
    return shapes


def _device_of(module: nn.Module) -> torch.device:
    """Return the device of a stage; the CPU if the stage holds no tensor, as it then has no device of its own."""
    return next((tensor.device for tensor in chain(module.parameters(), module.buffers())), torch.device("cpu"))


def _zeros(shape: BoundaryShape, device: torch.device) -> Value:
    return shape.of(torch.zeros(shape.num_elements, dtype=shape.dtype, device=device))


def _try(index: int, stage: ModuleStage, x: Value) -> object:
    try:
        return stage.try_forward(x)
    except Exception as error:  # a user's layer may raise anything
        message = error_text(error)
        got = tuple(x.shape) if isinstance(x, Tensor) else described(x)
        raise ExecutionError(
            f"stage {index}: got {type(error).__name__} ({message}){users_place(error)} for an input of {got}, "
            "expected an output; correct the model"
        ) from error


def _shape_of(index: int, y: object) -> BoundaryShape:
    """Return the shape of an output.

    Raises:
        ExecutionError: No message can carry it.
    """
    parts = y if isinstance(y, tuple) else (y,)
    for part in parts:
        is_absent = part is None and isinstance(y, tuple)
        if not (is_absent or (isinstance(part, Tensor) and part.dtype in _DTYPES)):
            raise ExecutionError(
                f"stage {index} returns {described(y)}, expected a tensor or a tuple of tensors, of floating-point, "
                "integer or bool type; cut the model elsewhere"
            )
    assert is_value(y), "as just checked"
    if isinstance(y, Tensor):
        return _tensor_shape(y, gets_gradient(y, y))
    return TupleShape(tuple(None if part is None else _tensor_shape(part, gets_gradient(y, part)) for part in y))


def _tensor_shape(tensor: Tensor, requires_grad: bool) -> TensorShape:
    like = torch.empty_like(tensor)  # without gaps, and else as it lies
    strides = None if like.is_contiguous() else like.stride()
    return TensorShape(tuple(tensor.shape), tensor.dtype, strides, requires_grad)


def _to_json(shape: BoundaryShape) -> str:
    parts = shape.parts if isinstance(shape, TupleShape) else (shape,)
    fields = [
        part and (part.size, str(part.dtype)[len("torch.") :], part.strides, part.requires_grad) for part in parts
    ]
    return json.dumps({"is_tuple": isinstance(shape, TupleShape), "parts": fields})


def _from_json(text: str) -> BoundaryShape:
    fields = json.loads(text)
    parts = [part and _from_fields(*part) for part in fields["parts"]]
    return TupleShape(tuple(parts)) if fields["is_tuple"] else parts[0]


def _from_fields(size: list[int], dtype: str, strides: list[int] | None, requires_grad: bool) -> TensorShape:
    return TensorShape(tuple(size), torch_dtype(dtype), None if strides is None else tuple(strides), requires_grad)
