"""The version store: keeps each version of one stage's weights until its last read.

The module's own parameters are the newest version. An older version is a copy of the parameters' storages. It is kept
from the Step that replaces it until its last reader in the op list is done. Versions without readers are not copied.
Predicted weights are made from the newest version just before their op, and dropped just after it.

A backward may read other weights than its forward, or weights that are no longer the newest. It gets them through
``torch.autograd.graph.saved_tensors_hooks``: a parameter, or view of one, that autograd saves is kept as a place in a
storage, and looked up in the weights that the backward's own op names. If nothing changes between the forward and its
backward, the hooks are not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, UntypedStorage, nn
from torch.autograd.graph import saved_tensors_hooks

from pipesched.executor import ExecutionError
from pipesched.executor.core.weight_predictor import Predictor
from pipesched.schedules.ops import Compute
from pipesched.schedules.weights import Agreement, Use, looks_ahead

_Storages: TypeAlias = Mapping[int, UntypedStorage]
"""All storages of a version, by the address of the newest version's storage."""

_NOTHING: AbstractContextManager[None] = nullcontext()


@dataclass(frozen=True, slots=True)
class _StorageView:
    """A view of a parameter in any version."""

    storage: int
    dtype: torch.dtype
    device: torch.device
    offset: int | torch.SymInt
    size: torch.Size
    stride: tuple[int, ...]


