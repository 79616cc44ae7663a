"""The costs of a model's stages, as runs of it measured them.

A `RunCosts` is to a schedule what a `Profile` is: it says what the schedule's stages cost. Its seconds come from runs
alone: the means, as a makespan is a sum and the ops that ran long are in it. What runs do not tell, as bytes, and I and
W where only B was run, comes from a profile beside them, as bytes and as shares of B, or is not known.

A rank spends time on more than its ops: it posts and takes messages, and goes from op to op. That belongs to machines
(`RunCosts.cluster`), not to stages.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Cluster, Device, Link
from pipesched.profiles.costs.run_samples import WORK_KINDS, RunSamples
from pipesched.profiles.costs.spread import Spread, spread_of
from pipesched.profiles.costs.stage_costs import ADDED_UP, StageCost, StageCosts, added_up, with_input_share
from pipesched.profiles.costs.variation import Variation, variation_of
from pipesched.schedules import Schedule, Yardstick


@dataclass(frozen=True, slots=True)
class RunStage:
    """What the works of one stage took in runs.

    Attributes:
        work: Spread of the seconds of each kind of work that was seen: F, B, I, W, R, Step, Average; F always.
        profiled: What a profile says of the stage, for its bytes, copies and shares of B; None: nothing is said.
    """

    work: Mapping[str, Spread]
    profiled: StageCost | None = None

    def mean_s(self, kind: str) -> float | None:
        """Return what `kind` took in the mean [s]; None where it was not seen."""
        return self.work[kind].mean_s if kind in self.work else None


@dataclass(frozen=True, slots=True)
class RunCosts:
    """Every stage of a model.

    Attributes:
        runs: What they are called.
        stages: The stages, cut as the runs had them.
        hand_over: Seconds of handing over, as `RunSamples` has them; empty where the runs do not say them.
        message: How long a message takes from when it has been posted to its use; None where no rank waited for one.
        warmup: The first ops of each kind of each stage that were left out.
        microbatch_size: Samples of a micro-batch; None where nobody said it.
        assumed_input_share: Share of B that I takes, and W the rest, of stages whose I and W nobody knows; None: such
            schedules are refused. The first stage needs no gradient of its input: W is its whole B.
        variation: How the seconds of works vary from run to run; None where there is one run, or other lists.
        splits_stages: Whether a stage may be supposed to be of equal parts, for a schedule with several times as many.
        yardstick: How fast the machine was, in the mean of the runs; None where one does not say it.
    """

    runs: tuple[str, ...]
    stages: tuple[RunStage, ...]
    hand_over: Mapping[str, Spread]
    message: Spread | None
    warmup: int
    microbatch_size: int | None = None
    assumed_input_share: float | None = None
    variation: Variation | None = None
    splits_stages: bool = False
    yardstick: Yardstick | None = None

    @property
    def origin(self) -> str:
        """Where the numbers come from, in a few words."""
        return f"of {', '.join(self.runs)}, with {', '.join(self.kinds)}"

    @property
    def kinds(self) -> tuple[str, ...]:
        """What was seen of every stage."""
        return tuple(kind for kind in self.stages[0].work if all(kind in stage.work for stage in self.stages))

    @property
    def has_bytes(self) -> bool:
        """Whether anything is known of what the stages send or hold."""
        return any(stage.profiled is not None for stage in self.stages)

    @property
    def measured_costs(self) -> tuple[StageCost, ...]:
        """The stages as the runs had them."""
        return tuple(map(_measured_cost, self.stages))

    def stage_costs(self, schedule: Schedule) -> StageCosts:
        """Return the costs of the stages of `schedule`; those of neighbours are added up where it has fewer.

        Raises:
            ProfileError: Its stages are not those of the runs, nor some of them together.
        """
        return self.as_costs(self._cut(schedule))

    def as_costs(self, stages: Sequence[StageCost]) -> StageCosts:
        """Return `stages`, however they were cut, as costs from these runs; I and W as supposed, if they are."""
        if self.assumed_input_share is not None:
            stages = with_input_share(stages, self.assumed_input_share)
        advice = "add a run of a schedule that has it, as zb_h1 has I and W, or give `profile` beside the runs"
        return StageCosts(tuple(stages), self.microbatch_size, self.origin, advice=advice)

    def cluster(self, devices: Sequence[Device]) -> Cluster:
        """Return machines that hand over as the runs did: by links that are equal, and as wide as one likes.

        How long a message travels is all latency: of one size nobody can tell what is due to its bytes. Hand-over is
        the trimmed mean: a makespan has its sum, but the longest posts were mostly interrupted.

        Args:
            devices: The devices of the machines; what the runtime takes between two ops is added.
        """
        seconds = {kind: spread.trimmed_s for kind, spread in self.hand_over.items()}
        take_s = seconds.get("Take", 0.0)
        link = Link(
            latency_s=0.0 if self.message is None else max(0.0, self.message.mean_s - take_s),
            send_s=seconds.get("Send", 0.0),
            post_s=seconds.get("Recv", 0.0),
            receive_s=take_s,
        )
        own = tuple(replace(device, op_s=seconds.get("Op", 0.0)) for device in devices)
        return Cluster(own, link, loopback=link, origin=f"of {', '.join(self.runs)}")

    def _cut(self, schedule: Schedule) -> Sequence[StageCost]:
        costs, wanted = self.measured_costs, schedule.num_stages
        if len(costs) % wanted == 0:
            size = len(costs) // wanted
            return [added_up(costs[first : first + size]) for first in range(0, len(costs), size)]
        if self.splits_stages and wanted % len(costs) == 0:
            return _parted(costs, wanted // len(costs))
        whole = " or a multiple" if self.splits_stages else ""
        raise ProfileError(
            f"costs {self.origin}: got schedule {schedule.name} of {wanted} stages, expected {len(costs)} as in the "
            f"runs, a divisor{whole}; try pipesched.what_if with `profile`, which cuts layers anew"
        )


def costs_of_samples(samples: RunSamples, runs: Sequence[str], warmup: int) -> RunCosts:
    """Return what `samples` say of the costs.

    Args:
        samples: Samples of the runs.
        runs: What they are called.
        warmup: The first ops of each kind of each stage that were left out.
    """
    stages = tuple(
        RunStage({kind: spread_of(samples.work[stage, kind]) for kind in WORK_KINDS if (stage, kind) in samples.work})
        for stage in range(samples.num_stages)
    )
    hand_over = {kind: spread_of(seconds) for kind, seconds in samples.hand_over.items()}
    message = spread_of(samples.messages) if samples.messages else None
    variation = variation_of(samples.passes, statistics.fmean)
    return RunCosts(tuple(runs), stages, hand_over, message, warmup, variation=variation, yardstick=samples.yardstick)


def _measured_cost(stage: RunStage) -> StageCost:
    """Return the means; I and W that were not seen are what they are of B in the profile."""
    profiled = stage.profiled or StageCost(0.0)
    forward_s, backward_s = stage.mean_s("F"), stage.mean_s("B")
    input_s, weight_s = stage.mean_s("I"), stage.mean_s("W")
    assert forward_s is not None, "every stage has one"
    if input_s is None and weight_s is None and backward_s is not None and profiled.backward_s:
        scaled = profiled.slowed(backward_s / profiled.backward_s)
        input_s, weight_s = scaled.backward_input_s, scaled.backward_weight_s
    step_s, average_s = stage.mean_s("Step"), stage.mean_s("Average")
    return replace(
        profiled,
        forward_s=forward_s,
        backward_s=backward_s,
        backward_input_s=input_s,
        backward_weight_s=weight_s,
        recompute_s=stage.mean_s("R"),
        step_s=profiled.step_s if step_s is None else step_s,
        average_s=profiled.average_s if average_s is None else average_s,
    )


def _parted(costs: Sequence[StageCost], parts: int) -> list[StageCost]:
    """Return every stage as so many equal ones; what crosses a new cut is as large as what leaves the stage."""
    most_bytes = max(cost.output_bytes for cost in costs)
    stages = []
    for cost in costs:
        shares: dict[str, Any] = {}
        for name in ADDED_UP:
            value = getattr(cost, name)
            shares[name] = value and (value // parts if isinstance(value, int) else value / parts)
        part = replace(cost, **shares)
        stages += [replace(part, output_bytes=cost.output_bytes or most_bytes)] * (parts - 1)
        stages.append(part)
    return stages
