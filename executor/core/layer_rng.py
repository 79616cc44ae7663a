"""Random numbers of the layers, such as dropout: every layer has its own for each micro-batch of each run of the list.

They depend only on seed, layer, run and micro-batch, not on the schedule, the cut into stages or the rank. So a
pipeline draws the same numbers as the whole model, R repeats the numbers of F, and no other random numbers change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn

_NOTHING: AbstractContextManager[None] = nullcontext()


class LayerGenerators:
    """Seeds torch's generators before each layer that draws random numbers, and skips all other layers.

    Args:
        layers: Layers of one stage, in order.
        first: Number of the first layer in the model.
        seed: Seed of the run.
        device: Device of the layers; they may also draw on the CPU.
        is_repeated: Whether a forward may run twice (R). Then all layers are seeded, including layers that draw only
            later.
    """

    def __init__(
        self, layers: Iterable[nn.Module], first: int, seed: int, device: torch.device, *, is_repeated: bool = False
    ) -> None:
        self._seed = seed
        self._generators = _generators(device)
        self._hooks = {
            index: layer.register_forward_pre_hook(partial(self._enter, index))
            for index, layer in enumerate(layers, first)
        }
        self._looks = not is_repeated
        self._entered: tuple[int, list[Tensor]] | None = None
        self._silent: list[int] = []
        self._run = -1
        self._microbatch: int | None = None
        self._current = -1

    def begin(self, *, goes_on: bool = False) -> None:
        """Start the op list anew; micro-batches then draw other numbers, unless the list continues the run."""
        if self._run < 0 or not goes_on:
            self._run += 1

    def of(self, microbatch: int) -> AbstractContextManager[None]:
        """Let the layers draw the numbers of `microbatch`; afterwards restore the generators."""
        return self._drawing(microbatch) if self._hooks else _NOTHING

    @contextmanager
    def _drawing(self, microbatch: int) -> Iterator[None]:
        before = self._states()
        self._microbatch, self._current = microbatch, -1
        try:
            yield
            if self._looks:
                self._leave_alone_who_drew_nothing()
        finally:
            self._microbatch = None
            for generator, state in zip(self._generators, before, strict=True):
                generator.set_state(state)

    def _enter(self, index: int, layer: nn.Module, inputs: object) -> None:  # noqa: ARG002 -- as torch calls a hook
        if self._microbatch is None or index <= self._current:
            return  # run outside of a micro-batch, or as a part of a later layer
        self._current = index
        if self._looks:
            self._look()
        for generator in self._generators:
            generator.manual_seed(draw_seed(self._seed, index, self._run, self._microbatch))
        if self._looks:
            self._entered = (index, self._states())

    def _look(self) -> None:
        """Record the last entered layer as silent if it drew no random numbers."""
        if self._entered is not None:
            index, seeded = self._entered
            if all(torch.equal(a, b) for a, b in zip(self._states(), seeded, strict=True)):
                self._silent.append(index)

    def _leave_alone_who_drew_nothing(self) -> None:
        self._look()
        self._looks, self._entered = False, None
        for index in self._silent:
            self._hooks.pop(index).remove()

    def _states(self) -> list[Tensor]:
        return [generator.get_state() for generator in self._generators]


def draw_seed(seed: int, layer: int, run: int, microbatch: int) -> int:
    """Return the seed of the generators: a hash, so that neighbours are independent."""
    text = f"micro-batch {microbatch} of run {run} in layer {layer} of seed {seed}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def _generators(device: torch.device) -> list[torch.Generator]:
    if device.type != "cuda":
        return [torch.default_generator]
    index = torch.cuda.current_device() if device.index is None else device.index
    return [torch.default_generator, torch.cuda.default_generators[index]]
