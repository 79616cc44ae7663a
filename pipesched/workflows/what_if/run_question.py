"""The question of a what-if: other lists, another cut, other machines; with predictions before and after, as a pair.

    run ──> samples ──> costs ──┬──> the run's lists, its machines ──> before ──┐
                                └──> lists and machines as changed ──> after  ──┴──> change

Both are predicted with the same costs, so the state of the machine during the run is in both. The samples are drawn
again, and the pair is predicted with each draw: the spread of the changes is the uncertainty that the run leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from pipesched.profiles.clusters import Cluster, flat, with_slow_device
from pipesched.profiles.costs import (
    Profile,
    RunCosts,
    RunSamples,
    StageCost,
    StageCosts,
    costs_of_samples,
    fitted_profile,
    samples_of,
)
from pipesched.questions import MessageFacts, OnShare, ScheduleCounts, WhatIfSettings, unheard
from pipesched.schedules import Schedule, Timeline
from pipesched.schedules.check import require_runnable
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Phase, Reduce, Step, computes
from pipesched.schedules.transforms import RecomputeWhen
from pipesched.simulator import USUAL_NETWORK
from pipesched.simulator.fast import LoadedProgram, compile_lists, simulate_arrays
from pipesched.simulator.memory import with_memory
from pipesched.workflows.arguments import ClusterArgument, ProfileArgument, ScheduleArgument, ScheduleSource
from pipesched.workflows.measuring import RunsArgument, with_profiled
from pipesched.workflows.simulating import Setup
from pipesched.workflows.what_if.machine_change import MachineChange, SlownessReading

_ALIKE = 2.0
"""Largest factor between the times of a stage in the run and in a profile, in either direction, without a note."""
Cut = tuple[tuple[int, int], ...]
"""Half-open range of layers of every stage."""


@dataclass(frozen=True, slots=True)
class LayersOfRuns:
    """The layers behind the stages of runs.

    Attributes:
        profile: Profile of the model.
        bounds: The cut of the runs.
        microbatch_size: Samples of their micro-batches.
        partition: The new partition; None: as in the runs, or balanced for another number of stages.
    """

    profile: Profile
    bounds: Cut
    microbatch_size: int
    partition: str | None

    def cut(self, costs: RunCosts, lists: Schedule) -> Cut | None:
        """Return a new cut for the stages of `lists`, balanced by the times of the runs, or None to keep theirs.

        Raises:
            ProfileError: The partition does not fit.
        """
        if self.partition is None and lists.num_stages == len(self.bounds):
            return None
        fitted = self._fitted(costs)
        setup = Setup(costs=fitted, microbatch_size=self.microbatch_size, partition=self.partition)
        return setup.bounds_of(ScheduleSource(lists))

    def costs_of(self, cut: Cut, costs: RunCosts) -> StageCosts:
        """Return the costs of the stages of another partition, `cut`, from the times of the runs."""
        return costs.as_costs(self._fitted(costs).costs_of_layers(cut, self.microbatch_size).stages)

    def _fitted(self, costs: RunCosts) -> Profile:
        return fitted_profile(self.profile, self.bounds, costs.measured_costs, self.microbatch_size)


@dataclass(frozen=True)
class WhatIfQuestion(MachineChange, ScheduleCounts, WhatIfSettings, MessageFacts):
    """The question of `what_if`; its fields are the arguments of that function."""

    run: RunsArgument
    schedule: ScheduleArgument | None = field(default=None, kw_only=True)
    recompute: Literal["all"] | Sequence[int] | None = field(default=None, kw_only=True)
    recompute_when: RecomputeWhen | None = field(default=None, kw_only=True)
    cluster: ClusterArgument = field(default=None, kw_only=True)
    profile: ProfileArgument | None = field(default=None, kw_only=True)
    progress: OnShare = field(default=unheard, kw_only=True)


@dataclass(frozen=True)  # without slots, for cached properties
class Question:
    """The data of one what-if prediction: its arguments, runs, op lists, and the assumed cause of slow stages.

    Attributes:
        asked: The arguments.
        runs: The measured runs, with their names; the first is changed.
        before: The run's lists, lowered.
        after: The requested lists, lowered.
        machines: Machines of the run; None: messages are known from the runs alone.
        known: Costs of the run's stages in a profile, or None without one.
        layers: Layers behind the run's stages, or None if unknown.
        reading: The cause of slowness in the runs; `samples` are of devices that are not slow.
    """

    asked: WhatIfQuestion
    runs: tuple[Sequence[Timeline], tuple[str, ...]]
    before: Schedule
    after: Schedule
    machines: Cluster | None
    known: tuple[StageCost, ...] | None
    layers: LayersOfRuns | None
    reading: SlownessReading

    @property
    def run(self) -> Timeline:
        """The run, as it was measured."""
        return self.runs[0][0]

    @property
    def slow(self) -> Mapping[int, float]:
        """Slowdown factor of each slow device of the run."""
        return self.reading.slow[0] if self.reading.slow else {}

    @cached_property
    def samples(self) -> RunSamples:
        """Op times and messages measured in the runs."""
        return samples_of(*self.runs, self.asked.warmup, self.reading.slow)

    @cached_property
    def costs(self) -> RunCosts:
        """The costs that the runs measured."""
        return self._costs_of(self.samples)

    @cached_property
    def cut(self) -> Cut | None:
        """Requested layers of each stage, the same in all draws, or None if they are the runs' or unknown.

        Raises:
            ProfileError: The partition does not fit.
        """
        return None if self.layers is None else self.layers.cut(self.costs, self.after)

    def with_reading(self, reading: SlownessReading) -> Question:
        """Return the same question, with the same cut, under another reading."""
        layers = self.layers
        if layers is not None and self.cut is not None:
            layers = replace(layers, partition=",".join(str(last - first) for first, last in self.cut))
        return replace(self, reading=reading, layers=layers)

    def pair(self) -> tuple[Timeline, Timeline]:
        """Return the predictions of the run and of the changed run, with memory if bytes are known.

        Raises:
            NotRunnableError: The lists cannot run to their end.
            ProfileError: The costs lack the time of an op.
            SimulationError: One cannot be simulated.
        """
        timelines = []
        for schedule, (costs, cluster) in zip((self.before, self.after), self._conditions(self.costs), strict=True):
            require_runnable(schedule)
            timeline = simulate_arrays(lower(schedule), costs, cluster)
            timelines.append(with_memory(timeline, costs, schedule))
        before, after = timelines
        return before, after

    def drawn_makespans_s(self) -> Iterator[tuple[float, float]]:
        """Yield makespans of the pair [s], each from a bootstrap sample of the measured seconds of each kind."""
        import numpy as np

        rng = np.random.default_rng(self.asked.seed)
        before_s, after_s = map(_makespan_by_costs, (self.before, self.after))

        def drawn(seconds: Sequence[float]) -> tuple[float, ...]:
            return tuple(seconds[index] for index in rng.integers(len(seconds), size=len(seconds)))

        for _ in range(self.asked.draws):
            samples = replace(
                self.samples,
                work={kind: drawn(seconds) for kind, seconds in self.samples.work.items()},
                hand_over={kind: drawn(seconds) for kind, seconds in self.samples.hand_over.items()},
                messages=drawn(self.samples.messages) if self.samples.messages else (),
            )
            before, after = self._conditions(self._costs_of(samples))
            yield before_s(*before), after_s(*after)

    def words(self) -> list[str]:
        """Return the changes, in a few words each."""
        words = [self.after.name] if self.after.name != self.before.name else []
        if self.after.num_microbatches != self.before.num_microbatches:
            words.append(f"{self.after.num_microbatches} micro-batches")
        if self.cut is not None:
            words.append(f"layers {','.join(str(last - first) for first, last in self.cut)}")
        return [*words, *self.asked.words()] or [self.after.name]

    def suppositions(self) -> list[str]:
        """Return the assumptions where neither runs nor profile give a value, a line each."""
        costs, before, after = self.costs, self.before, self.after
        phases = {part.phase for row in after.ops for op in row for part in computes(op)}
        ops = {type(op) for row in (*before.ops, *after.ops) for op in row}
        seen, recut = set(costs.kinds), self.cut is not None
        lines = self._of_other_model()
        if before.num_microbatches != after.num_microbatches:
            lines.append(f"{after.num_microbatches} micro-batches, each of as many samples as in the run")
        if not recut and after.num_stages > before.num_stages:
            parts = after.num_stages // before.num_stages
            lines.append(
                f"each stage of the run is split into {parts} equal stages; give a profile to cut its layers instead"
            )
        if self._splits and not {"I", "W"} <= seen and phases & {Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT}:
            share = self.asked.input_share
            lines.append(
                f"I is taken as {share:.3g} of B, and W as {1 - share:.3g} (on stage 0 as the whole B), because the "
                "run has only B; a split backward often takes longer than B: give a profile, or a run with I and W"
            )
        if Phase.BACKWARD in phases and "B" not in seen and not recut:
            lines.append("B is taken as I plus W, because the run has no B alone")
        if Phase.RECOMPUTE in phases and ("R" not in seen or recut):
            lines.append("R is taken to be as long as F")
        if Step in ops and "Step" not in seen:
            lines.append(
                f"steps take {'the seconds of the profile' if self.layers else 'no time'}, because the run has no Step"
            )
        if Reduce in ops and not self.known:
            lines.append("all-reduces take no time: their bytes are unknown without a profile")
        if self.machines is None and costs.message is None:
            lines.append("messages take no time: no rank of the run waited for one")
        return [*lines, *self.asked.notes(self._machines(costs), is_of_runs=self.machines is None)]

    def _of_other_model(self) -> list[str]:
        """Return a line if the times of the run's stages are far from the profile."""
        if self.layers is None or self.known is None:
            return []
        pairs = zip(self.costs.measured_costs, self.known, strict=True)
        factors = [measured.both_s / known.both_s for measured, known in pairs if known.both_s]
        if not factors or (max(factors) <= _ALIKE and min(factors) >= 1 / _ALIKE):
            return []
        often = " to ".join(dict.fromkeys(f"{factor:.3g}" for factor in (min(factors), max(factors))))
        return [
            f"the profile is assumed to be of the run's model, which a Timeline does not name; stages took {often} "
            "times the seconds of the profile"
        ]

    def _costs_of(self, samples: RunSamples) -> RunCosts:
        size = None if self.layers is None else self.layers.microbatch_size
        costs = with_profiled(costs_of_samples(samples, self.runs[1], self.asked.warmup), self.known, size)
        return replace(costs, splits_stages=True, assumed_input_share=self.asked.input_share)

    @property
    def _splits(self) -> bool:
        """Whether B has to be split by an assumed share."""
        return self.known is None or any(cost.backward_input_s is None for cost in self.known)

    def _conditions(self, costs: RunCosts) -> tuple[tuple[StageCosts, Cluster], tuple[StageCosts, Cluster]]:
        """Return costs and machines of the run, and of the changed run."""
        machines = self._machines(costs)
        recut = None if self.layers is None or self.cut is None else self.layers.costs_of(self.cut, costs)
        still_slow = {device: factor for device, factor in self.slow.items() if device not in self.asked.heal}
        changed = self.asked.on(_slowed(machines, still_slow), is_of_runs=self.machines is None)
        after = costs.stage_costs(self.after) if recut is None else recut
        return (costs.stage_costs(self.before), _slowed(machines, self.slow)), (after, changed)

    def _machines(self, costs: RunCosts) -> Cluster:
        if self.machines is not None:
            return self.machines
        ranks = (*self.before.rank_to_device, *self.after.rank_to_device)
        return costs.on_machines(flat(max(ranks) + 1))


def _slowed(cluster: Cluster, slow: Mapping[int, float]) -> Cluster:
    for device, factor in slow.items():
        cluster = with_slow_device(cluster, device, factor)
    return cluster


def _makespan_by_costs(schedule: Schedule) -> Callable[[StageCosts, Cluster], float]:
    """Return a function from costs and machines to a makespan [s]."""
    program = compile_lists(lower(schedule), USUAL_NETWORK, has_hand_over=True)
    return lambda costs, cluster: program.makespan_s(LoadedProgram(program, costs, cluster).times())
