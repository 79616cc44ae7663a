"""Messages over gloo, between CPUs or from pinned host memory, and over NCCL, with a GPU and a process per rank."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import final

import torch
import torch.distributed as dist
from torch import Tensor

from pipesched.executor import EVERYBODY, waiting_for
from pipesched.executor.transport.boundary_shapes import TensorShape
from pipesched.executor.transport.channel_ends import ChannelEnds, Incoming, RankChannels, SentParts
from pipesched.executor.transport.half_precision import Packed, is_compressed, pack, rest_bytes, unpack
from pipesched.profiles import MessagePrecision
from pipesched.profiles.costs import head_bytes

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

    def _buffer(self, shape: TensorShape) -> Tensor:
        device = torch.device("cpu") if self._is_staged else self._device
        return torch.empty(shape.num_elements, dtype=shape.dtype, device=device, pin_memory=self._pin)

    def _is_compressed(self, shape: TensorShape) -> bool:
        return self._compression is not None and is_compressed(shape.dtype)

    def _wire_shape(self, shape: TensorShape) -> TensorShape:
        if not self._is_compressed(shape):
            return shape
        size = shape.dtype.itemsize
        return TensorShape((head_bytes(shape.num_elements * size, size),), torch.uint8)

    def _isend_parts(self, flat: Tensor, peer: int, number: int) -> SentParts:
        if self._compression is None or not is_compressed(flat.dtype):
            return (self._isend(flat, peer),)
        packed = pack(flat)
        head = self._isend(packed.head, peer)
        return (head,) if packed.rest is None else (head, self._isend(packed.rest, peer, _REST_TAG + number))

    def _tensor_of(self, incoming: Incoming, shape: TensorShape, what: str) -> Tensor:
        """Return the tensor of a message, after the rest of a compressed one has arrived."""
        if not self._is_compressed(shape):
            return super()._tensor_of(incoming, shape, what)
        missing = rest_bytes(incoming.buffer, shape.num_elements, shape.dtype)
        rest = None
        if missing:
            work, rest = self._irecv(TensorShape((missing,), torch.uint8), incoming.peer, _REST_TAG + incoming.number)
            self._wait(work, f"the rest of {what}", incoming.peer)
        return shape.of(unpack(Packed(incoming.buffer, rest), shape.dtype, self._device))


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
