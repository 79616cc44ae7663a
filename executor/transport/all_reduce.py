"""The all-reduce of a stage's gradients over its replicas, by torch.distributed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import final

import torch
import torch.distributed as dist
from torch import Tensor

from pipesched.executor import waiting_for
from pipesched.executor.core import PendingReduction
from pipesched.schedules import Reduce


@final
class StageAllReduce:
    """All-reduces that one rank takes part in.

    Args:
        groups: The process group of the replicas of every stage that is reduced, as from `make_reduce_groups`.
        staged: Copies a tensor to where messages start from.
        unstaged: Copies a sum back to the device.
        wait: Waits for work; told what for.
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
        """Post `tensor`; until the sum is there, nobody may change it."""
        group = self._groups.get(op.stage)
        if group is None:
            return lambda: tensor  # nobody else has the stage
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


def make_reduce_groups(
    replicas: Mapping[int, Sequence[int]], backend: str, device: torch.device
) -> dict[int, dist.ProcessGroup]:
    """Make the process group of the `replicas` of every stage; all ranks call this together, in the same order.

    Each stage has its own, even where two share their ranks: lists that reduce them in different orders then wait for
    each other, and are found out, where one group would add up what does not belong together.
    """
    groups: dict[int, dist.ProcessGroup] = {}
    for stage, ranks in replicas.items():
        if len(ranks) == 1:
            continue
        group = dist.new_group(list(ranks))
        if dist.get_rank() in ranks:
            groups[stage] = group
            if backend == "nccl":  # the first sum makes the ranks meet: do that here, in one order for all
                dist.all_reduce(torch.zeros(1, device=device), group=group)
    return groups
