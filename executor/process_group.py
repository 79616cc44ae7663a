"""Messages over torch.distributed: gloo on CPUs, NCCL with a GPU per rank, gloo from pinned memory on shared GPUs.

Every directed pair of ranks is a channel of its own, in order: the k-th Send meets the k-th Recv. Under NCCL each
channel has its own communicator, so that two ranks that send to each other at once do not wait for one another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from executor.errors import ExecutionError, waiting_for
from executor.transport import Transport, require_same
from schedules.op import Message, Op, Recv, Send, computes, needs

_TAG = 7


@dataclass(frozen=True, slots=True)
class Shape:
    """What the tensor that crosses a boundary looks like."""

    size: tuple[int, ...]
    dtype: torch.dtype


class ProcessGroupTransport(Transport):
    """One rank's end of its channels.

    Args:
        rank: This rank.
        programs: The lowered list of every rank; a peer's tells when a message of ours must have arrived there.
        num_stages: Of the whole pipeline.
        shapes: ``shapes[s]`` is the tensor between stage s and s + 1, either way.
        device: Where this rank computes.
        groups: The process group of every channel, by (sender, receiver).
        is_staged: Whether messages go through pinned host memory: gloo between ranks on GPUs.
        timeout_s: How long one message may keep a rank waiting.
    """

    def __init__(
        self,
        rank: int,
        programs: Sequence[Sequence[Op]],
        num_stages: int,
        shapes: Mapping[int, Shape],
        device: torch.device,
        groups: Mapping[tuple[int, int], dist.ProcessGroup | None],
        is_staged: bool,
        timeout_s: float,
    ) -> None:
        self._rank = rank
        self._shapes = shapes
        self._device = device
        self._buffer_device = torch.device("cpu") if is_staged else device
        self._pin = is_staged and device.type == "cuda"
        self._is_staged = is_staged
        self._groups = groups
        self._timeout = timedelta(seconds=timeout_s)
        self._posted: dict[Message, tuple[dist.Work, Tensor, int]] = {}
        peers = {op.peer for op in programs[rank] if isinstance(op, Send | Recv)}
        self._under_way: dict[int, deque[tuple[dist.Work, Tensor]]] = {peer: deque() for peer in peers}
        self._arrived = dict.fromkeys(peers, 0)
        self._num_posted = dict.fromkeys(peers, 0)
        self._sends = {
            peer: [op.message for op in programs[peer] if isinstance(op, Send) and op.peer == rank] for peer in peers
        }
        self._proofs = {
            message: count for peer in peers for message, count in _proofs(programs[peer], rank, num_stages).items()
        }

    def send(self, op: Send, tensor: Tensor) -> None:
        shape = self._shape(op.message)
        if (tuple(tensor.shape), tensor.dtype) != (shape.size, shape.dtype):
            raise ExecutionError(
                f"{op}: got a tensor of {tensor.dtype}, {tuple(tensor.shape)}, expected {shape.dtype}, {shape.size}, "
                "as the stage gave it before the run; its shape must not change"
            )
        tensor = tensor.contiguous()
        if self._is_staged:
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._pin)
            tensor = host.copy_(tensor)
        work = dist.isend(tensor, op.peer, group=self._groups[self._rank, op.peer], tag=_TAG)
        assert work is not None, "both ends are in the channel's group"
        self._under_way[op.peer].append((work, tensor))

    def post(self, op: Recv) -> None:
        place = self._num_posted[op.peer]
        if place >= len(self._sends[op.peer]):
            raise ExecutionError(f"{op}: rank {op.peer} has no Send for it; give it one")
        require_same(op, self._sends[op.peer][place])
        self._num_posted[op.peer] += 1
        shape = self._shape(op.message)
        buffer = torch.empty(shape.size, dtype=shape.dtype, device=self._buffer_device, pin_memory=self._pin)
        work = dist.irecv(buffer, op.peer, group=self._groups[op.peer, self._rank], tag=_TAG)
        assert work is not None, "both ends are in the channel's group"
        self._posted[op.message] = (work, buffer, op.peer)

    def take(self, message: Message) -> Tensor | None:
        if message not in self._posted:
            raise ExecutionError(f"no Recv was posted for {message}")
        work, buffer, peer = self._posted.pop(message)
        self._wait(
            work, f"message {message.payload.value}{message.microbatch} of stage {message.stage} from rank {peer}"
        )
        self._release(peer, self._proofs.get(message, 0))
        return buffer.to(self._device, non_blocking=True) if self._is_staged else buffer

    def _shape(self, message: Message) -> Shape:
        return self._shapes[min(message.stage, message.receiver)]

    def flush(self) -> None:
        for peer, under_way in self._under_way.items():
            self._release(peer, self._arrived[peer] + len(under_way))
            self._arrived[peer] = self._num_posted[peer] = 0

    def _release(self, peer: int, count: int) -> None:
        """Let go of the first `count` tensors sent to `peer`: they are known to have arrived."""
        while self._arrived[peer] < count:
            work, tensor = self._under_way[peer].popleft()
            self._wait(work, f"a message of {tuple(tensor.shape)} to rank {peer}")
            self._arrived[peer] += 1

    def _wait(self, work: dist.Work, what: str) -> None:
        with waiting_for(what):
            work.wait(self._timeout)


def _proofs(ops: Sequence[Op], me: int, num_stages: int) -> dict[Message, int]:
    """Return, for each message that a peer sends me, how many of mine it has used by then.

    Gloo cannot be asked whether a message has left; but when such an answer comes, those have, and their tensors
    can be let go long before the end of the list.
    """
    places = {op.message: k for k, op in enumerate(op for op in ops if isinstance(op, Recv) and op.peer == me)}
    used, found = 0, {}
    for op in ops:
        for part in computes(op):
            for message in needs(part, num_stages):
                if message.stage != part.stage and message in places:
                    used = max(used, places[message] + 1)
        if isinstance(op, Send) and op.peer == me:
            found[op.message] = used
    return found


def make_groups(
    programs: Sequence[Sequence[Op]], backend: str, device: torch.device
) -> dict[tuple[int, int], dist.ProcessGroup | None]:
    """Make the process group of every channel in `programs`; all ranks call this together.

    None stands for the default group, which gloo's channels share: its messages are matched by sender and receiver.
    """
    channels = sorted({(rank, op.peer) for rank, ops in enumerate(programs) for op in ops if isinstance(op, Send)})
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
