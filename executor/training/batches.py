"""Batches: the samples of a training run, drawn step by step while it runs, the same under every schedule."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import overload

import torch

from pipesched.executor import ExecutionError
from pipesched.executor.core import require_samples
from pipesched.profiles.models import Model, Value, draw_batch, mapped, microbatch, on_device, pinned_for

_KEPT = 4
"""Steps whose samples are kept; a stage reads its micro-batches nearly in order, and others can be drawn again."""


class Feed(Sequence[Value]):
    """Inputs, or targets, by micro-batch.

    A device holds only the micro-batches that are in use.

    Args:
        draw: Returns the samples of a step, in the memory from which copies to `device` start.
        microbatches_per_step: Micro-batches of a step.
        num_microbatches: Number of micro-batches.
        device: Device of the micro-batches.
        first: The run's micro-batch that is number 0 here.
    """

    def __init__(
        self,
        draw: Callable[[int], Value],
        microbatches_per_step: int,
        num_microbatches: int,
        device: torch.device,
        first: int = 0,
    ) -> None:
        self._draw = lru_cache(_KEPT)(draw)
        self._per_step = microbatches_per_step
        self._length = num_microbatches
        self._device = device
        self._first = first

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Value: ...
    @overload
    def __getitem__(self, index: slice) -> list[Value]: ...
    def __getitem__(self, index: int | slice) -> Value | list[Value]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(self._length))]
        if not 0 <= index < self._length:
            raise IndexError(f"micro-batch: got {index}, expected 0 to {self._length - 1}")
        step, position = divmod(self._first + index, self._per_step)
        part = microbatch(self._draw(step), position, self._per_step)
        return mapped(lambda tensor: on_device(tensor, self._device), part)


def make_feeds(
    model: Model,
    batch_size: int,
    microbatches_per_step: int,
    num_microbatches: int,
    *,
    seed: int,
    dtype: torch.dtype,
    device: torch.device,
    first: int = 0,
) -> tuple[Feed, Feed]:
    """Return inputs and targets; the samples of step t depend on the model, `batch_size`, `seed` and t alone.

    Floating-point data gets `dtype`. Micro-batches before the `first` of the run are left out. Nothing is drawn, and
    nothing is copied to `device`, before it is read.

    Raises:
        ExecutionError: The samples of a step cannot be cut into equal micro-batches.
    """
    if batch_size % microbatches_per_step:
        below = batch_size - batch_size % microbatches_per_step
        raise ExecutionError(
            f"batch size: got {batch_size} samples for {microbatches_per_step} micro-batches, expected a multiple of "
            f"{microbatches_per_step}; try {below or microbatches_per_step}"
        )

    @lru_cache(1)  # readers of both read them for one step
    def draw(step: int) -> tuple[Value, Value]:
        return draw_batch(model, batch_size, step_seed(seed, step), dtype=dtype)

    def drawn(which: int) -> Feed:
        def samples_of(step: int) -> Value:
            samples = draw(step)[which]
            require_samples(model, samples, batch_size)
            return mapped(lambda tensor: pinned_for(tensor, device), samples)

        return Feed(samples_of, microbatches_per_step, num_microbatches, device, first)

    return drawn(0), drawn(1)


def step_seed(seed: int, step: int) -> int:
    """Return the seed of the samples of a step: a hash, so that neighbouring seeds and steps share nothing.

    It has 32 bits, the most that NumPy's generators take, which a user's model may draw from.
    """
    digest = hashlib.blake2b(f"samples of step {step} of seed {seed}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big")
