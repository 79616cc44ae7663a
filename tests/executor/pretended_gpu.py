"""A pretended GPU: CPU tensors that claim to be on ``cuda:0``, and refuse the operations that a GPU would refuse.

A computation on them gives the numbers that it gives on the CPU. It fails where a GPU would fail, as tensors of both
devices meet; and, while `no_waits` is entered, where the host would wait for the GPU, which torch would do silently.
"""

from __future__ import annotations

import weakref
from collections import Counter
from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

GPU = torch.device("cuda", 0)
_WAITING = {"_local_scalar_dense", "equal", "nonzero", "is_nonzero", "masked_select", "_unique2", "unique_dim"}
_READING = {"tolist", "numpy", "__array__", "__repr__", "__format__", "cpu"}


class HostWaitsError(AssertionError):
    """The host would wait for the GPU."""


class MisplacedError(AssertionError):
    """A tensor is not on the device where it is used."""


class PretendedGpu:
    """Enter it to have the GPU; `no_waits` is entered inside.

    Attributes:
        copies: How many tensors went ``to`` the GPU and ``from`` it.
        held_bytes: Returns the bytes on the GPU now.
    """

    def __init__(self, monkeypatch):
        self._on_gpu, self._pinned = weakref.WeakSet(), weakref.WeakSet()
        self._is_watched = self.is_within = False
        self.copies = Counter()
        clone = torch.UntypedStorage.clone
        monkeypatch.setattr(torch.UntypedStorage, "clone", lambda storage: self._cloned(clone, storage))
        monkeypatch.setattr(torch.cuda, "default_generators", (torch.Generator(),))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: None)
        monkeypatch.setattr(torch.cuda, "Event", lambda **given: _Event(self))

    def __enter__(self):
        self._modes = _Functions(self), _Kernels(self)
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *error):
        for mode in reversed(self._modes):
            mode.__exit__(*error)

    @contextmanager
    def no_waits(self):
        """Refuse whatever would keep the host waiting."""
        self._is_watched = True
        try:
            yield
        finally:
            self._is_watched = False

    @contextmanager
    def within(self, *arguments):
        """Run a function of PyTorch: a tensor that it makes for itself is where its arguments are."""
        before = self.is_within
        self.is_within = any(isinstance(leaf, torch.Tensor) and self.has(leaf) for leaf in tree_leaves(arguments))
        try:
            yield
        finally:
            self.is_within = before

    @property
    def held_bytes(self):
        return sum(storage.nbytes() for storage in self._on_gpu)

    def has(self, tensor):
        with torch._C.DisableTorchFunction():
            return tensor.untyped_storage() in self._on_gpu

    def put(self, *tensors):
        with torch._C.DisableTorchFunction():
            for tensor in tensors:
                self._on_gpu.add(tensor.untyped_storage())

    def pin(self, tensor):
        with torch._C.DisableTorchFunction():
            self._pinned.add(tensor.untyped_storage())
        return tensor

    def is_pinned(self, tensor):
        with torch._C.DisableTorchFunction():
            return tensor.untyped_storage() in self._pinned

    def wait(self, what):
        if self._is_watched:
            raise HostWaitsError(f"the host waits for the GPU: {what}")

    def copied(self, source, *, to_gpu, non_blocking, host):
        """Note a copy between the devices; `host` is the end on the CPU."""
        self.copies["to" if to_gpu else "from"] += 1
        if not (non_blocking and self.is_pinned(host)):
            self.wait(f"a copy of {tuple(source.shape)}, {'to' if to_gpu else 'from'} the GPU")

    def _cloned(self, clone, storage):
        is_there, self._is_watched = self._is_watched, False
        try:
            with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
                copy = clone(storage)
        finally:
            self._is_watched = is_there
        if storage in self._on_gpu:
            self._on_gpu.add(copy)
        return copy


