"""Restore the state of random generators and modules after a block.

A probe of shapes, a profile and the scoring of held-out samples run a user's layers without an effect on the training.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn


@contextmanager
def kept_random_state(seed: int | None = None) -> Iterator[None]:
    """Restore the generators of torch, NumPy and Python at the end.

    The block creates no CUDA context. PyTorch queues the seed of GPUs until CUDA is initialised. If CUDA was not
    initialised before the block, the seed of the CPU is queued again.

    Args:
        seed: Seed of all generators inside the block; None to continue from their present state.
    """
    is_cuda_begun = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    generators = [torch.default_generator, *(torch.cuda.default_generators if is_cuda_begun else ())]
    states = [generator.get_state() for generator in generators]
    of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 -- a user's layer may draw from it
    if seed is not None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        if not is_cuda_begun and torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]  # torch leaves it untyped
            torch.cuda.manual_seed_all(torch.default_generator.initial_seed())
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002


@contextmanager
def kept_state(module: nn.Module) -> Iterator[None]:
    """Restore random generators, and the state of `module` and its submodules, at the end."""
    with kept_random_state(), in_states(module_states(module.modules())):
        yield


@final
class ModuleState:
    """A copy of the state of one module without its submodules: modes, buffers, plain attributes.

    The state includes the contents of lists, sets and dictionaries among the attributes.

    Args:
        module: The module.
        twins: Copies of tensors and generators by the id of the original; modules that share a tensor share its copy.
            New copies are added.
        has_parameters: Whether parameters are copied too.
    """

    def __init__(self, module: nn.Module, twins: dict[int, Any], *, has_parameters: bool) -> None:
        self.module = module
        self._own = dict(vars(module))
        self._held = {name: _identities(value) for name, value in self._own.items()}
        self._pairs: list[tuple[Any, Any]] = []
        self._twins, self._has_parameters = twins, has_parameters
        self._copies = {name: self._copied(value) for name, value in self._own.items()}

    @property
    def is_changed(self) -> bool:
        """Whether the module has changed since the copy."""
        now = vars(self.module)
        return (
            now.keys() != self._own.keys()
            or any(
                now[name] is not value or _identities(value) != self._held[name] for name, value in self._own.items()
            )
            or not all(map(_is_equal, self._pairs))
        )

    def swap(self) -> None:
        """Exchange the copy with the present state."""
        attributes = vars(self.module)
        present = dict(attributes)
        attributes.clear()
        attributes.update(self._copies)
        self._copies = present

    def _copied(self, value: Any) -> Any:
        if not isinstance(value, dict | list | set | deque):
            return self._twin(value)
        copy = value.copy()
        if isinstance(copy, dict):
            copy |= {key: self._twin(held) for key, held in copy.items()}
        elif not isinstance(copy, set):
            for index, held in enumerate(copy):
                copy[index] = self._twin(held)
        return copy

    def _twin(self, value: Any) -> Any:
        if isinstance(value, nn.Parameter) and not self._has_parameters:
            return value
        if not isinstance(value, Tensor | torch.Generator):
            return value
        twin = self._twins.get(id(value))
        if twin is None:
            twin = self._twins[id(value)] = _copy_of(value)
        self._pairs.append((value, twin))
        return twin


def module_states(modules: Iterable[nn.Module], *, has_parameters: bool = True) -> list[ModuleState]:
    """Return copies of the present states of modules, each without its submodules."""
    twins: dict[int, Any] = {}
    return [ModuleState(module, twins, has_parameters=has_parameters) for module in modules]


@contextmanager
def in_states(states: Iterable[ModuleState]) -> Iterator[None]:
    """Put modules into `states` inside the block; changes inside the block affect only these copies."""
    entered = [*states]
    for state in entered:
        state.swap()
    try:
        yield
    finally:
        for state in entered:
            state.swap()


def _copy_of(value: Tensor | torch.Generator) -> Tensor | torch.Generator:
    if isinstance(value, torch.Generator):
        twin = torch.Generator(value.device)
        twin.set_state(value.get_state())
        return twin
    copy = value.detach().clone()
    return nn.Parameter(copy, value.requires_grad) if isinstance(value, nn.Parameter) else copy


def _is_equal(pair: tuple[Any, Any]) -> bool:
    own, twin = pair
    if isinstance(own, torch.Generator):
        return torch.equal(own.get_state(), twin.get_state())
    return torch.equal(own, twin)


def _identities(value: Any) -> list[int]:
    """Return the identities of the contents of a container, in order; empty for other values."""
    if isinstance(value, dict):
        return [*map(id, value), *map(id, value.values())]
    return [*map(id, value)] if isinstance(value, list | set | deque) else []
