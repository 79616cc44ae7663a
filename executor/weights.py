"""The versions of one stage's weights.

The module's own parameters are the newest version. An older one is kept, as a copy of the parameters' storages,
from the Step that replaces it until its last reader in the op list is done; nothing is copied that nobody reads.

A backward that must read another version than the newest gets it through
``torch.autograd.graph.saved_tensors_hooks``: what autograd saves of a parameter (views of it too) is kept as a
place in a storage, and looked up in the version that the backward's own op names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, UntypedStorage, nn

from executor.errors import ExecutionError

_NOTHING: AbstractContextManager[None] = nullcontext()


@dataclass(frozen=True, slots=True)
class _Place:
    """A view of a parameter, without saying of which version."""

    storage: int
    dtype: torch.dtype
    device: torch.device
    offset: int | torch.SymInt
    size: torch.Size
    stride: tuple[int, ...]


class Weights:
    """Keeps the versions of `module`'s parameters that are still to be read.

    Args:
        module: The stage's layers.
        reads: How many ops of the stage's list read each version.
        is_versioned: Whether an op of the stage comes after a Step of it; where none does, the weights cannot change
            under a micro-batch, and autograd is left alone.
    """

    def __init__(self, module: nn.Module, reads: Counter[int], is_versioned: bool) -> None:
        self._parameters = tuple(module.parameters())
        self._all_reads = reads
        self._is_versioned = is_versioned
        self._stash: dict[int, dict[int, UntypedStorage]] = {}
        self._reading: int | None = None
        self.begin()

    def begin(self) -> None:
        """Start the list anew: the weights as they are now are version 0."""
        self.version = 0
        self._left = Counter(self._all_reads)
        self._stash.clear()
        self._storages = {p.untyped_storage().data_ptr(): p.untyped_storage() for p in self._parameters}
        self._keys = {pointer: pointer for pointer in self._storages}  # of storages of any version to the newest's

    @property
    def live_versions(self) -> tuple[int, ...]:
        """The versions held now, the newest included."""
        return (*sorted(self._stash), self.version)

    def step(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Make the next version, keeping the present one if it is still to be read."""
        if self._is_versioned and self._left[self.version] > 0:
            copies = {key: _copied(storage) for key, storage in self._storages.items()}
            self._stash[self.version] = copies
            self._keys.update((copy.data_ptr(), key) for key, copy in copies.items())
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.version += 1

    def forward(self, version: int) -> AbstractContextManager[None]:
        """Let the module compute with `version`, and remember its parameters by place."""
        self._require(version)
        return self._forward(version) if self._is_versioned else _NOTHING

    def backward(self, version: int) -> AbstractContextManager[None]:
        """Let autograd find `version` where the forward used a parameter."""
        self._require(version)
        return self._backward(version) if self._is_versioned else _NOTHING

    @contextmanager
    def _forward(self, version: int) -> Iterator[None]:
        with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack), self._swapped(version):
            yield
        self._done(version)

    @contextmanager
    def _backward(self, version: int) -> Iterator[None]:
        self._reading = version
        try:
            yield
        finally:
            self._reading = None
        self._done(version)

    def _require(self, version: int) -> None:
        if version != self.version and version not in self._stash:
            raise ExecutionError(
                f"version {version} of the weights is not there; the stage holds "
                f"{', '.join(map(str, self.live_versions))}"
            )

    def _done(self, version: int) -> None:
        self._left[version] -= 1
        if self._left[version] == 0 and version != self.version:
            for copy in self._stash.pop(version).values():
                del self._keys[copy.data_ptr()]

    @contextmanager
    def _swapped(self, version: int) -> Iterator[None]:
        """Put the storages of `version` under the parameters for a while."""
        if version == self.version:
            yield
            return
        newest = [parameter.data for parameter in self._parameters]
        try:
            for parameter in self._parameters:
                parameter.data = _view(self._stash[version][parameter.untyped_storage().data_ptr()], _place(parameter))
            yield
        finally:
            for parameter, data in zip(self._parameters, newest, strict=True):
                parameter.data = data

    def _pack(self, tensor: Tensor) -> _Place | tuple[Tensor, int]:
        key = self._keys.get(tensor.untyped_storage().data_ptr())
        if key is None:
            # detached: an output that held itself would never be freed
            return tensor.detach(), tensor._version  # noqa: SLF001 -- what autograd itself compares
        return _place(tensor, key)

    def _unpack(self, packed: _Place | tuple[Tensor, int]) -> Tensor:
        if isinstance(packed, _Place):
            version = self.version if self._reading is None else self._reading
            storages = self._storages if version == self.version else self._stash[version]
            return _view(storages[packed.storage], packed)
        tensor, version = packed
        now = tensor._version  # noqa: SLF001
        if now != version:
            raise ExecutionError(
                f"a tensor of shape {tuple(tensor.shape)} that the backward needs was changed in place "
                f"(version {now}, expected {version})"
            )
        return tensor


def _copied(storage: UntypedStorage) -> UntypedStorage:
    copy: UntypedStorage = storage.clone()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return copy


def _place(tensor: Tensor, storage: int = 0) -> _Place:
    return _Place(storage, tensor.dtype, tensor.device, tensor.storage_offset(), tensor.size(), tensor.stride())


def _view(storage: UntypedStorage, place: _Place) -> Tensor:
    return torch.empty(0, dtype=place.dtype, device=place.device).set_(storage, place.offset, place.size, place.stride)
