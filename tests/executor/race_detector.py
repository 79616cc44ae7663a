"""A double of torch.cuda on CPU tensors: it runs ops at once, and refuses any race that a GPU could have.

Every stream has a vector clock: how many ops of each stream are over before its next op begins. `wait_event` and
`synchronize` are all that order streams. An op may read a storage only behind its last write, and write to it only
behind all reads. A storage may be freed only when the stream that has allocated it is behind all its users, or the
allocator was told of them (record_stream).
"""

from __future__ import annotations

from contextlib import contextmanager

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pipesched.executor.core import CudaStreams

HERE = torch.device("cpu", 0)
_SHAPES = {f"aten::{name}_like" for name in ("empty", "full", "ones", "zeros", "rand", "randn")} | {
    f"aten::new_{name}" for name in ("empty", "empty_strided", "full", "ones", "zeros")
}
"""Ops that read the shape of a tensor, and not its elements."""


class RaceError(AssertionError):
    """Two ops in no order, one of which writes; or memory that is reused before its last op is over."""


class _Stream:
    def __init__(self, device):
        self.device = device
        self.clock = {self: 1}

    def wait_event(self, event):
        self.join(event.clock)

    def join(self, clock):
        for stream, count in clock.items():
            self.clock[stream] = max(count, self.clock.get(stream, 0))

    def is_behind(self, stream, count):
        return self.clock.get(stream, 0) >= count


class _Event:
    def __init__(self, enable_timing=False):
        self.clock = {}

    def record(self, stream):
        self.clock = dict(stream.clock)


class _Storage:
    def __init__(self, storage, stream, made):
        count = stream.clock[stream]
        self.made = made
        self.reference = StorageWeakRef(storage)
        self.owner = stream
        self.written = {(0, storage.nbytes()): (stream, count)}
        self.read = {}
        self.users = {stream: count}
        self.kept = set()


def _place(tensor):
    """Return where in its storage a tensor begins and ends [bytes]."""
    begin = tensor.storage_offset() * tensor.element_size()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + (last + 1) * tensor.element_size() if tensor.numel() else begin


def _overlapping(users, place):
    return [user for key, user in users.items() if key[0] < place[1] and place[0] < key[1]]


class RaceDetector(TorchDispatchMode):
    """Watches all ops inside the block, and is the torch.cuda of `RacingStreams`.

    Attributes:
        num_ops: Ops that were watched.
    """

    def __init__(self):
        super().__init__()
        self.num_ops = 0
        self.Event = _Event
        self._default = _Stream(torch.device("cpu"))
        self._streams = [self._default]
        self._current = [self._default]
        self._storages = {}

    def Stream(self, device):  # noqa: N802 -- as torch.cuda has it
        self._streams.append(_Stream(device))
        return self._streams[-1]

    @contextmanager
    def stream(self, stream):
        self._current.append(stream)
        yield
        self._current.pop()

    def synchronize(self, device):
        for stream in self._streams:
            for other in self._streams:
                stream.join(other.clock)

    def keep(self, tensor, stream):
        self._known(tensor).kept.add(stream)

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self._require_users_over()
        stream, joined = self._stream_of(op)
        stream.clock[stream] += 1
        self.num_ops += 1
        given = list(zip(op._schema.arguments, args, strict=False))
        given += [(argument, kwargs[argument.name]) for argument in op._schema.arguments if argument.name in kwargs]
        before = set()
        for argument, value in given:
            for tensor in tree_leaves(value):
                if (
                    isinstance(tensor, torch.Tensor) and tensor.dtype != torch.uint8
                ):  # states of generators, on the host
                    before.add(tensor.untyped_storage()._cdata)
                    if op._schema.name in _SHAPES:
                        continue
                    if argument.alias_info is None:
                        self._read(op, tensor, stream)
                    elif argument.alias_info.is_write:
                        self._write(op, tensor, stream)
        result = op(*args, **kwargs)
        for tensor in tree_leaves(result):
            is_lifted = op is torch.ops.aten.lift_fresh.default  # made by torch.tensor, outside of any op
            if isinstance(tensor, torch.Tensor) and (is_lifted or tensor.untyped_storage()._cdata not in before):
                self._made(op, tensor, stream)
        for other in joined:
            other.join(stream.clock)
        return result

    def _stream_of(self, op):
        """Return the stream that runs an op: between two devices, the copying stream of the source."""
        devices = {stream.device: stream for stream in self._current[1:]}
        stream = self._current[-1]
        if op is not torch.ops.aten.copy_.default or len(devices) < 2 or len(self._current) < 4:
            return stream, ()
        source = devices[torch.device("cpu")]
        source.join(stream.clock)
        return source, (stream,)

    def _known(self, tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in self._storages:  # made before the block
            self._storages[storage._cdata] = _Storage(
                storage, self._default, f"a tensor of {tuple(tensor.shape)} from before"
            )
        return self._storages[storage._cdata]

    def _made(self, op, tensor, stream):
        storage = tensor.untyped_storage()
        if storage._cdata not in self._storages:
            self._storages[storage._cdata] = _Storage(storage, stream, f"{op} of {tuple(tensor.shape)}")

    def _read(self, op, tensor, stream):
        known, place = self._known(tensor), _place(tensor)
        for user in _overlapping(known.written, place):
            self._require_behind(op, tensor, stream, user)
        known.read[*place, stream] = (stream, stream.clock[stream])
        known.users[stream] = stream.clock[stream]

    def _write(self, op, tensor, stream):
        known, place = self._known(tensor), _place(tensor)
        for user in (*_overlapping(known.written, place), *_overlapping(known.read, place)):
            self._require_behind(op, tensor, stream, user)
        for users in (known.written, known.read):
            for key in [key for key in users if place[0] <= key[0] and key[1] <= place[1]]:
                del users[key]
        known.written[place] = (stream, stream.clock[stream])
        known.users[stream] = stream.clock[stream]

    def _require_behind(self, op, tensor, stream, user):
        if not stream.is_behind(*user):
            raise RaceError(f"{op} on {tuple(tensor.shape)} does not wait for an op of another stream")

    def _require_users_over(self):
        gone = [key for key, known in self._storages.items() if known.reference.expired()]
        for key in gone:
            known = self._storages.pop(key)
            for user in known.users.items():
                if user[0] not in known.kept and not known.owner.is_behind(*user):
                    raise RaceError(f"{known.made} is freed while another stream may use it")


class RacingStreams(CudaStreams):
    """The streams of a rank on a double of torch.cuda, on the same device as its peers, or on another."""

    def __init__(self, detector, device=HERE):
        super().__init__(device, cuda=detector)

    def _keep(self, tensor, stream):
        self._cuda.keep(tensor, stream)
