"""A lower bound of a candidate's seconds, without simulating its lists.

    rank 0   F0                                           ↗ B   Reduce Step
    rank 1      ↘ F0                                  ↗ B
    rank 2           ↘ F0 F1 ..  all its F and B .. B
             ├ ahead ─┤├─────────── busy ────────────┤├─ behind ┤├─── end ────┤

    a device        has all the work of its stages, and at the end a sum of gradients and a step
    a straight way  on rank k nothing starts before the first micro-batch came through the ranks before, and behind its
                    last backward the gradient goes back through them; messages on that way take their time,
                    plus the time of their hand-over
    1F1B            holds at most p - k micro-batches on rank k, so that the way from an F of rank k over the later
                    ranks to its B is taken at least ceil(M / (p - k)) times, one after the other
    all devices     together cannot do the work faster than the sum of their speeds
    an Overlap      hides at most the share of a forward or a backward that the costs state

A run without a flush is measured by its steady pace, so nothing is filled or drained in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import final

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Cluster, all_reduce
from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.schedules.ops import Compute, Message, Payload, Phase, Step
from pipesched.simulator import Estimate, Meaning, Precision
from pipesched.simulator.planner.stage_layout import StageLayout, layout_of
from pipesched.simulator.search import Setting, memory_excess


@final
class Bounds:
    """The bounds of candidates on one cluster, for all network options: these only make a run longer."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._reductions_s: dict[tuple[int, tuple[int, ...]], float] = {}
        self._seconds: dict[int, tuple[StageCosts, dict[tuple[Phase, int], float]]] = {}  # by identity of the costs

    def of(self, candidate: Setting, costs: StageCosts) -> Estimate:
        """Bound a step of a candidate by the bound of its slowest copy.

        Args:
            candidate: A schedule, its depth, width and micro-batches.
            costs: Costs of the stages that the candidate cuts the model into, for one micro-batch.

        Returns:
            The least seconds of an iteration, or of the pace of a run without a flush; and the least bytes by device,
            without the devices of copies that are like another copy. Seconds and bytes never exceed the prediction.

        Raises:
            ProfileError: The costs lack the seconds of a phase of the schedule.
        """
        form = layout_of(candidate)
        _, known_s = self._seconds.setdefault(id(costs), (costs, {}))
        seconds = 0.0
        least_bytes: dict[int, int] = {}
        for devices in self._unlike(candidate):
            copy = _Copy(candidate, form, costs, self._cluster, devices, known_s)
            ends_s = [
                self._reduction_s(candidate, stage, cost) + copy.step_s(stage)
                for stage, cost in enumerate(costs.stages)
            ]
            seconds = max(seconds, copy.least_s(ends_s))
            for rank, device in enumerate(devices):
                least_bytes[device] = copy.held_bytes(rank)
        over = memory_excess(least_bytes, self._cluster, at_least=True)
        meaning = Meaning.PACE if candidate.is_asynchronous else Meaning.ITERATION
        return Estimate(meaning, seconds, least_bytes, over, precision=Precision.BOUND)

    def _unlike(self, candidate: Setting) -> list[tuple[int, ...]]:
        """Return the devices of each distinct kind of copy."""
        devices_of: dict[tuple[tuple[float, int | None], ...], tuple[int, ...]] = {}
        for copy in range(candidate.width):
            devices = tuple(candidate.device(rank, copy) for rank in range(candidate.num_ranks))
            kinds = tuple((self._cluster.devices[d].speed, self._cluster.devices[d].memory_bytes) for d in devices)
            devices_of.setdefault(kinds, devices)
        return list(devices_of.values())

    def _reduction_s(self, candidate: Setting, stage: int, cost: StageCost) -> float:
        """Return the time in which all replicas of a stage sum its gradients."""
        ranks = layout_of(candidate).homes[stage]
        devices = tuple(candidate.device(rank, copy) for copy in range(candidate.width) for rank in ranks)
        key = cost.weight_bytes, devices
        if key not in self._reductions_s:
            self._reductions_s[key] = all_reduce(cost.weight_bytes, devices, self._cluster).seconds
        return self._reductions_s[key]


