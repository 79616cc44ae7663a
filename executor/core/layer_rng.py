"""Random numbers of the layers, as for dropout: every layer has its own for each micro-batch of each run of the list.

They depend on seed, layer, run and micro-batch alone, not on the schedule, the cut into stages or the rank. So a
pipeline draws what the whole model draws, R draws again what F drew, and nobody else's random numbers change.
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
    """A guard that seeds torch's generators before each layer that draws random numbers, and leaves all others alone.

    Args:
        layers: Layers of one stage, in order.
        first: The number of the first of them in the model.
        seed: Seed of the run.
        device: Where the layers compute; they may draw on the CPU besides.
        is_repeated: Whether a forward may run twice (R). Then all layers are seeded, also one that only draws later.
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
        """Start the op list anew: the same micro-batch draws other numbers now, unless the run goes on with others."""
        if self._run < 0 or not goes_on:
            self._run += 1

    def of(self, microbatch: int) -> AbstractContextManager[None]:
        """Let the layers draw what belongs to `microbatch`; afterwards the generators are as they were."""
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
            return  # run by somebody else, who has random numbers of their own, or by a later layer that it is part of
        self._current = index
        if self._looks:
            self._look()
        for generator in self._generators:
            generator.manual_seed(draw_seed(self._seed, index, self._run, self._microbatch))
        if self._looks:
            self._entered = (index, self._states())

    def _look(self) -> None:
        """Note the layer that was entered last if it drew nothing."""
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
    """Return what the generators are seeded with: a hash, so that neighbours share nothing."""
    text = f"micro-batch {microbatch} of run {run} in layer {layer} of seed {seed}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def _generators(device: torch.device) -> list[torch.Generator]:
    if device.type != "cuda":
        return [torch.default_generator]
    index = torch.cuda.current_device() if device.index is None else device.index
    return [torch.default_generator, torch.cuda.default_generators[index]]
