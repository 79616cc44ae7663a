"""The ends of a rank's channels over torch.distributed: messages under way, and the tensors that they keep.

Every directed pair of ranks is a channel of its own, in order: the k-th Send meets the k-th Recv.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from pipesched.executor import EVERYBODY, ExecutionError, waiting_for
from pipesched.executor.core import PendingReduction, Transport, require_expected
from pipesched.executor.transport.boundary_shapes import BoundaryShape, described
from pipesched.profiles.models import Value, tensors_of
from pipesched.schedules.ops import Group, Message, Op, Payload, Recv, Reduce, Send
from pipesched.schedules.semantics import Acknowledgements, Meetings

MESSAGE_TAG = 7
"""Number of the messages of a run over gloo."""

SentParts: TypeAlias = tuple[tuple[dist.Work, Tensor], ...]
"""The sends that one message takes, each with the tensor that it keeps."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message that the rank has posted a receive for.

    Attributes:
        proof: Number of messages to the peer that must have arrived if this one has.
        number: Number of the meeting, on its channel.
    """

    work: dist.Work
    buffer: Tensor
    peer: int
    proof: int
    number: int


@dataclass(frozen=True, slots=True)
class RankChannels:
    """The channels of a rank, for any transport.

    Attributes:
        rank: The rank.
        programs: Lowered lists of the ranks that send to the rank; they give the order of its messages, and when a
            message of the rank must have arrived.
        num_stages: Number of stages of the whole pipeline.
        shapes: ``shapes[s]`` is the value between stage s and s + 1.
        device: Device of the rank.
        reduce_groups: Process group of the ranks of each sum.
        num_terms: Number of stages of the rank in each sum over stages.
        are_held: Whether the lists are in memory.
        tag: Number of the messages over gloo; lists whose messages must not meet have different numbers.
    """

    rank: int
    programs: Mapping[int, Iterable[Op]]
    num_stages: int
    shapes: Mapping[int, BoundaryShape]
    device: torch.device
    reduce_groups: Mapping[Group, dist.ProcessGroup] = field(default_factory=dict)
    num_terms: Mapping[Group, int] = field(default_factory=dict)
    are_held: bool = False
    tag: int = MESSAGE_TAG


@dataclass(slots=True)
class _OwnTerms:
    """The terms of a rank in a sum over stages: each of its stages adds one, and then takes a sum of its own."""

    total: Tensor
    num_terms: int = 1
    take: PendingReduction | None = None
    summed: Tensor | None = None

    def take_sum(self) -> Tensor | None:
        assert self.take is not None, "all stages of a rank add their terms before one of them steps"
        if self.summed is None:
            self.summed = self.take()
        if self.summed is None:
            return None
        self.num_terms -= 1
        return self.summed.clone() if self.num_terms else self.summed  # a stage may change its own


class ChannelEnds(Transport):
    """A rank's ends of its channels, over process groups of torch.

    A sent tensor is kept until a message comes that the peer sends after it has used the tensor (`Acknowledgements`).
    """

    def __init__(self, channels: RankChannels) -> None:
        self._rank = rank = channels.rank
        self._shapes: dict[Payload, Mapping[int, BoundaryShape]] = {
            Payload.ACTIVATION: channels.shapes,
            Payload.GRADIENT: {index: shape.gradient for index, shape in channels.shapes.items()},
        }
        self._device = channels.device
        self._channels = channels
        self._own_terms: dict[Group, _OwnTerms] = {}
        self._posted: dict[Message, Incoming] = {}
        self._under_way: defaultdict[int, deque[SentParts]] = defaultdict(deque)
        self._meetings = Meetings()
        self._arrived: Counter[int] = Counter()
        self._all_letters = {
            peer: Acknowledgements(program, peer, rank, channels.num_stages, is_held=channels.are_held)
            for peer, program in channels.programs.items()
            if peer != rank
        }
        self._letters: dict[int, Iterator[tuple[Message, int]]] = {}

    @abstractmethod
    def _group(self, sender: int, receiver: int) -> dist.ProcessGroup | None:
        """Return the process group of a channel; None for the default group."""

    @abstractmethod
    def _wait(self, work: dist.Work, what: str, whom: int = EVERYBODY) -> None:
        """Wait for `work` before the rank reads its tensor."""

    def _staged(self, tensor: Tensor) -> Tensor:
        """Return `tensor` in the memory from which messages are sent."""
        return tensor

    def _unstaged(self, tensor: Tensor) -> Tensor:
        """Return `tensor`, which is in the memory of arriving messages, on the device."""
        return tensor

    def _shape_of(self, message: Message) -> BoundaryShape:
        return self._shapes[message.payload][message.origin]

    def _buffer(self, shape: BoundaryShape) -> Tensor:
        """Return room for a message, in one dimension."""
        return torch.empty(shape.num_elements, dtype=shape.dtype, device=self._device)

    def _wire_shape(self, shape: BoundaryShape) -> BoundaryShape:
        """Return the shape of the message that carries a value of `shape`."""
        return shape

    def _isend_parts(self, shape: BoundaryShape, value: Value, peer: int, number: int) -> SentParts:  # noqa: ARG002 -- gloo's messages have numbers
        """Post the message of a value, the `number`-th to `peer`."""
        return (self._isend(self._flat(shape, value), peer),)

    def _flat(self, shape: BoundaryShape, value: Value) -> Tensor:
        """Return the message of a value; its content is arbitrary if there is no tensor."""
        return shape.flat(value) if isinstance(value, Tensor) or tensors_of(value) else self._buffer(shape)

    def _value_of(self, incoming: Incoming, shape: BoundaryShape, what: str) -> Value:  # noqa: ARG002 -- for a subclass that waits for more
        """Return the value of `shape` in a message that has arrived."""
        return shape.of(self._unstaged(incoming.buffer))

    def send(self, op: Send, value: Value) -> None:
        shape = self._shape_of(op.message)
        if not shape.fits(value):
            raise ExecutionError(
                f"{op}: got {described(value)}, expected {shape}, the shape before the run; keep the shape of each "
                "output constant"
            )
        _, number = self._meetings.send(self._rank, op.peer)
        self._under_way[op.peer].append(self._isend_parts(shape, value, op.peer, number))

    def _isend(self, tensor: Tensor, peer: int, tag: int | None = None) -> tuple[dist.Work, Tensor]:
        tensor, tag = self._staged(tensor), self._channels.tag if tag is None else tag
        with waiting_for(f"rank {peer} to be there for a message", peer):
            work = dist.isend(tensor, peer, group=self._group(self._rank, peer), tag=tag)
        assert work is not None, "both ends are in the channel's group"
        return work, tensor

    def post(self, op: Recv) -> None:
        if op.peer not in self._letters:
            self._letters[op.peer] = iter(self._all_letters.get(op.peer, ()))
        sent, proof = next(self._letters[op.peer], (None, 0))
        if sent is None:
            raise ExecutionError(f"{op}: got no matching Send on rank {op.peer}, expected one; add the Send")
        require_expected(op, sent)
        work, buffer = self._irecv(self._wire_shape(self._shape_of(op.message)), op.peer)
        _, number = self._meetings.recv(self._rank, op.peer)
        self._posted[op.message] = Incoming(work, buffer, op.peer, proof, number)

    def _irecv(self, shape: BoundaryShape, peer: int, tag: int | None = None) -> tuple[dist.Work, Tensor]:
        buffer, tag = self._buffer(shape), self._channels.tag if tag is None else tag
        with waiting_for(f"rank {peer} to be there for a message", peer):
            work = dist.irecv(buffer, peer, group=self._group(peer, self._rank), tag=tag)
        assert work is not None, "both ends are in the channel's group"
        return work, buffer

    def take(self, message: Message) -> Value | None:
        if message not in self._posted:
            raise ExecutionError(f"got no posted Recv for {message}, expected one; check the lists")
        incoming, shape = self._posted.pop(message), self._shape_of(message)
        what = f"message {message.payload.value}{message.microbatch} of stage {message.stage} from rank {incoming.peer}"
        self._wait(incoming.work, what, incoming.peer)
        self._release(incoming.peer, incoming.proof)
        return self._value_of(incoming, shape, what)

    def reduce(self, op: Reduce, tensor: Tensor) -> PendingReduction:
        if not op.is_over_stages:
            return self._reduce(op, tensor)
        terms = self._own_terms.get(op.group)
        if terms is None:
            terms = self._own_terms[op.group] = _OwnTerms(tensor)
        else:
            terms.total, terms.num_terms = terms.total + tensor, terms.num_terms + 1
        if terms.num_terms == self._channels.num_terms.get(op.group, 1):
            terms.take = self._reduce(op, terms.total)
            del self._own_terms[op.group]
        return terms.take_sum

    def _reduce(self, op: Reduce, tensor: Tensor) -> PendingReduction:
        """Post the term of this rank."""
        group = self._channels.reduce_groups.get(op.group)
        if group is None:
            return lambda: tensor  # no other rank has a term
        buffer, ranks = self._staged(tensor), dist.get_process_group_ranks(group)
        whom = "stages" if op.is_over_stages else f"replicas of stage {op.stage}"
        what = f"the other {whom} on ranks {', '.join(map(str, ranks))}"
        with waiting_for(what):
            work = dist.all_reduce(buffer, group=group, async_op=True)
        assert work is not None, "this rank is in the group"
        return partial(self._take_sum, work, buffer, what)

    def _take_sum(self, work: dist.Work, buffer: Tensor, what: str) -> Tensor:
        self._wait(work, what)
        return self._unstaged(buffer)

    def flush(self) -> None:
        for peer, under_way in self._under_way.items():
            self._release(peer, self._arrived[peer] + len(under_way))
        self._arrived.clear()
        self._meetings.clear()
        self._letters.clear()

    def _release(self, peer: int, count: int) -> None:
        """Free the first `count` tensors sent to `peer`: they are known to have arrived."""
        while self._arrived[peer] < count:
            for work, tensor in self._under_way[peer].popleft():
                self._wait(work, f"a message of {tuple(tensor.shape)} to rank {peer}", peer)
            self._arrived[peer] += 1
