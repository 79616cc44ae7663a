"""The memory of a device's reference model: pipelines share it, with one slot for the update of each.

    memory     of each stage: the reference, then a slot per pipeline for its update of an iteration
    cells      of each stage: the updates given, then the iterations that the reference has seen

A pipeline fills its slot and reports that. The pipeline whose slot is the last adds the mean of all slots to the
reference, whose version then increases. No pipeline reads the reference during this sum: a pipeline reports a full slot
only after it has read the reference, and does not touch the slot until its update has been added. So one reference and
one slot each are enough, and nothing is copied.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import final

from torch import Tensor

from pipesched.profiles.models import torch_dtype

ALIGNED = 64
"""Alignment of each tensor [bytes]."""
CELLS = 2
"""Numbers in the cells of a stage."""


@dataclass(frozen=True, slots=True)
class Averaged:
    """A stage whose weights are averaged elastically, and the memory that it needs.

    Attributes:
        ranks: The ranks that hold the stage, one of each pipeline.
        tensors: (name of the torch dtype, elements) of each parameter.
    """

    stage: int
    ranks: tuple[int, ...]
    tensors: tuple[tuple[str, int], ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of the reference of this stage, and of each slot."""
        return sum(_room(name, count) for name, count in self.tensors)


@dataclass(frozen=True, slots=True)
class Shared:
    """The flat tensors of a stage's reference, and of each rank's slot; only the adder writes to `reference`."""

    reference: tuple[Tensor, ...]
    slots: Mapping[int, tuple[Tensor, ...]]


def memory_bytes(stages: Iterable[Averaged]) -> int:
    """Return the bytes of the memory for `stages`."""
    return sum((1 + len(stage.ranks)) * stage.num_bytes for stage in stages)


def stage_tensors(memory: Tensor, stages: Iterable[Averaged]) -> dict[int, Shared]:
    """Return the tensors of each stage in `memory`, uint8, of `memory_bytes` bytes."""
    tensors, begin = {}, 0
    for stage in stages:
        parts = []
        for _ in range(1 + len(stage.ranks)):
            parts.append(_views(memory[begin : begin + stage.num_bytes], stage.tensors))
            begin += stage.num_bytes
        tensors[stage.stage] = Shared(parts[0], dict(zip(stage.ranks, parts[1:], strict=True)))
    return tensors


def averaged(stage: int, ranks: Sequence[int], parameters: Iterable[Tensor]) -> Averaged:
    """Return the memory needs of a stage with these `parameters`."""
    tensors = tuple((str(p.dtype).removeprefix("torch."), p.numel()) for p in parameters)
    return Averaged(stage, tuple(ranks), tensors)


@final
class Reference:
    """The reference model of some stages, and the updates given to it.

    Args:
        memory: Memory for `stages`, uint8.
        stages: The stages that are averaged.
        cells: `CELLS` numbers for each of `stages`, 0 at first.

    Attributes:
        shared: The tensors of each stage.
    """

    def __init__(
        self, memory: Tensor, stages: Sequence[Averaged], cells: MutableSequence[int] | memoryview[int]
    ) -> None:
        self.shared = stage_tensors(memory, stages)
        self._cells = cells
        self._first_cell = {stage.stage: CELLS * number for number, stage in enumerate(stages)}

    def version(self, stage: int) -> int:
        """Return the number of iterations that the reference of a stage has seen."""
        return self._cells[self._first_cell[stage] + 1]

    def give(self, stage: int) -> bool:
        """Count an update that is in its slot; after the last one, add all updates to the reference and return True."""
        shared, first = self.shared[stage], self._first_cell[stage]
        self._cells[first] += 1
        if self._cells[first] % len(shared.slots):
            return False
        for slot in shared.slots.values():
            for reference, update in zip(shared.reference, slot, strict=True):
                reference.add_(update, alpha=1 / len(shared.slots))
        self._cells[first + 1] += 1
        return True


def _room(name: str, count: int) -> int:
    """Return the bytes of a tensor, up to the start of the next one."""
    return math.ceil(count * torch_dtype(name).itemsize / ALIGNED) * ALIGNED


def _views(memory: Tensor, tensors: Iterable[tuple[str, int]]) -> tuple[Tensor, ...]:
    views, begin = [], 0
    for name, count in tensors:
        views.append(memory[begin : begin + count * torch_dtype(name).itemsize].view(torch_dtype(name)))
        begin += _room(name, count)
    return tuple(views)