class Weights:
    """Keeps each version of `module`'s parameters until its last read.

    Args:
        module: The stage's layers.
        uses: Returns a new iterator over the weight reads of the stage's list, as `versions.uses` does; None if every
            op of the stage reads the version made by the last Step, and no Step is between a forward and its
            backward.
        predictor: Predictor of the stage's optimizer, or None if no op looks ahead.

    Attributes:
        note: Called inside a Step, and inside an op on predicted weights, at the memory peaks.
    """

    def __init__(
        self, module: nn.Module, uses: Callable[[], Iterator[Use]] | None = None, predictor: Predictor | None = None
    ) -> None:
        self._parameters = tuple(module.parameters())
        self._all_uses = uses
        self.predictor = predictor
        self.note: Callable[[], None] = lambda: None
        self._stash: dict[int, _Storages] = {}
        self.begin()

    def begin(self) -> None:
        """Start the list anew: the present weights are version 0."""
        self.version = 0
        self._stash.clear()
        self._storages = {p.untyped_storage().data_ptr(): p.untyped_storage() for p in self._parameters}
        self._keys = {pointer: pointer for pointer in self._storages}  # of storages of any version to the newest's
        self._read: _Storages = self._storages  # where a backward finds its weights
        self._uses = iter(()) if self._all_uses is None else self._all_uses()
        self._next = next(self._uses, None)

    @property
    def live_versions(self) -> tuple[int, ...]:
        """The versions held now, the newest included."""
        return (*sorted(self._stash), self.version)

    def step(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Make the next version; keep the present one if it is still to be read."""
        if self._next is not None and self.version in self._next.held:
            self._stash[self.version] = self._copies()
        if optimizer is not None:
            if self.predictor is not None:
                self.predictor.observe()
            optimizer.step()
            self.note()
            for parameter in self._parameters:
                parameter.grad = None  # as zero_grad does, which takes ten times as long to do it
        self.version += 1

    def forward(self, op: Compute) -> AbstractContextManager[None]:
        """Let the module compute with the weights that `op` names, and save its parameters as views."""
        return self._forward(op) if self._is_versioned(op) else _NOTHING

    def backward(self, op: Compute) -> AbstractContextManager[None]:
        """Let autograd read the weight version that `op` names wherever it saved a parameter."""
        return self._backward(op) if self._is_versioned(op) else _NOTHING

    def _is_versioned(self, op: Compute) -> bool:
        if self._all_uses is not None:
            return True
        if op.version != self.version:
            raise self._missing(op)
        return False

    @contextmanager
    def _forward(self, op: Compute) -> Iterator[None]:
        if self._is_plain(op):
            yield
        else:
            with self._named(op) as storages, self._under(storages), saved_tensors_hooks(self._pack, self._unpack):
                yield
        self._advance()

    @contextmanager
    def _backward(self, op: Compute) -> Iterator[None]:
        if self._is_plain(op):
            yield
        else:
            with self._named(op) as self._read:
                yield
            self._read = self._storages
        self._advance()

    def _is_plain(self, op: Compute) -> bool:
        """Return whether all ops of the micro-batch read the newest version, with no Step between them."""
        use = self._next
        if use is None or use.op != op:
            expected = "no more op of this stage" if use is None else str(use.op)
            raise ExecutionError(f"{op} came, expected {expected}; run the ops of the stage in the order of its list")
        return use.agreement is Agreement.SAME and use.staleness == 0 and not looks_ahead(op)

    def _advance(self) -> None:
        """Drop the versions whose last read was the finished op."""
        self._next = next(self._uses, None)
        held = () if self._next is None else self._next.held
        for version in [version for version in self._stash if version not in held]:
            self._forget(self._stash.pop(version))

    @contextmanager
    def _named(self, op: Compute) -> Iterator[_Storages]:
        """Yield the weights that `op` reads."""
        if not looks_ahead(op) or not self._parameters:
            if op.version != self.version and op.version not in self._stash:
                raise self._missing(op)
            yield self._storages if op.version == self.version else self._stash[op.version]
            return
        if self.predictor is None:
            raise ExecutionError(
                f"{op}: got an op that looks ahead without a prediction, expected a rule for predicting weights; set "
                "`prediction`"
            )
        if op.version != self.version:
            raise ExecutionError(
                f"{op}: got a prediction from version {op.version}, expected one from the newest version, "
                f"{self.version}; check the schedule"
            )
        copies = self._copies()
        moved: dict[Tensor, Tensor] = {p: self._seen_in(copies, p) for p in self._parameters}
        self.predictor.move(moved, op.lookahead)
        self.note()
        try:
            yield copies
            self.note()
        finally:
            self._forget(copies)

    def _missing(self, op: Compute) -> ExecutionError:
        return ExecutionError(
            f"{op}: version {op.version} of the weights is missing; the stage has only "
            f"{', '.join(map(str, self.live_versions))}"
        )

    @contextmanager
    def _under(self, storages: _Storages) -> Iterator[None]:
        """Use `storages` as the parameters inside the block."""
        if storages is self._storages:
            yield
            return
        newest = [parameter.data for parameter in self._parameters]
        try:
            for parameter in self._parameters:
                parameter.data = self._seen_in(storages, parameter)
            yield
        finally:
            for parameter, data in zip(self._parameters, newest, strict=True):
                parameter.data = data

    @staticmethod
    def _seen_in(storages: _Storages, parameter: nn.Parameter) -> Tensor:
        return _view(storages[parameter.untyped_storage().data_ptr()], _storage_view(parameter))

    def _copies(self) -> _Storages:
        copies = {key: _copied(storage) for key, storage in self._storages.items()}
        self._keys.update((copy.data_ptr(), key) for key, copy in copies.items())
        return copies

    def _forget(self, copies: _Storages) -> None:
        for copy in copies.values():
            self._keys.pop(copy.data_ptr(), None)  # all empty ones are at one address

    def _pack(self, tensor: Tensor) -> _StorageView | tuple[Tensor, int]:
        key = self._keys.get(tensor.untyped_storage().data_ptr())
        if key is None:
            # detached: an output that held itself would never be freed
            return tensor.detach(), tensor._version  # noqa: SLF001 -- as autograd itself compares it
        return _storage_view(tensor, key)

    def _unpack(self, packed: _StorageView | tuple[Tensor, int]) -> Tensor:
        if isinstance(packed, _StorageView):
            return _view(self._read[packed.storage], packed)
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


def _storage_view(tensor: Tensor, storage: int = 0) -> _StorageView:
    return _StorageView(storage, tensor.dtype, tensor.device, tensor.storage_offset(), tensor.size(), tensor.stride())


def _view(storage: UntypedStorage, view: _StorageView) -> Tensor:
    return torch.empty(0, dtype=view.dtype, device=view.device).set_(storage, view.offset, view.size, view.stride)
