"""Count the storages that autograd saves."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from types import TracebackType

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


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
        self._hooks = saved_tensors_hooks(self._pack, _unpack)

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

    def holds(self, tensor: Tensor) -> bool:
        """Return whether the storage of `tensor` was saved."""
        return address(tensor) in self._tensors

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


def _unpack(packed: _Packed) -> Tensor:
    return packed.tensor
