"""The costs of a model's stages, measured in runs.

Like a `Profile`, a `RunCosts` gives the costs of a schedule's stages. Its seconds come from runs alone. They are
means, because a makespan is a sum that includes the slow ops. A run has no bytes, and no I and W if it ran only B. An
optional profile gives the bytes, and the shares of B for I and W; without a profile they are unknown.

A rank also spends time on posting and taking messages, and between ops. This overhead belongs to the machines
(`RunCosts.on_machines`), not to stages.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Cluster, Link
from pipesched.profiles.costs.run_samples import WORK_KINDS, RunSamples, WorkKind
from pipesched.profiles.costs.single_stage import ADDED_UP, StageCost, added_up, with_input_share
from pipesched.profiles.costs.spread import Spread, Variation, spread_of, variation_of
from pipesched.profiles.costs.stage_costs import CostSource, StageCosts
from pipesched.schedules import Schedule, Yardstick


@dataclass(frozen=True, slots=True)
class RunStage:
    """The measured work of one stage.

    Attributes:
        work: Spread of the seconds of each measured kind of work: F, and B, I, W, R, Step or Average.
        profiled: Cost of the stage in a profile, for its bytes, copies and shares of B, or None without a profile.
    """

    work: Mapping[WorkKind, Spread]
    profiled: StageCost | None = None

    def mean_s(self, kind: WorkKind) -> float | None:
        """Return the mean seconds of `kind`, or None if it was not measured."""
        return self.work[kind].mean_s if kind in self.work else None


@dataclass(frozen=True, slots=True)
class RunCosts(CostSource):
    """The measured costs of every stage of a model.

    Attributes:
        runs: Names of the runs.
        stages: The stages, cut as in the runs.
        hand_over: Overhead seconds, as in `RunSamples`; empty if the runs do not contain it.
        message: Seconds from the post of a message to its use; None if no rank waited for a message.
        warmup: Number of first ops that were left out, for each kind and stage.
        microbatch_size: Samples of a micro-batch, or None if unknown.
        assumed_input_share: Share of B spent on I, and the rest on W, for stages whose I and W are unknown; None to
            refuse schedules with I and W. The first stage needs no gradient of its input: W is its whole B.
        variation: Variation of the seconds between runs; None for a single run, or runs with different lists.
        splits_stages: Whether stages may be cut into equal parts, for a schedule with a multiple of their number.
        yardstick: Mean speed of the machine over the runs, or None if a run does not record it.
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

    is_measured: ClassVar[bool] = True
    has_machines: ClassVar[bool] = True
    way_to_profile: ClassVar[str] = (
        "make one of runs and a profile of their model, with pipesched.workflows.measuring.profile_from_runs"
    )

    @property
    def origin(self) -> str:
        """Source of the numbers, in a few words."""
        return f"of {', '.join(self.runs)}, with {', '.join(self.kinds)}"

    @property
    def kinds(self) -> tuple[WorkKind, ...]:
        """The kinds of work that were measured on every stage, in reading order."""
        return tuple(kind for kind in WORK_KINDS if all(kind in stage.work for stage in self.stages))

    @property
    def has_bytes(self) -> bool:
        """Whether the sizes of messages or memory are known for any stage."""
        return any(stage.profiled is not None for stage in self.stages)

    @property
    def measured_costs(self) -> tuple[StageCost, ...]:
        """The costs of the stages as cut in the runs."""
        return tuple(map(_measured_cost, self.stages))

    def stage_costs(
        self, schedule: Schedule, bounds: Sequence[tuple[int, int]] = (), microbatch_size: int | None = None
    ) -> StageCosts:
        """Return the costs of the stages of `schedule`; neighbours are summed if the schedule has fewer stages.

        Raises:
            ProfileError: The number of stages does not fit the runs.
        """
        del bounds, microbatch_size
        return self.as_costs(self._cut(schedule))

    def as_costs(self, stages: Sequence[StageCost]) -> StageCosts:
        """Return `stages` of any cut as costs from these runs, with the assumed I and W if set."""
        if self.assumed_input_share is not None:
            stages = with_input_share(stages, self.assumed_input_share)
        advice = "add a run of a schedule that has it, as zb_h1 has I and W, or give `profile` beside the runs"
        return StageCosts(tuple(stages), self.microbatch_size, self.origin, advice=advice)

    def on_machines(self, cluster: Cluster) -> Cluster:
        """Return the devices of `cluster` with the overheads of the runs, equal links and unlimited bandwidth.

        All travel time of a message counts as latency, because one message size does not show the bandwidth. Overheads
        are trimmed means, because the system mostly interrupted the longest posts.
        """
        seconds = {kind: spread.trimmed_s for kind, spread in self.hand_over.items()}
        take_s = seconds.get("Take", 0.0)
        link = Link(
            latency_s=0.0 if self.message is None else max(0.0, self.message.mean_s - take_s),
            send_s=seconds.get("Send", 0.0),
            post_s=seconds.get("Recv", 0.0),
            receive_s=take_s,
        )
        own = tuple(replace(device, op_s=seconds.get("Op", 0.0)) for device in cluster.devices)
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
            f"runs, or a divisor{whole}; try pipesched.what_if with `profile`, which cuts the layers again"
        )


def costs_of_samples(samples: RunSamples, runs: Sequence[str], warmup: int) -> RunCosts:
    """Return the costs that follow from `samples`.

    Args:
        samples: Samples of the runs.
        runs: Names of the runs.
        warmup: Number of first ops that were left out, for each kind and stage.
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
    """Return the mean costs of a stage; I and W without a measurement get their shares of B in the profile."""
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
    """Cut every stage into `parts` equal parts.

    The output at a new cut is as large as the stage's output, or as the largest output of any stage if the stage has
    none.
    """
    largest = max(costs, key=lambda cost: cost.output_bytes)
    stages = []
    for cost in costs:
        shares: dict[str, Any] = {}
        for name in ADDED_UP:
            value = getattr(cost, name)
            shares[name] = value and (value // parts if isinstance(value, int) else value / parts)
        part = replace(cost, **shares)
        like = cost if cost.output_bytes else largest
        sizes = like.output_bytes, like.output_gradient_bytes
        stages += [replace(part, output_bytes=sizes[0], output_gradient_bytes=sizes[1])] * (parts - 1)
        stages.append(part)
    return stages
