"""Messages over gloo, between CPUs or from pinned host memory, and over NCCL, with a GPU and a process per rank."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import final

import torch
import torch.distributed as dist
from torch import Tensor

from pipesched.executor import EVERYBODY, waiting_for
from pipesched.executor.transport.boundary_shapes import BoundaryShape, TensorShape, TupleShape
from pipesched.executor.transport.channel_ends import ChannelEnds, Incoming, RankChannels, SentParts
from pipesched.executor.transport.half_precision import Packed, is_compressed, pack, rest_bytes, unpack
from pipesched.profiles import MessagePrecision
from pipesched.profiles.costs import head_bytes
from pipesched.profiles.models import Value, mapped, tensors_of

_REST_TAG = 8
"""The tag, plus k, of the rest of a channel's k-th message that did not fit its head: it is asked for late, and
perhaps in another order."""


@final
class ProcessGroupTransport(ChannelEnds):
    """A rank's ends of its channels over gloo, whose default group matches messages by sender and receiver.

    Every wait blocks the host, and has a time-out.

    Args:
        channels: Channels of the rank.
        timeout_s: Longest wait for one message, or for one sum over replicas [s].
        compression: Compression of the messages between stages; None for none.
        is_staged: Whether messages go through pinned host memory, as between ranks on GPUs.
    """

    def __init__(
        self,
        channels: RankChannels,
        timeout_s: float,
        compression: MessagePrecision | None = None,
        *,
        is_staged: bool = False,
    ) -> None:
        super().__init__(channels)
        self._is_staged = is_staged
        self._pin = is_staged and channels.device.type == "cuda"
        self._timeout = timedelta(seconds=timeout_s)
        self._compression = compression

    def _group(self, sender: int, receiver: int) -> None:  # noqa: ARG002 -- one group has all channels
        return None

    def _wait(self, work: dist.Work, what: str, whom: int = EVERYBODY) -> None:
        with waiting_for(what, whom):
            work.wait(self._timeout)

    def _staged(self, tensor: Tensor) -> Tensor:
        if not self._is_staged:
            return tensor
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._pin).copy_(tensor)

    def _unstaged(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._device, non_blocking=True) if self._is_staged else tensor

    def _buffer(self, shape: BoundaryShape) -> Tensor:
        device = torch.device("cpu") if self._is_staged else self._device
        return torch.empty(shape.num_elements, dtype=shape.dtype, device=device, pin_memory=self._pin)

    def _wire_shape(self, shape: BoundaryShape) -> BoundaryShape:
        if self._compression is None:
            return shape
        if isinstance(shape, TensorShape):
            return _head_shape(shape)
        return TupleShape(tuple(None if part is None else _head_shape(part) for part in shape.parts))

    def _isend_parts(self, shape: BoundaryShape, value: Value, peer: int, number: int) -> SentParts:
        if self._compression is None:
            return super()._isend_parts(shape, value, peer, number)
        packed = [_packed(part, tensor) for part, tensor in zip(_parts(shape), tensors_of(value), strict=True)]
        heads = iter([content.head for content in packed])
        rests = [content.rest for content in packed if content.rest is not None]
        head = self._isend(self._flat(self._wire_shape(shape), mapped(lambda _: next(heads), value)), peer)
        if not rests:
            return (head,)
        rest = rests[0] if len(rests) == 1 else torch.cat(rests)
        return head, self._isend(rest, peer, _REST_TAG + number)

    def _value_of(self, incoming: Incoming, shape: BoundaryShape, what: str) -> Value:
        """Return the value of a message, after the rest of a compressed one has arrived."""
        if self._compression is None:
            return super()._value_of(incoming, shape, what)
        parts, heads = _parts(shape), tensors_of(self._wire_shape(shape).of(incoming.buffer))
        missing = [_missing_bytes(part, head) for part, head in zip(parts, heads, strict=True)]
        rest = torch.empty(0, dtype=torch.uint8)
        if any(missing):
            all_bytes = TensorShape((sum(missing),), torch.uint8)
            work, rest = self._irecv(all_bytes, incoming.peer, _REST_TAG + incoming.number)
            self._wait(work, f"the rest of {what}", incoming.peer)
        rests: Sequence[Tensor] = rest.split(missing)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        tensors = iter([self._unpacked(*place) for place in zip(parts, heads, rests, strict=True)])
        if isinstance(shape, TensorShape):
            return next(tensors)
        return tuple(None if part is None else next(tensors).requires_grad_(part.requires_grad) for part in shape.parts)

    def _unpacked(self, part: TensorShape, head: Tensor, rest: Tensor) -> Tensor:
        if not is_compressed(part.dtype):
            return self._unstaged(head)
        return part.of(unpack(Packed(head, rest if len(rest) else None), part.dtype, self._device))


def _parts(shape: BoundaryShape) -> list[TensorShape]:
    """Return the shapes of the tensors of a value."""
    return [shape] if isinstance(shape, TensorShape) else [part for part in shape.parts if part is not None]


def _head_shape(part: TensorShape) -> TensorShape:
    """Return the shape of a tensor in a compressed message."""
    if not is_compressed(part.dtype):
        return part
    return TensorShape((head_bytes(part.num_bytes, part.dtype.itemsize),), torch.uint8, requires_grad=False)


def _packed(part: TensorShape, tensor: Tensor) -> Packed:
    return pack(part.flat(tensor)) if is_compressed(part.dtype) else Packed(tensor)


def _missing_bytes(part: TensorShape, head: Tensor) -> int:
    return rest_bytes(head, part.num_elements, part.dtype) if is_compressed(part.dtype) else 0


_ENVIRONMENT = {
    # with it, each wait polls on the host, and no watchdog looks for errors
    "TORCH_NCCL_BLOCKING_WAIT": "0",
    # no handling: else the watchdog ends a process before it has written its error. A failed work raises at its wait
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    # else a monitor kills a process whose watchdog stands in a CUDA call for eight minutes
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    # a warning about groups whose messages go both ways; each of ours has one direction
    "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING": "0",
}
"""Settings of PyTorch's NCCL groups, read when a group is made; they override the environment's."""


@final
class NcclTransport(ChannelEnds):
    """A rank's ends of its channels over NCCL.

    A wait makes the rank's stream wait, never the host, and has no time-out. A time-out would make PyTorch poll on the
    host, and would count from the post of a message, which may be long before its Send: the supervisor times ops
    instead. The wait for a sent tensor costs the stream nothing: the message that proves its arrival has come, in the
    order of the stream. From that wait on the allocator may use the tensor's memory again. (PyTorch, 2.6 to 2.13, also
    records tensors of messages on the stream of their communicator, so a rank that fails early frees nothing in use.)

    Args:
        channels: Channels of the rank.
        groups: Process group of each channel, by (sender, receiver).
    """

    def __init__(self, channels: RankChannels, groups: Mapping[tuple[int, int], dist.ProcessGroup]) -> None:
        super().__init__(channels)
        self._groups = groups

    def _group(self, sender: int, receiver: int) -> dist.ProcessGroup:
        return self._groups[sender, receiver]

    def _wait(self, work: dist.Work, what: str, whom: int = EVERYBODY) -> None:
        with waiting_for(what, whom):
            work.wait()


@contextmanager
def nccl_environment() -> Iterator[None]:
    """Set PyTorch's variables for NCCL as the transport needs them; set them back at the end."""
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    os.environ.update(_ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
