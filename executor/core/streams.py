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
from functools import cache
from importlib import import_module
from typing import Any, TypeAlias, final

import torch
from torch import Tensor

from pipesched.executor import NOBODY, ExecutionError
from pipesched.profiles.models import Value, mapped, tensors_of

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
    def fetch(self, value: Value, ready: Signal, peer: int) -> tuple[Value, Signal]:
        """Copy the tensors of a value of `peer` to the rank's device, beside its ops.

        Args:
            value: The peer's value; the memory of its tensors is not reused before the copy.
            ready: Event behind the ops that write to these tensors.
            peer: The rank that has made `value`.

        Returns:
            The copy, and the event behind it.
        """

    @abstractmethod
    def is_idle(self) -> bool:
        """Return whether the stream of the rank's ops has no work; do not wait."""

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

    def fetch(self, value: Value, ready: Signal, peer: int) -> tuple[Value, Signal]:  # noqa: ARG002
        return value, ready

    def is_idle(self) -> bool:
        return True

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
        device: GPU of the rank.
    """

    are_behind = True

    def __init__(self, device: torch.device, stream: torch.cuda.Stream | None = None, cuda: Any = torch.cuda) -> None:
        self.on_wait: Callable[[int], None] = lambda whom: None  # noqa: ARG005 -- nobody need listen
        self.device = device
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

    def fetch(self, value: Value, ready: Signal, peer: int) -> tuple[Value, Signal]:
        tensors = tensors_of(value)
        # torch copies between GPUs on the current stream of the source, which the current one of the target waits for
        source = self._copies(peer, tensors[0].device if tensors else self.device)
        target = self._copies(peer, self.device)

        def copied(tensor: Tensor) -> Tensor:
            copy = torch.empty_like(tensor, device=self.device).copy_(tensor.detach(), non_blocking=True)
            return copy.requires_grad_(tensor.requires_grad)

        source.wait_event(ready)
        with self._cuda.stream(source), self._cuda.stream(target):
            copy = mapped(copied, value)
        for tensor in tensors:
            self._keep(tensor, source)
        for tensor in tensors_of(copy):
            self._keep(tensor, self._stream)
        done = self._cuda.Event()
        done.record(target)
        return copy, done

    def is_idle(self) -> bool:
        return bool(self._stream.query())

    def synchronize(self) -> None:
        self._cuda.synchronize(self.device)

    def _copies(self, peer: int, device: torch.device) -> Any:
        if (peer, device) not in self._copying:
            self._copying[peer, device] = self._cuda.Stream(device)
        return self._copying[peer, device]

    def _keep(self, tensor: Tensor, stream: Any) -> None:
        """Let the allocator reuse the memory of `tensor` only after all work that is already launched on `stream`."""
        tensor.record_stream(stream)


_SM_STEP = 8
"""SMs that Hopper and later GPUs split by."""


@cache
def green_streams(device: torch.device, num_shares: int) -> tuple[torch.cuda.Stream, ...]:
    """Return a stream for each of equal shares of a GPU's multiprocessors (SMs); some SMs may be left idle.

    `torch.cuda.green_contexts` takes every share from the same first SMs. Here the driver splits a GPU once into equal
    shares (green contexts), and makes a stream of each, which works as any other stream.

    Raises:
        ExecutionError: The driver, or the Python package, knows no green contexts, or the GPU has too few SMs.
    """
    torch.cuda.init()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return tuple(
        torch.cuda.ExternalStream(pointer, device=device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        for pointer in green_pointers(device.index, num_shares)
    )


def green_pointers(index: int, num_shares: int, load: Callable[[str], Any] = import_module) -> list[int]:
    """Return the addresses of the streams of `green_streams`.

    Args:
        index: Index of the GPU.
        num_shares: Number of shares.
        load: Imports the bindings of the CUDA driver.
    """
    try:
        driver = load("cuda.bindings.driver")
    except ImportError as error:
        raise ExecutionError(
            f"green contexts: got no CUDA driver for Python ({error}), expected the package cuda-bindings; install the "
            "package, or leave green contexts out"
        ) from None
    try:
        gpu = _value(driver.cuDeviceGet(index))
        whole = _value(driver.cuDeviceGetDevResource(gpu, driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))
        pointers = []
        for part in _equal_parts(driver, whole, num_shares):
            text = _value(driver.cuDevResourceGenerateDesc([part], 1))
            flags = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
            context = _value(driver.cuGreenCtxCreate(text, gpu, flags))
            flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
            pointers.append(int(_value(driver.cuGreenCtxStreamCreate(context, flags, 0))))
    except (AttributeError, RuntimeError) as error:  # of the bindings, where the driver lacks a function
        raise ExecutionError(
            f"green contexts: got a driver without them ({error}), expected CUDA 12.4; leave green contexts out"
        ) from None
    return pointers


def _equal_parts(driver: Any, whole: Any, num_shares: int) -> list[Any]:
    """Return the largest equal shares of the SMs of `whole` that the driver can make."""
    num_sms = whole.sm.smCount
    for share in range(num_sms // num_shares // _SM_STEP * _SM_STEP, 0, -_SM_STEP):
        parts, count, _ = _values(driver.cuDevSmResourceSplitByCount(num_shares, whole, 0, share))
        if count == num_shares:
            return list(parts)
    raise ExecutionError(
        f"green contexts: got {num_shares} ranks on a GPU of {num_sms} SMs, expected {_SM_STEP} SMs for each; leave "
        "green contexts out"
    )


def _value(answer: tuple[Any, Any]) -> Any:
    """Return the value in an answer of the driver that contains a status and a value."""
    return _values(answer)[0]


def _values(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values of an answer of the driver, which begins with an error code."""
    code, *values = answer
    if int(code):
        raise ExecutionError(
            f"green contexts: got error {int(code)} of the CUDA driver ({code.name}), expected none; leave green "
            "contexts out"
        )
    return tuple(values)
