"""The process groups of a run: one for each channel over NCCL, and one for the ranks of each sum."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from inspect import signature
from threading import Thread
from typing import Any, final

import torch
import torch.distributed as dist

from pipesched.schedules.common import LONGEST_S
from pipesched.schedules.ops import Group

_WATCHDOG = timedelta(seconds=10 * LONGEST_S)
"""The time-out of NCCL's watchdog, which counts from the post of a message: far above any ``--timeout``. The supervisor
finds, names and ends a rank that stands still."""
_MIN_CTAS, _MAX_CTAS = 1, 4
"""Thread blocks of a channel's kernels. A posted Recv holds its blocks, and their SMs, until the message comes."""
_WARM_UP_ELEMENTS = (1, 2**22)
"""Elements of the sums that connect replicas: NCCL reconnects them for the algorithm of large sums."""
_ABORT_S = 5.0
"""Longest time for the abort of communicators [s]."""


@final
class Groups:
    """The process groups of a run. Each is made when a list first needs it, and kept for all lists that follow.

    All ranks request the same groups in the same order. Under gloo the channels share the default group, which matches
    messages by sender and receiver. Under NCCL each channel has its own communicator, so that two ranks that send to
    each other at once do not wait for one another. The default group stays gloo's, and carries all other messages
    between ranks, so no communicator has all ranks.

    Args:
        backend: ``gloo`` or ``nccl``.
        device: Device of the rank; NCCL's groups are bound to it.
    """

    def __init__(self, backend: str, device: torch.device) -> None:
        self._backend = backend
        self._device = device
        self._channels: dict[tuple[int, int], Any] = {}
        self._sums: dict[tuple[Group, tuple[int, ...]], Any] = {}

    def of_channels(self, channels: Iterable[tuple[int, int]]) -> Mapping[tuple[int, int], dist.ProcessGroup]:
        """Return the groups of channels, (sender, receiver); under NCCL only, where all ranks call this together."""
        for sender, receiver in channels:
            if (sender, receiver) not in self._channels:
                group = self._channels[sender, receiver] = self._new((sender, receiver), _channel_options)
                # the first message of a communicator makes both ends meet: do that here, in one order for all
                if dist.get_rank() == sender:
                    dist.send(torch.zeros(1, device=self._device), receiver, group=group)
                elif dist.get_rank() == receiver:
                    dist.recv(torch.zeros(1, device=self._device), sender, group=group)
        return self._channels

    def of_sums(self, sums: Mapping[Group, Sequence[int]]) -> dict[Group, dist.ProcessGroup]:
        """Return the groups of all `sums` with a term of this rank, given their ranks; all ranks call this together.

        Each stage has its own group, even if two stages have the same ranks. Lists that reduce them in different orders
        then wait for each other, which is detected; one shared group would sum gradients of different stages.
        """
        groups: dict[Group, dist.ProcessGroup] = {}
        for group, ranks in sums.items():
            if len(ranks) == 1:
                continue
            if (group, tuple(ranks)) not in self._sums:
                self._sums[group, tuple(ranks)] = self._new_sum(ranks)
            if dist.get_rank() in ranks:
                groups[group] = self._sums[group, tuple(ranks)]
        return groups

    def _new_sum(self, ranks: Sequence[int]) -> Any:
        """Make the group of a sum; under NCCL, connect it now, because first sums would connect in no fixed order."""
        if self._backend == "gloo":
            return dist.new_group(list(ranks))
        group = self._new(ranks, _plain_options)
        if dist.get_rank() in ranks:
            for num_elements in _WARM_UP_ELEMENTS:
                dist.all_reduce(torch.zeros(num_elements, device=self._device), group=group)
        return group

    def _new(self, ranks: Sequence[int], options: Any) -> Any:
        """Make an NCCL group, bound to this rank's GPU: it then connects at once, and uses no other GPU.

        The default group is not bound to a GPU. If it were, PyTorch would split each new group off the default group,
        which gloo claims to support but does not. Before `new_group` took a device, a group took the GPU of its first
        message.
        """
        takes_device = "device_id" in signature(dist.new_group).parameters
        bound: dict[str, Any] = {"device_id": self._device} if takes_device else {}
        return dist.new_group(
            list(ranks),
            timeout=_WATCHDOG,
            backend=self._backend,
            pg_options=options() if self._backend == "nccl" else None,
            **bound,
        )

    def abort(self) -> None:
        """Abort the communicators, in a few seconds at most.

        All are aborted at once: NCCL frees one only when the kernels of the others are off the GPU, and these kernels
        stay until they are aborted, too.
        """
        groups = [group for group in (*self._channels.values(), *self._sums.values()) if _has_us(group)]
        threads = [Thread(target=_abort, args=(group,), daemon=True) for group in groups]
        for thread in threads:
            thread.start()
        until_s = time.monotonic() + _ABORT_S
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def destroy(self) -> None:
        """Destroy the groups, which no rank uses any more."""
        for group in (*self._channels.values(), *self._sums.values()):
            if _has_us(group):
                dist.destroy_process_group(group)

    @property
    def are_communicators(self) -> bool:
        """Whether there are groups that cannot be destroyed while a GPU is stuck."""
        return self._backend != "gloo" and bool(self._channels or self._sums)


def _has_us(group: object) -> bool:
    return group != dist.GroupMember.NON_GROUP_MEMBER


def _abort(group: dist.ProcessGroup) -> None:
    with suppress(Exception):  # the run has failed already, and its error is reported
        group.abort()


def _plain_options() -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = _WATCHDOG  # noqa: SLF001 -- without it, `new_group` warns that its own time-out overrides it
    return options


def _channel_options() -> Any:
    """Return the options of a channel: a stream of high priority, and few thread blocks if PyTorch supports that."""
    options = _plain_options()
    options.is_high_priority_stream = True
    config: Any = getattr(options, "config", None)
    if hasattr(config, "max_ctas"):
        config.min_ctas, config.max_ctas = _MIN_CTAS, _MAX_CTAS
    return options