@dataclass(frozen=True)  # without slots: sums are kept beside the fields
class _Copy:
    """One copy of a pipeline on its devices; `known_s` caches seconds of ops at speed 1."""

    candidate: Setting
    form: StageLayout
    costs: StageCosts
    cluster: Cluster
    devices: tuple[int, ...]
    known_s: dict[tuple[Phase, int], float]

    def least_s(self, ends_s: Sequence[float]) -> float:
        """Return the least seconds of a step.

        Args:
            ends_s: Seconds of each stage's reduction of gradients and its step, in sum.
        """
        count, speeds = self.candidate.num_microbatches, [self.cluster.devices[d].speed for d in self.devices]
        seconds = count * self._work_s(range(self.form.num_stages)) / sum(speeds)
        for stage, ranks in enumerate(self.form.homes):
            seconds = max(seconds, count * self._work_s([stage]) / sum(speeds[rank] for rank in ranks))
        if self.form.is_straight:
            of_rank = self._paced_s if self.candidate.is_asynchronous else self._flushed_s
            seconds = max(seconds, *(of_rank(rank, ends_s) for rank in range(len(speeds))))
        return seconds

    def _paced_s(self, rank: int, ends_s: Sequence[float]) -> float:  # noqa: ARG002 -- as `_flushed_s`
        """Return the least pace of a rank that never drains."""
        steps_s = sum(map(self.step_s, self.form.stages[rank]))
        round_s = self._round_s(rank) / (self.candidate.num_ranks - rank) if self.form.goes_round else 0.0
        return max(self._busy_s(rank) + steps_s, self.candidate.num_microbatches * round_s)

    def _flushed_s(self, rank: int, ends_s: Sequence[float]) -> float:
        """Return the least time from the start, through a rank, to the end."""
        stages, count = self.form.stages[rank], self.candidate.num_microbatches
        ahead_s, behind_s = self._ahead_s[min(stages)], self._behind_s[min(stages)]
        busy_s = self._busy_s(rank)
        seconds = busy_s + min(ends_s[stage] for stage in stages)
        if self.form.splits:  # W may come when the last gradient has gone on
            busy_s -= count * sum(self._seconds(Phase.BACKWARD_WEIGHT, stage) for stage in stages)
        seconds = max(seconds, busy_s + behind_s + ends_s[0])
        if self.form.goes_round:
            rounds = math.ceil(count / min(count, self.candidate.num_ranks - rank))
            seconds = max(seconds, rounds * self._round_s(rank) + behind_s + ends_s[0])
        return ahead_s + seconds

    def held_bytes(self, rank: int) -> int:
        """Return weights and optimizer state, plus the larger of gradients and the peak memory of B."""
        costs = [self.costs.stages[stage] for stage in self.form.stages[rank]]
        fixed = sum(cost.weight_bytes + cost.optimizer_bytes for cost in costs)
        count = 1
        if len(costs) == 1 and not self.candidate.recomputes:
            count = self.form.in_flight(rank, self.candidate.num_microbatches)
        activations = [count * cost.saved_bytes + cost.working_bytes for cost in costs]
        gradients: list[int] = [cost.said("gradient_bytes") for cost in costs]
        return fixed + max(*activations, *gradients)

    def speed(self, stage: int) -> float:
        """Return the speed of the fastest device that holds a stage."""
        return max(self.cluster.devices[self.devices[rank]].speed for rank in self.form.homes[stage])

    def _busy_s(self, rank: int) -> float:
        """Return all the work of a rank."""
        work_s = self._work_s(self.form.stages[rank])
        return self.candidate.num_microbatches * work_s / self.cluster.devices[self.devices[rank]].speed

    def _round_s(self, rank: int) -> float:
        """Return the time from the start of F on a rank to the end of B or I there, of one micro-batch."""
        last = self.form.num_stages - 1
        ways_s = self._ahead_s[last] - self._ahead_s[rank] + self._behind_s[last] - self._behind_s[rank]
        return ways_s + self._seconds(Phase.FORWARD, last) + self._back_s(last)

    @cached_property
    def _ahead_s(self) -> list[float]:
        """For each stage, the time from the start of F on the first stage to the arrival of its activation."""
        stages = range(self.form.num_stages - 1)
        return [0.0, *accumulate(self._seconds(Phase.FORWARD, stage) + self._crossing_s(stage) for stage in stages)]

    @cached_property
    def _behind_s(self) -> list[float]:
        """For each stage, the time from the end of its B or I to the end of B or I on the first stage."""
        stages = range(self.form.num_stages - 1)
        return [0.0, *accumulate(self._back_s(stage) + self._return_s(stage) for stage in stages)]

    def _crossing_s(self, stage: int) -> float:
        """Return the time of an activation from a stage to the next."""
        message = Message(Payload.ACTIVATION, stage, 0)
        return self._message_s(self.form.homes[stage][0], self.form.homes[stage + 1][0], message)

    def _return_s(self, stage: int) -> float:
        """Return the time of the gradient of a stage's output on the way back, perhaps over another link."""
        message = Message(Payload.GRADIENT, stage + 1, 0)
        return self._message_s(self.form.homes[stage + 1][0], self.form.homes[stage][0], message)

    def _message_s(self, source: int, target: int, message: Message) -> float:
        if source == target:
            return 0.0
        ends = self.devices[source], self.devices[target]
        num_bytes = self.costs.message_bytes(message)
        hand_over = self.cluster.hand_over_s(*ends, num_bytes)
        return self.cluster.link(*ends).transfer_s(num_bytes) + hand_over.send_s + hand_over.receive_s

    def step_s(self, stage: int) -> float:
        """Return the time of a Step that keeps no copy of the old weights."""
        return self.costs.seconds(Step(stage)) / self.speed(stage)

    def _work_s(self, stages: Iterable[int]) -> float:
        """Return the time of a micro-batch on some stages, at speed 1, if all its forwards and backwards overlap."""
        forward_s = again_s = backward_s = 0.0
        for stage in stages:
            forward_s += self._known_s(Phase.FORWARD, stage)
            ways_s = [sum(self._known_s(phase, stage) for phase in way) for way in self.form.backwards]
            backward_s += min(ways_s) or self._known_s(Phase.BACKWARD, stage)
            again_s += self._known_s(Phase.RECOMPUTE, stage) if self.candidate.recomputes else 0.0
        hidden_s = self.costs.overlap * min(forward_s, backward_s) if self.form.overlaps else 0.0
        return forward_s + again_s + backward_s - hidden_s

    def _back_s(self, stage: int) -> float:
        """Return the time from the gradient of a stage's output to the gradient of its input: B or I, and a late R."""
        again_s = self._seconds(Phase.RECOMPUTE, stage) if self.candidate.recompute_when == "late" else 0.0
        return again_s + min(self._seconds(way[0], stage) for way in self.form.backwards)

    def _seconds(self, phase: Phase, stage: int) -> float:
        return self._known_s(phase, stage) / self.speed(stage)

    def _known_s(self, phase: Phase, stage: int) -> float:
        """Return the seconds of an op at speed 1, or 0 if the costs lack them; the prediction then raises the error."""
        key = phase, stage
        if key not in self.known_s:
            try:
                self.known_s[key] = self.costs.seconds(Compute(phase, stage, 0))
            except ProfileError:
                self.known_s[key] = 0.0
        return self.known_s[key]
