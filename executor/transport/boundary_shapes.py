"""The shape of every tensor that crosses a boundary between stages, found by one forward on a sample."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipesched.executor import ExecutionError, waiting_for
from pipesched.executor.core import ModuleStage, Stage
from pipesched.profiles import DTYPES
from pipesched.profiles.costs import StageCosts
from pipesched.profiles.models import kept_state, torch_dtype
from pipesched.schedules import Schedule
from pipesched.schedules.ops import Message, Payload

_DTYPES = tuple(map(torch_dtype, DTYPES))
_MAX_DIMENSIONS = 8


def emulated_shapes(costs: StageCosts, most_bytes: int = sys.maxsize) -> dict[int, TensorShape]:
    """Return the shapes of emulated messages: the bytes in `costs`, but not more than `most_bytes`."""
    return {
        index: TensorShape((min(most_bytes, costs.message_bytes(Message(Payload.ACTIVATION, index, 0))),), torch.uint8)
        for index in range(costs.num_stages)
    }


def find_shapes(
    schedule: Schedule, rank: int, stages: Mapping[int, Stage], sample: Tensor | None
) -> dict[int, TensorShape]:
    """Return the shape of every stage's output but the last's; all ranks call this together.

    Stage by stage, the lowest rank that holds it runs it on a sample of the right shape, without gradients, and tells
    the others. The stage is as before afterwards.

    Args:
        stages: The stages that the rank holds.
        sample: Inputs of one micro-batch; a rank without stage 0 needs none.

    Raises:
        ExecutionError: A stage gives anything but one floating-point tensor.
    """
    shapes: dict[int, TensorShape] = {}
    for index in range(schedule.num_stages - 1):
        owner = next(r for r in range(schedule.num_ranks) if index in schedule.stages_on(r))
        header = torch.zeros(2 + 2 * _MAX_DIMENSIONS, dtype=torch.int64)
        if owner == rank:
            stage = stages[index]
            assert isinstance(stage, ModuleStage)
            x = sample if index == 0 else _zeros(shapes[index - 1], _device_of(stage.module))
            assert x is not None, "who holds stage 0 has a sample"
            header = _header(index, _try(index, stage, x))
        with waiting_for(f"rank {owner} to say what stage {index} gives", owner):
            dist.broadcast(header, owner)
        shapes[index] = _shape(header)
    return shapes


def _device_of(module: nn.Module) -> torch.device:
    """Return the device of a stage; the CPU if it holds no tensor: its output is the same everywhere."""
    return next((tensor.device for tensor in chain(module.parameters(), module.buffers())), torch.device("cpu"))


def _zeros(shape: TensorShape, device: torch.device) -> Tensor:
    return shape.of(torch.zeros(shape.num_elements, dtype=shape.dtype, device=device))


def _try(index: int, stage: ModuleStage, x: Tensor) -> object:
    try:
        with torch.no_grad(), kept_state(stage.module):
            y: object = stage.module(x)
    except Exception as error:  # a user's layer may raise anything
        message = " ".join(str(error).split())[:200]
        raise ExecutionError(
            f"stage {index}: got {type(error).__name__} ({message}) for an input of {tuple(x.shape)}, "
            "expected it to run; mend the model"
        ) from error
    return y


def _header(index: int, y: object) -> Tensor:
    if not isinstance(y, Tensor) or y.dtype not in _DTYPES or y.dim() > _MAX_DIMENSIONS:
        got = f"a tensor of {y.dtype}, {y.dim()} dimensions" if isinstance(y, Tensor) else type(y).__name__
        raise ExecutionError(f"stage {index} gives {got}, expected one floating-point tensor; cut the model elsewhere")
    like = torch.empty_like(y)  # without gaps, and else as it lies
    strides = [0] * y.dim() if like.is_contiguous() else like.stride()
    rest = [0] * (_MAX_DIMENSIONS - y.dim())
    return torch.tensor([_DTYPES.index(y.dtype), y.dim(), *y.shape, *rest, *strides, *rest], dtype=torch.int64)


def _shape(header: Tensor) -> TensorShape:
    dtype, dimensions, *rest = header.tolist()
    strides = tuple(rest[_MAX_DIMENSIONS:][:dimensions])
    return TensorShape(tuple(rest[:dimensions]), _DTYPES[dtype], strides if any(strides) else None)


@dataclass(frozen=True, slots=True)
class TensorShape:
    """The shape, type and memory layout of a tensor that crosses a boundary.

    Attributes:
        strides: Memory layout without gaps, at both ends (default: row by row).
    """

    size: tuple[int, ...]
    dtype: torch.dtype
    strides: tuple[int, ...] | None = None

    @property
    def num_elements(self) -> int:
        """The number of elements of the tensor."""
        return math.prod(self.size)

    def flat(self, tensor: Tensor) -> Tensor:
        """Return the elements of `tensor` in the order of `strides`, in one dimension; copy if the layout differs."""
        if self.strides is None:
            return tensor.contiguous().view(-1)
        if tensor.stride() != self.strides:
            tensor = tensor.new_empty_strided(self.size, self.strides).copy_(tensor)
        return tensor.as_strided((self.num_elements,), (1,))

    def of(self, flat: Tensor) -> Tensor:
        """Return the tensor that `flat` holds, in the same memory."""
        return flat.view(self.size) if self.strides is None else flat.as_strided(self.size, self.strides)
