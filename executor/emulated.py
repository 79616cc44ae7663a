"""A stage that only takes the time a profile says: many ranks on few cores, with real messages."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from pipesched.executor.buckets import Bucket, buckets
from pipesched.executor.errors import ExecutionError
from pipesched.executor.job import How
from pipesched.executor.stage import Stage
from pipesched.profiles.stage_costs import StageCosts
from pipesched.schedules.op import Compute, Phase, gives
from pipesched.schedules.timeline import LONGEST_S

_SPIN_S = 0.0002
"""A sleeper wakes up late, by a tenth of a millisecond: the last bit is spun. No more of it: where ranks outnumber the
cores, a spinning one keeps another from its message."""


class EmulatedStage(Stage):
    """Takes ``costs.seconds(op)`` for an op and gives a tensor of the right number of bytes.

    Args:
        index: The stage's number.
        costs: What its ops take.
        how: Whether to sleep or to spin.
        stashing: Of each of its Steps, whether it keeps a copy of the weights that it replaces.
        speed: Of its device: the seconds of the costs are divided by it.
        most_bytes: That a tensor really has, whatever the costs say.
    """

    def __init__(
        self,
        index: int,
        costs: StageCosts,
        how: How = "sleep",
        stashing: Sequence[bool] = (),
        speed: float = 1.0,
        most_bytes: int = sys.maxsize,
    ) -> None:
        self._costs = costs
        self._speed = speed
        self._copy_s = costs.stages[index].copy_s
        self._stashing = stashing
        self._num_steps = 0
        self._weight_bytes = min(most_bytes, costs.stages[index].weight_bytes)
        self._step_s = costs.stages[index].step_s
        self._average_s = costs.stages[index].average_s
        self._how = how
        self._outputs = {
            phase: torch.zeros(min(most_bytes, costs.message_bytes(message)), dtype=torch.uint8)
            for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD_INPUT)
            if (message := gives(Compute(phase, index, 0))) and 0 <= message.receiver < costs.num_stages
        }

    def begin(self) -> None:
        self._num_steps = 0

    def compute(self, op: Compute, received: Tensor | None, target: Tensor | None) -> Tensor | None:  # noqa: ARG002 -- time is all it takes
        self._spend(self._costs.seconds(op))
        return self._outputs.get(op.phase)

    def gradients(self) -> Iterable[Bucket]:
        return buckets([torch.zeros(self._weight_bytes, dtype=torch.uint8)])

    def step(self) -> None:
        keeps = any(self._stashing[self._num_steps : self._num_steps + 1])
        self._num_steps += 1
        self._spend(self._step_s + (self._copy_s if keeps else 0.0))

    def average(self) -> None:
        self._spend(self._average_s)

    def settle(self) -> None:
        """Nothing to take: there are no weights."""

    def _spend(self, seconds: float) -> None:
        wait_until(time.perf_counter() + seconds / self._speed, self._how)


def wait_until(end_s: float, how: How = "sleep") -> None:
    """Return when `time.perf_counter` says `end_s`.

    Raises:
        ExecutionError: That is more than `LONGEST_S` from now.
    """
    nap_s = end_s - time.perf_counter() - _SPIN_S
    if not nap_s <= LONGEST_S:
        raise ExecutionError(
            f"got {nap_s:.3g} s to emulate, expected at most a week ({LONGEST_S:g}); try smaller costs"
        )
    if how == "sleep" and nap_s > 0:
        time.sleep(nap_s)
    while time.perf_counter() < end_s:
        pass
