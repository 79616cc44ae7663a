"""The losses of a batch on their way from the ranks with the last stage to all others.

The last stage knows the loss of a batch before the first stage begins its last backward. So its message is there when
the other ranks read it, and no rank waits for another one at the end of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import final

import torch
import torch.distributed as dist
from torch import Tensor

from pipesched.executor import ExecutionError, waiting_for
from pipesched.profiles import DTYPES
from pipesched.profiles.models import torch_dtype

_TAG = 6
"""Number of the messages over gloo."""
_DTYPES = tuple(map(torch_dtype, DTYPES))


@final
class LossMail:
    """The messages about the losses of each batch.

    Args:
        rank: This rank.
        senders: Ranks with the last stage, in ascending order.
        num_ranks: All ranks.
        timeout_s: Longest wait for a message [s].
    """

    def __init__(self, rank: int, senders: Sequence[int], num_ranks: int, timeout_s: float) -> None:
        self._rank = rank
        self._senders = senders
        self._receivers = [other for other in range(num_ranks) if other != rank] if rank in senders else []
        self._timeout = timedelta(seconds=timeout_s)
        self._incoming: dict[int, tuple[dist.Work, Tensor]] = {}
        self._outgoing: list[tuple[dist.Work, Tensor]] = []

    def expect(self) -> None:
        """Post the receives of the next batch."""
        for sender in self._senders:
            if sender != self._rank:
                numbers = torch.empty(3, dtype=torch.float64)
                with waiting_for(f"rank {sender} to be there for a message", sender):
                    work = dist.irecv(numbers, sender, tag=_TAG)
                assert work is not None, "the default group has all ranks"
                self._incoming[sender] = (work, numbers)

    def send(self, total: float, dtype: torch.dtype, turn: int) -> None:
        """Post the sum of this rank's losses to all other ranks.

        Args:
            total: The sum.
            dtype: Type of a loss.
            turn: Number of the call of the loop.
        """
        for work, numbers in self._outgoing:  # of the last batch, which is over
            with waiting_for("the other ranks to read a loss"):
                work.wait(self._timeout)
            del numbers
        self._outgoing.clear()
        code = _DTYPES.index(dtype) if dtype in _DTYPES else 0
        numbers = torch.tensor([total, code, turn], dtype=torch.float64)
        for receiver in self._receivers:
            with waiting_for(f"rank {receiver} to be there for a message", receiver):
                sent = dist.isend(numbers, receiver, tag=_TAG)
            assert sent is not None, "the default group has all ranks"
            self._outgoing.append((sent, numbers))
        self._own = numbers

    def total(self, turn: int) -> tuple[float, torch.dtype]:
        """Return the sum of the losses of all ranks, equal on each, and the type of a loss.

        Raises:
            ExecutionError: A sender is in another call of the loop.
            PeerLost: A message did not come.
        """
        parts = []
        for sender in self._senders:
            if sender == self._rank:
                parts.append(self._own)
                continue
            work, numbers = self._incoming.pop(sender)
            with waiting_for(f"the loss of rank {sender}", sender):
                work.wait(self._timeout)
            if (number := int(numbers[2])) != turn:
                raise ExecutionError(
                    f"rank {self._rank}: got call {turn} on this rank and call {number} on rank {sender}, expected the "
                    "same calls in the same order in every process"
                )
            parts.append(numbers)
        return sum(float(part[0]) for part in parts), _DTYPES[int(parts[0][1])]
