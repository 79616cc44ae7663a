"""Messages over torch.distributed: gloo on CPUs, NCCL with a GPU per rank, gloo from pinned memory on shared GPUs.

Every directed pair of ranks is a channel of its own, in order: the k-th Send meets the k-th Recv. Under NCCL each
channel has its own communicator, so that two ranks that send to each other at once do not wait for one another.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from pipesched.executor import EVERYBODY, ExecutionError, waiting_for
from pipesched.executor.core import PendingReduction, Transport, require_expected
from pipesched.executor.transport.all_reduce import StageAllReduce
from pipesched.executor.transport.half_precision import Packed, is_compressed, pack, rest_bytes, unpack
from pipesched.profiles import MessagePrecision
from pipesched.profiles.costs import head_bytes
from pipesched.schedules import Message, Op, Recv, Reduce, Send
from pipesched.schedules.semantics import Acknowledgements, Meetings

_TAG = 7
_REST_TAG = 8
"""The tag, plus k, of the rest of a channel's k-th message that did not fit its head: it is asked for late, and
perhaps in another order."""


@dataclass(frozen=True, slots=True)
class TensorShape:
    """What the tensor that crosses a boundary looks like.

    Attributes:
        strides: How it lies in memory, without gaps, at both ends; None: row by row.
    """

    size: tuple[int, ...]
    dtype: torch.dtype
    strides: tuple[int, ...] | None = None

    @property
    def num_elements(self) -> int:
        """The number of its elements."""
        return math.prod(self.size)

    def flat(self, tensor: Tensor) -> Tensor:
        """Return what `tensor` holds, as it lies in memory, in one dimension; a copy where it lies otherwise."""
        if self.strides is None:
            return tensor.contiguous().view(-1)
        if tensor.stride() != self.strides:
            tensor = tensor.new_empty_strided(self.size, self.strides).copy_(tensor)
        return tensor.as_strided((self.num_elements,), (1,))

    def of(self, flat: Tensor) -> Tensor:
        """Return the tensor that `flat` holds, in the same memory."""
        return flat.view(self.size) if self.strides is None else flat.as_strided(self.size, self.strides)


@dataclass(frozen=True, slots=True)
class _Incoming:
    """A message that was asked for.

    Attributes:
        proof: How many messages to the peer must have arrived if this one has.
        number: Number of the meeting, on its channel.
    """

    work: dist.Work
    buffer: Tensor
    peer: int
    proof: int
    number: int


class ProcessGroupTransport(Transport):
    """A rank's ends of its channels, over a process group of torch.

    Args:
        rank: This rank.
        programs: The lowered lists of the ranks that send to this one; they say in which order, and when a message of
            ours must have arrived there.
        num_stages: Number of stages of the whole pipeline.
        shapes: ``shapes[s]`` is the tensor between stage s and s + 1, either way.
        device: Where this rank computes.
        groups: The process group of every channel, by (sender, receiver).
        is_staged: Whether messages go through pinned host memory: gloo between ranks on GPUs.
        timeout_s: How long one message, or one sum over replicas, may keep a rank waiting.
        reduce_groups: The process group of the replicas of every stage that is reduced.
        compression: Compression of the messages between stages; None for none. Not over NCCL, which could only know
            what a message says by waiting for the device.
        are_held: Whether the lists are in memory.
    """

    def __init__(
        self,
        rank: int,
        programs: Mapping[int, Iterable[Op]],
        num_stages: int,
        shapes: Mapping[int, TensorShape],
        device: torch.device,
        groups: Mapping[tuple[int, int], dist.ProcessGroup | None],
        is_staged: bool,
        timeout_s: float,
        reduce_groups: Mapping[int, dist.ProcessGroup] | None = None,
        compression: MessagePrecision | None = None,
        *,
        are_held: bool = False,
    ) -> None:
        self._rank = rank
        self._shapes = shapes
        self._device = device
        self._buffer_device = torch.device("cpu") if is_staged else device
        self._pin = is_staged and device.type == "cuda"
        self._is_staged = is_staged
        self._groups = groups
        self._all_reduce = StageAllReduce(reduce_groups or {}, self._staged, self._unstaged, self._wait)
        self._timeout = timedelta(seconds=timeout_s)
        self._compression = compression
        self._posted: dict[Message, _Incoming] = {}
        self._under_way: defaultdict[int, deque[tuple[tuple[dist.Work, Tensor], ...]]] = defaultdict(deque)
        self._meetings = Meetings()
        self._arrived: Counter[int] = Counter()
        self._all_letters = {
            peer: Acknowledgements(program, peer, rank, num_stages, is_held=are_held)
            for peer, program in programs.items()
            if peer != rank
        }
        self._letters: dict[int, Iterator[tuple[Message, int]]] = {}

    def send(self, op: Send, tensor: Tensor) -> None:
        shape = self._shapes[op.message.origin]
        if (tuple(tensor.shape), tensor.dtype) != (shape.size, shape.dtype):
            raise ExecutionError(
                f"{op}: got a tensor of {tensor.dtype}, {tuple(tensor.shape)}, expected {shape.dtype}, {shape.size}, "
                "as the stage gave it before the run; its shape must not change"
            )
        _, number = self._meetings.send(self._rank, op.peer)
        if not self._is_compressed(shape):
            self._under_way[op.peer].append((self._isend(shape.flat(tensor), op.peer, _TAG),))
            return
        packed = pack(shape.flat(tensor))
        parts = [self._isend(packed.head, op.peer, _TAG)]
        if packed.rest is not None:
            parts.append(self._isend(packed.rest, op.peer, _REST_TAG + number))
        self._under_way[op.peer].append(tuple(parts))

    def _isend(self, tensor: Tensor, peer: int, tag: int) -> tuple[dist.Work, Tensor]:
        tensor = self._staged(tensor)
        with waiting_for(f"rank {peer} to be there for a message", peer):
            work = dist.isend(tensor, peer, group=self._groups[self._rank, peer], tag=tag)
        assert work is not None, "both ends are in the channel's group"
        return work, tensor

    def post(self, op: Recv) -> None:
        if op.peer not in self._letters:
            self._letters[op.peer] = iter(self._all_letters.get(op.peer, ()))
        sent, proof = next(self._letters[op.peer], (None, 0))
        if sent is None:
            raise ExecutionError(f"{op}: rank {op.peer} has no Send for it; give it one")
        require_expected(op, sent)
        shape = self._shapes[op.message.origin]
        if self._is_compressed(shape):
            size = shape.dtype.itemsize
            shape = TensorShape((head_bytes(shape.num_elements * size, size),), torch.uint8)
        work, buffer = self._irecv(shape, op.peer, _TAG)
        _, number = self._meetings.recv(self._rank, op.peer)
        self._posted[op.message] = _Incoming(work, buffer, op.peer, proof, number)

    def _irecv(self, shape: TensorShape, peer: int, tag: int) -> tuple[dist.Work, Tensor]:
        buffer = torch.empty(shape.num_elements, dtype=shape.dtype, device=self._buffer_device, pin_memory=self._pin)
        with waiting_for(f"rank {peer} to be there for a message", peer):
            work = dist.irecv(buffer, peer, group=self._groups[peer, self._rank], tag=tag)
        assert work is not None, "both ends are in the channel's group"
        return work, buffer

    def take(self, message: Message) -> Tensor | None:
        if message not in self._posted:
            raise ExecutionError(f"no Recv was posted for {message}")
        incoming, shape = self._posted.pop(message), self._shapes[message.origin]
        what = f"message {message.payload.value}{message.microbatch} of stage {message.stage} from rank {incoming.peer}"
        self._wait(incoming.work, what, incoming.peer)
        self._release(incoming.peer, incoming.proof)
        if self._is_compressed(shape):
            return self._unpacked(incoming, shape, what)
        return shape.of(self._unstaged(incoming.buffer))

    def _unpacked(self, incoming: _Incoming, shape: TensorShape, what: str) -> Tensor:
        """Return what a compressed message holds, after what is missing has come."""
        missing = rest_bytes(incoming.buffer, shape.num_elements, shape.dtype)
        rest = None
        if missing:
            work, rest = self._irecv(TensorShape((missing,), torch.uint8), incoming.peer, _REST_TAG + incoming.number)
            self._wait(work, f"the rest of {what}", incoming.peer)
        return shape.of(unpack(Packed(incoming.buffer, rest), shape.dtype, self._device))

    def _is_compressed(self, shape: TensorShape) -> bool:
        return self._compression is not None and is_compressed(shape.dtype)

    def reduce(self, op: Reduce, tensor: Tensor) -> PendingReduction:
        return self._all_reduce.post(op, tensor)

    def _staged(self, tensor: Tensor) -> Tensor:
        """Return `tensor` where messages start from: in pinned host memory if they are staged."""
        if not self._is_staged:
            return tensor
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._pin).copy_(tensor)

    def _unstaged(self, tensor: Tensor) -> Tensor:
        """Return what has come to where messages end, on the device."""
        return tensor.to(self._device, non_blocking=True) if self._is_staged else tensor

    def flush(self) -> None:
        for peer, under_way in self._under_way.items():
            self._release(peer, self._arrived[peer] + len(under_way))
        self._arrived.clear()
        self._meetings.clear()
        self._letters.clear()

    def _release(self, peer: int, count: int) -> None:
        """Let go of the first `count` tensors sent to `peer`: they are known to have arrived."""
        while self._arrived[peer] < count:
            for work, tensor in self._under_way[peer].popleft():
                self._wait(work, f"a message of {tuple(tensor.shape)} to rank {peer}", peer)
            self._arrived[peer] += 1

    def _wait(self, work: dist.Work, what: str, whom: int = EVERYBODY) -> None:
        with waiting_for(what, whom):
            work.wait(self._timeout)


def make_groups(
    channels: Iterable[tuple[int, int]], backend: str, device: torch.device
) -> dict[tuple[int, int], dist.ProcessGroup | None]:
    """Make the process group of every channel, (sender, receiver); all ranks call this together, in the same order.

    None stands for the default group, which gloo's channels share: its messages are matched by sender and receiver.
    """
    if backend != "nccl":
        return dict.fromkeys(channels)
    groups: dict[tuple[int, int], dist.ProcessGroup | None] = {}
    for sender, receiver in channels:
        group = groups[sender, receiver] = dist.new_group([sender, receiver])
        # the first message of a communicator makes both ends meet: do that here, in one order for all
        token = torch.zeros(1, device=device)
        if dist.get_rank() == sender:
            dist.send(token, receiver, group=group)
        elif dist.get_rank() == receiver:
            dist.recv(token, sender, group=group)
    return groups
