"""Messages over NCCL, with a GPU and a process for every rank."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import final

import torch.distributed as dist

from pipesched.executor import EVERYBODY, waiting_for
from pipesched.executor.transport.channel_ends import ChannelEnds, RankChannels

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
