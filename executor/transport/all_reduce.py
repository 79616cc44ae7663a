"""The all-reduce of a stage's gradients over its replicas, by torch.distributed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import final

import torch.distributed as dist
from torch import Tensor

from pipesched.executor import waiting_for
from pipesched.executor.core import PendingReduction
from pipesched.schedules.ops import Reduce


@final
class StageAllReduce:
    """All-reduces of one rank.

    Args:
        groups: The process group of the replicas of every stage that is reduced, as from `Groups.of_replicas`.
        staged: Copies a tensor to the memory from which messages start.
        unstaged: Copies a sum back to the device.
        wait: Waits for work; also takes the awaited event in words.
    """

    def __init__(
        self,
        groups: Mapping[int, dist.ProcessGroup],
        staged: Callable[[Tensor], Tensor],
        unstaged: Callable[[Tensor], Tensor],
        wait: Callable[[dist.Work, str], None],
    ) -> None:
        self._groups = groups
        self._staged = staged
        self._unstaged = unstaged
        self._wait = wait

    def post(self, op: Reduce, tensor: Tensor) -> PendingReduction:
        """Post `tensor`, which must not change until the sum has arrived."""
        group = self._groups.get(op.stage)
        if group is None:
            return lambda: tensor  # no other rank has the stage
        ranks = dist.get_process_group_ranks(group)
        buffer = self._staged(tensor)
        what = f"the other replicas of stage {op.stage} on ranks {', '.join(map(str, ranks))}"
        with waiting_for(what):
            work = dist.all_reduce(buffer, group=group, async_op=True)
        assert work is not None, "this rank is in the group"
        return partial(self._take, work, buffer, what)

    def _take(self, work: dist.Work, buffer: Tensor, what: str) -> Tensor:
        self._wait(work, what)
        return self._unstaged(buffer)
