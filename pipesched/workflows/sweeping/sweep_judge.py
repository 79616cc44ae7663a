"""The judge of a sweep: predicts settings as `simulate` does; settings with the same op lists share one program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from statistics import median_low
from typing import Any

from pipesched.profiles.clusters import Cluster, Device, Link
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Schedule, ScheduleError, Timeline
from pipesched.schedules.builders import find
from pipesched.schedules.check import require_runnable
from pipesched.schedules.columns import machine_code
from pipesched.schedules.lowering import lower, require_lowerable
from pipesched.schedules.transforms import recompute, with_steps
from pipesched.simulator import Inexact, Scenario, SteadyPace
from pipesched.simulator.analysis import require_work
from pipesched.simulator.fast import (
    RepeatedRuns,
    ScenarioLists,
    UnflushedRuns,
    batch_pace,
    busy_s,
    drifting_scenario,
    idle_share,
    longer_runs,
    steady_pace,
)
from pipesched.simulator.search import SweptOutcome, SweptSetting, memory_excess, over_memory_reason
from pipesched.workflows.arguments import ScheduleSource, layer_bounds, partition_text, source_of_entry
from pipesched.workflows.simulating import REFUSED, Setup, cut_text
from pipesched.workflows.sweeping.link_cuts import best_of_cuts, contenders, has_many_links, sampled_cuts

_STEPS = 10
"""Steps of loops for each stage of each micro-batch of a setting."""


@dataclass(frozen=True, slots=True)
class KnownLists:
    """The lists of settings, compiled once.

    Attributes:
        batch: One batch, or a run without a flush.
        runs: Longer runs, which show the steady-state time, or None if the lists do not repeat.
    """

    batch: ScenarioLists
    runs: RepeatedRuns | UnflushedRuns | None


@dataclass(frozen=True, slots=True)
class SweepJudge:
    """Predicts settings; can be sent to another process.

    Attributes:
        setup: The common inputs of all settings: costs, machines, network, memory limit.
        is_steady: Whether to simulate longer runs if one batch does not show its steady-state time.
        say: Returns the reason of an error.
        num_runs: Runs of each setting with jitter; the run of median makespan counts.
    """

    setup: Setup
    is_steady: bool = True
    say: Callable[[Exception], str] = str
    num_runs: int = 1
    _known_costs: dict[Any, StageCosts] = field(default_factory=dict, repr=False, compare=False)

    def __call__(self, settings: Sequence[SweptSetting]) -> list[SweptOutcome]:
        """Return the outcomes of settings with the same op lists and the same micro-batch size, in their order."""
        first = settings[0]
        machine_code.expect(_STEPS * first.num_cells * len(settings))
        try:
            source = _source(first.order)
        except REFUSED as error:
            return [SweptOutcome(setting, reason=self.say(error)) for setting in settings]
        shared = self._under_few_cuts(settings, source)
        return [self._outcome_of(source, setting) for setting in settings] if shared is None else shared

    def _outcome_of(self, source: ScheduleSource, setting: SweptSetting) -> SweptOutcome:
        """Return the outcome of a setting, or the reason why it is refused."""
        try:
            return self._outcome(source, setting)
        except REFUSED as error:
            return SweptOutcome(setting, reason=self.say(error))

    def _under_few_cuts(self, settings: Sequence[SweptSetting], source: ScheduleSource) -> list[SweptOutcome] | None:
        """Return the outcomes of settings with many links, which share a few cuts; None where each has its own cut."""
        setup = self.setup
        if not setup.cuts_layers or not has_many_links(settings):
            return None
        try:
            cuts = sampled_cuts(settings, lambda setting: self._cut(source, setting).partition_text)
            own = {setting: cut for setting, cut in cuts.items() if cut is not None}
            bounds = layer_bounds(setup.loaded_costs, source.schedule, settings[0].microbatch_size, "balanced")
        except REFUSED:  # each setting finds the reason again
            return None
        if bounds is None or len(own) < len(cuts):  # a graph that is cut as its file says
            return None
        simple = partition_text([last - first for first, last in bounds]) or "balanced", "uniform"
        exact = replace(self, setup=replace(setup, jitter=0.0), num_runs=1)
        by_pace = source.longer is not None
        samples = {cut: exact.under_cut(cut, [*cuts]) for cut in dict.fromkeys([*own.values(), *simple])}
        outcomes = {cut: [*of_samples] for cut, of_samples in samples.items()}
        rest = [setting for setting in settings if setting not in cuts]
        for cut, some in contenders(rest, samples, by_pace=by_pace).items():
            outcomes[cut] += exact.under_cut(cut, some) if some else []
        best = best_of_cuts(outcomes, own, by_pace=by_pace)
        if not setup.jitter:
            return [best[setting][1] for setting in settings]
        return [outcome for setting in settings for outcome in self.under_cut(best[setting][0], [setting])]

    def under_cut(self, cut: str, settings: Sequence[SweptSetting]) -> list[SweptOutcome]:
        """Return the outcomes of settings under one cut of the layers."""
        return replace(self, setup=replace(self.setup, partition=cut))(settings)

    def _cut(self, source: ScheduleSource, setting: SweptSetting) -> Setup:
        """Return the setup of a setting, with its machines and the layers of its stages."""
        cluster = self._cluster(source.schedule, dict(setting.link))
        return replace(self.setup, microbatch_size=setting.microbatch_size, cluster=cluster).cut(source)

    def has_bytes(self, setting: SweptSetting) -> bool:
        """Whether the costs of a setting have bytes.

        Raises:
            ArgumentError, ScheduleError, ProfileError, SimulationError: The setting is invalid.
        """
        setup = replace(self.setup, microbatch_size=setting.microbatch_size)
        any_cut = replace(setup, partition="uniform") if setup.cuts_layers else setup
        return any_cut.costs_of(_source(setting.order)).has_bytes

    def uneven_cuts(self, outcomes: Sequence[SweptOutcome]) -> list[str]:
        """Return at most three lines on stages with unequal numbers of layers, one for each cut.

        Args:
            outcomes: Predicted outcomes, the best first; the first outcome of each schedule and number of ranks counts.
        """
        firsts: dict[tuple[str, int], SweptSetting] = {}
        for outcome in outcomes:
            firsts.setdefault((outcome.setting.schedule, outcome.setting.num_ranks), outcome.setting)
        names: dict[str, list[str]] = {}
        for setting in firsts.values():
            source = _source(setting.order)
            layers = self._cut(source, setting).layers_of(source)
            if layers is not None and len(set(layers)) > 1:
                names.setdefault(cut_text(source.schedule, layers), []).append(setting.schedule)
        return [f"{', '.join(alike)}: {cut}" for cut, alike in names.items()][:3]

    def _costs(self, source: ScheduleSource, setting: SweptSetting) -> StageCosts:
        """Return the costs of a schedule; schedules with equal shares of a device or equal cuts have the same costs."""
        known, schedule, size = self.setup, source.schedule, setting.microbatch_size
        if known.cuts_layers:
            known = self._cut(source, setting)
        elif size != known.microbatch_size:
            known = replace(known, microbatch_size=size)
        key = (
            *(size, known.partition, schedule.num_stages, schedule.stage_share),
            *(schedule.ranks_per_device, schedule.columns.splits_backward),
        )
        if key not in self._known_costs:
            self._known_costs[key] = known.costs_of(source)
        return self._known_costs[key]

    def _cluster(self, schedule: Schedule, link: Mapping[str, float]) -> Cluster:
        """Return the machines of a setting, every device with the limit if there is one."""
        if link:
            return self.setup.limited(Cluster((Device(),) * (max(schedule.rank_to_device) + 1), Link(**link)))
        return self.setup.cluster_of(schedule)

    def _outcome(self, source: ScheduleSource, setting: SweptSetting) -> SweptOutcome:
        schedule, setup = source.schedule, self.setup
        costs, cluster = self._costs(source, setting), self._cluster(schedule, dict(setting.link))
        lists, scenario = _lists(setting.order), Scenario(schedule, costs, cluster, setup.network)
        compiled, seed = lists.batch.under(scenario), setup.seed
        if self.num_runs > 1:  # the run of median makespan counts
            seconds = [compiled.makespan_s(setup.jitter, seed + run) for run in range(self.num_runs)]
            seed += seconds.index(median_low(seconds))
        timeline, peak_bytes = compiled.timeline_and_peaks(setup.jitter, seed)
        work_s = busy_s(timeline)
        require_work(timeline, work_s)
        pace = self._pace(lists, source, scenario, timeline)
        num_devices = len(set(schedule.rank_to_device))
        has_limit = any(cluster.devices[device].memory_bytes is not None for device in schedule.rank_to_device)
        return SweptOutcome(
            setting,
            timeline.makespan_s,
            idle_share(work_s, num_devices, timeline.makespan_s),
            None if pace is None else pace.s_per_microbatch,
            None if pace is None else pace.bubble_fraction,
            max(peak_bytes.values(), default=None),
            is_judged=bool(peak_bytes) and has_limit,
            reason=over_memory_reason(memory_excess(peak_bytes, cluster)),
        )

    def _pace(
        self, lists: KnownLists, source: ScheduleSource, scenario: Scenario, timeline: Timeline
    ) -> SteadyPace | None:
        """Return the steady-state time of a setting, or None if unknown."""
        if self.setup.jitter:
            return None
        if self.is_steady:
            pace = steady_pace(scenario, timeline, source.longer, lists.runs)
            return None if isinstance(pace, Inexact) else pace
        lowered = lists.batch.schedule
        is_batch = isinstance(lists.runs, RepeatedRuns) and with_steps(lowered) is lowered
        if not is_batch or drifting_scenario(scenario) is not None:
            return None
        return batch_pace(lowered, timeline, scenario.cluster, scenario.network)


@lru_cache(maxsize=2)
def _lists(order: SweptSetting) -> KnownLists:
    """Return the compiled lists of a setting; the last ones are kept, as settings of many links have the same lists."""
    source = _source(order)
    lowered, runs = lower(source.schedule), None
    with suppress(ScheduleError):  # lists that do not repeat
        runs = longer_runs(lowered if source.longer else source.schedule, source.longer)
    return KnownLists(ScenarioLists(lowered), runs)


@lru_cache(maxsize=8)
def _source(order: SweptSetting) -> ScheduleSource:
    """Return the schedule of a setting; the last ones are kept, as settings of many sizes have the same lists.

    Raises:
        ScheduleError: The schedule cannot have these counts, or its lists cannot run to their end.
    """
    counts = order.num_ranks, order.num_microbatches, order.num_chunks
    source = source_of_entry(find(order.schedule), *counts, dict(order.parameters))
    if order.recomputes:
        longer = None if source.longer is None else partial(_recomputed, source.longer)
        source = ScheduleSource(recompute(source.schedule), longer)
    require_lowerable(source.schedule)
    require_runnable(source.schedule)
    return source


def _recomputed(longer: Callable[[int], Schedule], times: int) -> Schedule:
    return recompute(longer(times))
