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
from pipesched.schedules.lowering import lower, require_lowerable
from pipesched.schedules.transforms import (
    RecomputeWhen,
    can_sum_before_steps,
    recompute,
    with_step_barrier,
    with_steps,
    with_tied_sum,
)
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
from pipesched.simulator.search import Outcome, Setting, memory_excess, over_memory_reason
from pipesched.workflows.arguments import ScheduleSource, source_of_entry
from pipesched.workflows.simulating import REFUSED, Setup, cut_text


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

    def __call__(self, setting: Setting) -> Outcome:
        """Return the outcome of a setting, or the reason why it is refused."""
        try:
            return self._outcome(_source(setting.order), setting)
        except REFUSED as error:
            return Outcome(setting, reason=self.say(error))

    def _cut(self, source: ScheduleSource, setting: Setting) -> Setup:
        """Return the setup of a setting, with its machines and the layers of its stages."""
        cluster = self._cluster(source.schedule, dict(setting.link))
        return replace(self.setup, microbatch_size=setting.microbatch_size, cluster=cluster).cut(source)

    def has_bytes(self, setting: Setting) -> bool:
        """Whether the costs of a setting have bytes, however its layers are cut.

        Raises:
            ArgumentError, ScheduleError, ProfileError, SimulationError: The setting is invalid.
        """
        setup = replace(self.setup, microbatch_size=setting.microbatch_size)
        any_cut = replace(setup, partition="uniform") if setup.cuts_layers else setup
        return any_cut.costs_of(_source(setting.order)).has_bytes

    def uneven_cuts(self, outcomes: Sequence[Outcome]) -> list[str]:
        """Return at most three lines on stages with unequal numbers of layers, one for each cut.

        Args:
            outcomes: Predicted outcomes, the best first; the first outcome of each schedule and number of ranks counts.
        """
        firsts: dict[tuple[str, int], Setting] = {}
        for outcome in outcomes:
            firsts.setdefault((outcome.setting.schedule, outcome.setting.num_ranks), outcome.setting)
        names: dict[str, list[str]] = {}
        for setting in firsts.values():
            source = _source(setting.order)
            layers = self._cut(source, setting).layers_of(source)
            if layers is not None and len(set(layers)) > 1:
                names.setdefault(cut_text(source.schedule, layers), []).append(setting.schedule)
        return [f"{', '.join(alike)}: {cut}" for cut, alike in names.items()][:3]

    def _costs(self, source: ScheduleSource, setting: Setting) -> StageCosts:
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

    def _outcome(self, source: ScheduleSource, setting: Setting) -> Outcome:
        setup, costs = self.setup, self._costs(source, setting)
        tied = None
        if costs.tied_bytes and can_sum_before_steps(source.schedule):
            tied = costs.tied_stages
            source = replace(source, schedule=with_tied_sum(source.schedule, tied))
        schedule = source.schedule
        cluster = self._cluster(schedule, dict(setting.link))
        lists, scenario = _lists(setting.order, tied), Scenario(schedule, costs, cluster, setup.network)
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
        outcome = Outcome(
            setting,
            timeline.makespan_s,
            max(peak_bytes.values(), default=None),
            over_memory_reason(memory_excess(peak_bytes, cluster)),
            idle_share(work_s, num_devices, timeline.makespan_s),
            is_judged=bool(peak_bytes) and has_limit,
        )
        return outcome.at_pace(pace)

    def _pace(
        self, lists: KnownLists, source: ScheduleSource, scenario: Scenario, timeline: Timeline
    ) -> SteadyPace | Inexact | None:
        """Return the steady-state time of a setting, or None if unknown."""
        if self.setup.jitter:
            return None
        if self.is_steady:
            return steady_pace(scenario, timeline, source.longer, lists.runs)
        lowered = lists.batch.schedule
        is_batch = isinstance(lists.runs, RepeatedRuns) and with_steps(lowered) is lowered
        if not is_batch or drifting_scenario(scenario) is not None:
            return None
        return batch_pace(lowered, timeline, scenario.cluster, scenario.network)


@lru_cache(maxsize=2)
def _lists(order: Setting, tied: tuple[int, ...] | None) -> KnownLists:
    """Return the compiled lists of a setting; the last ones are kept, as settings of many links have the same lists.

    Args:
        order: The setting.
        tied: The stages of a sum of tied gradients, as for `with_tied_sum`; None for no such sum.
    """
    source = _source(order)
    schedule = source.schedule if tied is None else with_tied_sum(source.schedule, tied)
    lowered, runs = lower(schedule), None
    with suppress(ScheduleError):  # lists that do not repeat
        runs = longer_runs(lowered if source.longer else schedule, source.longer)
    return KnownLists(ScenarioLists(lowered), runs)


def _source(order: Setting) -> ScheduleSource:
    """Return the schedule of a setting.

    Raises:
        ScheduleError: The schedule cannot have these counts, or its lists cannot run to their end.
    """
    known = _known_source(order)
    if isinstance(known, Exception):
        raise known.with_traceback(None)
    return known


@lru_cache(maxsize=8)
def _known_source(order: Setting) -> ScheduleSource | Exception:
    """Return the schedule of a setting, or its error; settings that differ in link or size share it."""
    try:
        return _built(order)
    except REFUSED as error:
        return error


def _built(order: Setting) -> ScheduleSource:
    counts = order.num_ranks, order.num_microbatches, order.num_chunks
    source = source_of_entry(find(order.schedule), *counts, dict(order.parameters))
    if order.recompute_when is not None:
        longer = None if source.longer is None else partial(_recomputed, source.longer, order.recompute_when)
        source = ScheduleSource(recompute(source.schedule, None, order.recompute_when), longer)
    if order.has_step_barrier:
        source = ScheduleSource(with_step_barrier(source.schedule))
    require_lowerable(source.schedule)
    require_runnable(source.schedule)
    return source


def _recomputed(longer: Callable[[int], Schedule], when: RecomputeWhen, times: int) -> Schedule:
    return recompute(longer(times), None, when)
