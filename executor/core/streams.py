"""Streams: the order in which a device does the work that one process launches for several ranks.

Each rank of the process has a stream of its own. A tensor goes from rank to rank as a copy:

    sender    ..F0 F1 F2..        record() behind F0: the event `ready`
    copies        └─ copy ─┐      fetch() waits for `ready` on a stream of its own, beside the ops of both ranks
    receiver             wait F0  wait() for the copy's event; the host never waits
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias, final

import torch
from torch import Tensor

from pipesched.executor import NOBODY

Signal: TypeAlias = Any
"""A torch.cuda.Event of any device; None on a CPU, where the work is over when its call returns."""


class RankStreams(ABC):
    """The streams of one rank: one for its ops, and one per peer for the tensors that it fetches.

    Attributes:
        are_behind: Whether a call may return when its op is launched but not finished; a rank's turn is then one
            launched op.
    """

    are_behind = False

    @abstractmethod
    def turn(self) -> AbstractContextManager[object]:
        """Launch work on the stream of the rank's ops inside the block."""

    @abstractmethod
    def record(self) -> Signal:
        """Return an event behind all ops launched so far."""

    @abstractmethod
    def wait(self, event: Signal, whom: int) -> None:
        """Let later ops begin after `event`, an event of rank `whom`, or of `EVERYBODY`."""

    @abstractmethod
    def fetch(self, tensor: Tensor, ready: Signal, peer: int) -> tuple[Tensor, Signal]:
        """Copy a tensor of `peer` to the rank's device, beside its ops.

        Args:
            tensor: The peer's tensor; its memory is not reused before the copy.
            ready: Event behind the ops that write to `tensor`.
            peer: The rank that has made `tensor`.

        Returns:
            The copy, and the event behind it.
        """

    @abstractmethod
    def synchronize(self) -> None:
        """Block the host until the device is idle."""


@final
class HostStreams(RankStreams):
    """The streams of a CPU rank: an op is over when its call returns, and a tensor is read where it is."""

    def turn(self) -> AbstractContextManager[object]:
        return _NOTHING

    def record(self) -> Signal:
        return None

    def wait(self, event: Signal, whom: int) -> None:
        """Do nothing."""

    def fetch(self, tensor: Tensor, ready: Signal, peer: int) -> tuple[Tensor, Signal]:  # noqa: ARG002
        return tensor, ready

    def synchronize(self) -> None:
        """Do nothing."""


_NOTHING: AbstractContextManager[None] = nullcontext()


class CudaStreams(RankStreams):
    """The CUDA streams of a rank.

    Args:
        device: GPU of the rank.
        stream: Stream of the rank's ops; None for a new one.
        cuda: The functions of torch.cuda.

    Attributes:
        on_wait: Called with the rank that the stream waits for, and then with `NOBODY`.
    """

    are_behind = True

    def __init__(self, device: torch.device, stream: torch.cuda.Stream | None = None, cuda: Any = torch.cuda) -> None:
        self.on_wait: Callable[[int], None] = lambda whom: None  # noqa: ARG005 -- nobody need listen
        self._device = device
        self._cuda = cuda
        self._stream = cuda.Stream(device) if stream is None else stream
        self._copying: dict[tuple[int, torch.device], Any] = {}

    def turn(self) -> AbstractContextManager[object]:
        return self._cuda.stream(self._stream)  # type: ignore[no-any-return]

    def record(self) -> Signal:
        event = self._cuda.Event()
        event.record(self._stream)
        return event

    def wait(self, event: Signal, whom: int) -> None:
        self.on_wait(whom)
        self._stream.wait_event(event)
        self.on_wait(NOBODY)

    def fetch(self, tensor: Tensor, ready: Signal, peer: int) -> tuple[Tensor, Signal]:
        # torch copies between GPUs on the current stream of the source, which the current one of the target waits for
        source, target = self._copies(peer, tensor.device), self._copies(peer, self._device)
        source.wait_event(ready)
        with self._cuda.stream(source), self._cuda.stream(target):
            copy = torch.empty_like(tensor, device=self._device).copy_(tensor, non_blocking=True)
        self._keep(tensor, source)
        self._keep(copy, self._stream)
        done = self._cuda.Event()
        done.record(target)
        return copy, done

    def synchronize(self) -> None:
        self._cuda.synchronize(self._device)

    def _copies(self, peer: int, device: torch.device) -> Any:
        if (peer, device) not in self._copying:
            self._copying[peer, device] = self._cuda.Stream(device)
        return self._copying[peer, device]

    def _keep(self, tensor: Tensor, stream: Any) -> None:
        """Let the allocator reuse the memory of `tensor` only after all work that is already launched on `stream`."""
        tensor.record_stream(stream)