class _Functions(TorchFunctionMode):
    """The differences of PyTorch's functions on a GPU: the device of a tensor, and copies between devices."""

    def __init__(self, gpu):
        super().__init__()
        self._gpu = gpu

    def __torch_function__(self, function, types, args=(), kwargs=None):
        gpu, kwargs, name = self._gpu, dict(kwargs or {}), function.__name__
        if name == "__get__" and function.__self__ in _GETTERS and gpu.has(args[0]):
            return _GETTERS[function.__self__]
        if name in ("__get__", "__set__", "_parse_to"):
            return function(*args, **kwargs)
        tensor = args[0] if args and isinstance(args[0], torch.Tensor) else None
        is_there = tensor is not None and gpu.has(tensor)
        if name in _READING and is_there:
            gpu.wait(name)
        if name == "pin_memory":
            assert not is_there, "what is pinned is on the CPU"
            return gpu.pin(tensor.clone())
        if name in ("to", "cuda", "cpu") and tensor is not None:
            return self._moved(tensor, args[1:], kwargs, {"cuda": GPU, "cpu": torch.device("cpu")}.get(name))
        is_pinned, device = kwargs.pop("pin_memory", False), kwargs.get("device")
        is_for_gpu = device is not None and torch.device(device).type == "cuda"
        if is_for_gpu:
            kwargs["device"] = "cpu"
        if (name in ("tensor", "as_tensor") and is_for_gpu) or (name == "new_tensor" and is_there):
            gpu.wait(name)
        with gpu.within(args, kwargs):
            result = function(*args, **kwargs)
        if is_for_gpu or (name == "new_tensor" and is_there):
            gpu.put(result)
        return gpu.pin(result) if is_pinned else result

    def _moved(self, tensor, args, kwargs, device):
        """Return `tensor` as ``tensor.to(*args, **kwargs)`` does."""
        gpu, rest = self._gpu, [arg for arg in args if not isinstance(arg, torch.device | str)]
        given = [arg for arg in args if isinstance(arg, torch.device | str)]
        for other in [arg for arg in rest if isinstance(arg, torch.Tensor)]:
            given, rest = [other.device], [other.dtype]
        if kwargs.get("device") is not None:
            given = [kwargs["device"]]
        device = torch.device(given[0]) if given else device
        kwargs = {key: value for key, value in kwargs.items() if key != "device"}
        if device is not None and len(rest) > 1:  # to(device, dtype, non_blocking)
            kwargs["non_blocking"] = rest.pop()
        dtype = kwargs.pop("dtype", None) or (rest[0] if rest else None) or tensor.dtype
        is_there, goes = gpu.has(tensor), device is not None and (device.type == "cuda") != gpu.has(tensor)
        result = tensor.type(dtype) if dtype != tensor.dtype else tensor
        if (kwargs.get("copy") and result is tensor) or (goes and result is tensor):
            with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
                result = tensor.detach().clone() if goes else tensor.clone()
        if not goes:
            if is_there:
                gpu.put(result)
            return result
        host = result if is_there else tensor
        gpu.copied(tensor, to_gpu=not is_there, non_blocking=kwargs.get("non_blocking", False), host=host)
        if not is_there:
            gpu.put(result)
        return result


class _Kernels(TorchDispatchMode):
    """The differences of kernels on a GPU: the device of their results, and the tensors that they may read."""

    def __init__(self, gpu):
        super().__init__()
        self._gpu = gpu

    def __torch_dispatch__(self, kernel, types, args=(), kwargs=None):
        gpu, name = self._gpu, kernel._schema.name.removeprefix("aten::")
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        there = [tensor for tensor in tensors if gpu.has(tensor)]
        if not there:
            result = kernel(*args, **(kwargs or {}))
            if not tensors and gpu.is_within and isinstance(result, torch.Tensor):
                gpu.put(result)
            return result
        if name in _WAITING or (name.startswith("index") and any(tensor.dtype == torch.bool for tensor in tensors)):
            gpu.wait(name)
        elif name == "copy_" and len(there) < len(tensors):
            target, source, is_async = *args[:2], (*args[2:], False)[0]
            host = source if gpu.has(target) else target
            if host is target or source.dim():  # a number is an argument of the kernel
                gpu.copied(source, to_gpu=gpu.has(target), non_blocking=is_async, host=host)
            return kernel(*args, **(kwargs or {}))
        else:
            for tensor in tensors:
                if tensor.dim() and not gpu.has(tensor):
                    raise MisplacedError(
                        f"{name} of a tensor of {tuple(tensor.shape)} on the CPU, and others on the GPU"
                    )
        result = kernel(*args, **(kwargs or {}))
        gpu.put(*(leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)))
        return result


class _Event:
    """An event that is over once it was asked for three times, or waited for."""

    def __init__(self, gpu):
        self._gpu, self._left = gpu, 3

    def record(self, stream=None):
        """Nothing to note: the work is over."""

    def query(self):
        self._left -= 1
        return self._left < 0

    def synchronize(self):
        if self._left >= 0:
            self._gpu.wait("an event")


_GETTERS = {
    torch.Tensor.device: GPU,
    torch.Tensor.is_cuda: True,
    torch.Tensor.is_cpu: False,
}
