"""An emulated stage takes the time in a profile: many ranks run on few cores, with real messages."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence

import torch

from pipesched.executor import ExecutionError, How
from pipesched.executor.core import Stage, Term, buckets
from pipesched.profiles.costs import StageCosts, shared_slowdown
from pipesched.profiles.models import Value
from pipesched.schedules.common import LONGEST_S
from pipesched.schedules.ops import AnyWeightsOp, Compute, Op, Phase, Reduce, Step, Summed, gives, stages_of
from pipesched.schedules.weights import stashing_steps

_SPIN_S = 0.0002
"""Time at the end of a wait that is spun, as sleeps end late by a tenth of a millisecond [s]. A longer spin would delay
the messages of other ranks if ranks outnumber the cores."""


class EmulatedStage(Stage):
    """Takes ``costs.seconds(op)`` for an op and returns a tensor of the right number of bytes.

    Args:
        index: The stage's number.
        costs: Costs of its ops.
        how: Whether to sleep or to spin.
        stashing: For each of its Steps, whether the stage keeps a copy of the replaced weights.
        speed: Speed of the stage's device: divisor of the seconds of the costs.
        most_bytes: Largest real size of a tensor, whatever the costs.
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
        self._stashing = stashing
        self._num_steps = 0
        self._term_bytes = {
            Summed.GRADIENT: min(most_bytes, costs.stages[index].weight_bytes),
            Summed.TIED: min(most_bytes, max(1, costs.tied_bytes)),
            Summed.NORM: 1,
        }
        self._how = how
        self._outputs = {
            phase: torch.zeros(min(most_bytes, costs.message_bytes(message)), dtype=torch.uint8)
            for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD_INPUT)
            if (message := gives(Compute(phase, index, 0))) and 0 <= message.receiver < costs.num_stages
        }

    def begin(self) -> None:
        self._num_steps = 0

    def compute(self, op: Compute, received: Value | None, target: Value | None) -> Value | None:  # noqa: ARG002 -- time is all it takes
        self._spend(self._costs.seconds(op))
        return self._outputs.get(op.phase)

    def terms(self, op: Reduce) -> Iterable[Term]:
        return buckets([torch.zeros(self._term_bytes[op.content], dtype=torch.uint8)])

    def update(self, op: AnyWeightsOp) -> None:
        keeps = False
        if isinstance(op, Step):
            keeps = any(self._stashing[self._num_steps : self._num_steps + 1])
            self._num_steps += 1
        self._spend(self._costs.seconds(op, copies=keeps))

    def _spend(self, seconds: float) -> None:
        wait_until(time.perf_counter() + seconds / self._speed, self._how)


def wait_until(end_s: float, how: How = "sleep") -> None:
    """Return when `time.perf_counter` reaches `end_s`.

    Raises:
        ExecutionError: The time is more than `LONGEST_S` from now.
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


def emulated_stages(
    ops: Sequence[Op],
    costs: StageCosts,
    how: How,
    speed: float = 1.0,
    most_bytes: int = sys.maxsize,
    num_pipelines: int = 1,
) -> dict[int, Stage]:
    """Build stages that only take the time of `costs`, on a device of `speed`, with tensors of up to `most_bytes`.

    Args:
        ops: The op list of the rank.
        costs: Costs of all stages.
        how: Whether to sleep or to spin.
        speed: Speed of the device.
        most_bytes: Largest real size of a tensor.
        num_pipelines: Equal pipelines on the device: each op is as slow as beside the same op of all others, as for
            pipelines in lockstep.

    Raises:
        ExecutionError: The costs overlap two ops.
    """
    if costs.overlap:
        raise ExecutionError(
            f"costs ({costs.origin}): got overlap {costs.overlap:g}, expected 0 for emulation, which runs the two ops "
            "of an Overlap one after the other; set overlap to 0"
        )
    keeping = stashing_steps(ops)
    return {
        stage: EmulatedStage(
            stage,
            costs,
            how,
            [index in keeping for index, op in enumerate(ops) if op == Step(stage)],
            speed / shared_slowdown(num_pipelines, costs.stages[stage].utilisation),
            most_bytes,
        )
        for stage in stages_of(tuple(ops))
    }
