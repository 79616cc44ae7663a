"""The judge of a sweep: predicts settings that differ in little together, in columns, each as `simulate` does."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from statistics import median_low
from typing import Any

from pipesched.profiles.clusters import Cluster, Device, Link
from pipesched.profiles.costs import DeviceCost, LayerCosts, Profile, StageCosts
from pipesched.schedules import Schedule, stage_share
from pipesched.schedules.builders import find
from pipesched.schedules.lowering import lower
from pipesched.schedules.transforms import recompute
from pipesched.simulator import Inexact, Scenario, SteadyPace, is_usual
from pipesched.simulator.analysis import metrics
from pipesched.simulator.engine import require_simulable
from pipesched.simulator.fast import UnflushedRuns, drifting_scenario, idle_share, steady_pace
from pipesched.simulator.memory import peak_memory
from pipesched.simulator.search import over_memory_reason
from pipesched.simulator.sweep import (
    CaseMeasures,
    CaseSweep,
    OutcomeBlock,
    SettingBlock,
    SettingGroup,
    SweptOutcome,
    SweptSetting,
    walkable,
)
from pipesched.workflows.arguments import ScheduleSource, layer_bounds, partition_text, source_of_entry
from pipesched.workflows.simulating import REFUSED, Conditions, cut_text, makespans_of_runs, predict_source
from pipesched.workflows.sweeping.group_columns import GroupColumns
from pipesched.workflows.sweeping.link_cuts import best_of_cuts, contenders, has_many_links, sampled_cuts


@dataclass(frozen=True, slots=True)
class SweepJudge:
    """Predicts groups of settings; can be sent to another process.

    Attributes:
        conditions: What all settings have in common: costs, machines, network.
        limit_bytes: What every device may hold; None: as the machines say.
        is_steady: Whether longer runs are simulated where a batch does not show its steady pace.
        say: Makes the reason of an error.
        num_runs: Runs of each setting with jitter; the run of median makespan counts.
        num_threads: Threads that share out the links of a block.
    """

    conditions: Conditions
    limit_bytes: int | None = None
    is_steady: bool = True
    say: Callable[[Exception], str] = str
    num_runs: int = 1
    num_threads: int = 1
    _programs: dict[SweptSetting, tuple[CaseSweep, UnflushedRuns | None]] = field(
        default_factory=dict, repr=False, compare=False
    )
    _known_costs: dict[Any, StageCosts] = field(default_factory=dict, repr=False, compare=False)

    def __call__(self, group: SettingGroup) -> OutcomeBlock:
        """Return what the settings of a group amount to."""
        parts: list[OutcomeBlock] = []
        walked: list[tuple[SettingBlock, ScheduleSource]] = []
        left: list[tuple[SettingBlock, ScheduleSource]] = []
        goes_as_usual = is_usual(self.conditions.network) and not self.conditions.jitter
        for block in group:
            try:
                source = _source(block.order)
            except REFUSED as error:
                parts.append(OutcomeBlock.refused(block, self.say(error)))
                continue
            shared = self._under_few_cuts(block, source)
            if shared is not None:
                parts.append(shared)
            else:
                (walked if goes_as_usual and _is_walkable(block, source) else left).append((block, source))
        for alike in self._cut_alike(walked):
            known, others = self._in_columns(alike)
            parts += known
            left += others
        return OutcomeBlock.joined([*parts, *(self._one_by_one(block, source) for block, source in left)])

    def _under_few_cuts(self, block: SettingBlock, source: ScheduleSource) -> OutcomeBlock | None:
        """Return what the settings of many links amount to under the cuts of some; None where each has its own cut."""
        conditions = self.conditions
        if not conditions.cuts_layers or not has_many_links(block):
            return None
        settings = [*block.settings()]
        try:
            cuts = sampled_cuts(block, lambda place: self._cut(source, settings[place]).partition)
            own = {block.numbers[place]: cut for place, cut in cuts.items() if cut is not None}
            bounds = layer_bounds(conditions.costs, source.schedule, block.size, "balanced")
        except REFUSED:  # which is found again, and told
            return None
        if bounds is None or len(own) < len(cuts):  # a graph that is cut as its file says
            return None
        simple = partition_text([last - first for first, last in bounds]) or "balanced", "uniform"
        exact, by_pace = (
            replace(self, conditions=replace(conditions, jitter=0.0), num_runs=1),
            source.longer is not None,
        )
        sampled, rest = block.at([*cuts]), block.at([place for place in range(len(block.numbers)) if place not in cuts])
        samples = {cut: exact.under_cut(cut, sampled) for cut in dict.fromkeys([*own.values(), *simple])}
        outcomes = {cut: [of_samples] for cut, of_samples in samples.items()}
        for cut, places in contenders(rest, sampled, samples, by_pace=by_pace).items():
            if places:
                outcomes[cut].append(exact.under_cut(cut, rest.at(places)))
        best, numbers_of = best_of_cuts(outcomes, own, by_pace=by_pace)
        if not conditions.jitter:
            return best
        place_of = {number: place for place, number in enumerate(block.numbers)}
        return OutcomeBlock.joined(
            [
                self.under_cut(cut, block.at([place_of[number] for number in numbers]))
                for cut, numbers in numbers_of.items()
            ]
        )

    def under_cut(self, cut: str, block: SettingBlock) -> OutcomeBlock:
        """Return the measures of the settings of many links under one cut of the layers."""
        return replace(self, conditions=replace(self.conditions, partition=cut))([block])

    def _cut_alike(
        self, walked: Sequence[tuple[SettingBlock, ScheduleSource]]
    ) -> list[list[tuple[SettingBlock, ScheduleSource]]]:
        """Return blocks in groups whose stages have the same layers, each block of the settings that have them."""
        if not walked or not self.conditions.cuts_layers:
            return [[*walked]] if walked else []
        groups: dict[object, list[tuple[SettingBlock, ScheduleSource]]] = {}
        for number, (block, source) in enumerate(walked):
            places: dict[object, list[int]] = {}
            for place, setting in enumerate(block.settings()):
                try:
                    cut: object = self._cut(source, setting).partition
                except REFUSED:  # which is found again, and told
                    cut = None
                places.setdefault(cut, []).append(place)
            for cut, some in places.items():
                part = block.at(some)
                groups.setdefault((cut, number if len(block.numbers) > 1 else -1), []).append((part, source))
        return [*groups.values()]

    def _cut(self, source: ScheduleSource, setting: SweptSetting) -> Conditions:
        """Return the conditions of a setting, with its machines and the layers of each of its stages."""
        cluster = self._cluster(source.schedule, dict(setting.link))
        return replace(self.conditions, microbatch_size=setting.microbatch_size, cluster=cluster).cut(source)

    def _in_columns(
        self, walked: Sequence[tuple[SettingBlock, ScheduleSource]]
    ) -> tuple[list[OutcomeBlock], list[tuple[SettingBlock, ScheduleSource]]]:
        """Return what settings amount to by the steps of their lists, and the blocks of which these do not say it."""
        blocks, sources = zip(*walked, strict=True)
        schedules = [source.schedule for source in sources]
        try:
            costs, cluster = self._costs(sources[0], next(blocks[0].settings())), self._cluster(schedules[0], {})
            require_simulable(schedules[0], costs, cluster, self.conditions.network, 0.0)
        except REFUSED:  # whatever the links are: what one of the settings says holds of all of its block
            return self._as_their_first(walked)
        columns = GroupColumns(blocks, schedules, costs, cluster)
        outcomes = columns.outcomes(is_steady=self.is_steady, num_threads=self.num_threads)
        if outcomes is None:
            return [], [*walked]
        settings = [(single, source) for block, source in walked for single in block.singles()] if outcomes[1] else []
        return [outcomes[0]], [settings[place] for place in outcomes[1]]

    def _as_their_first(
        self, pairs: Sequence[tuple[SettingBlock, ScheduleSource]]
    ) -> tuple[list[OutcomeBlock], list[tuple[SettingBlock, ScheduleSource]]]:
        """Return what blocks amount to whose first setting cannot be, and the other blocks."""
        refused: list[OutcomeBlock] = []
        others: list[tuple[SettingBlock, ScheduleSource]] = []
        for block, source in pairs:
            single = self._one_by_one(next(block.singles()), source)
            if math.isnan(single.seconds[0]):
                refused.append(OutcomeBlock.refused(block, single.reasons[0]))
            else:
                others.append((block, source))
        return refused, others

    def _one_by_one(self, block: SettingBlock, source: ScheduleSource) -> OutcomeBlock:
        """Return what settings amount to of which the steps of a walk do not say all."""
        settings, schedule = [*block.settings()], source.schedule
        outcomes: dict[SweptSetting, SweptOutcome] = {}
        cases: dict[SweptSetting, tuple[StageCosts, Cluster]] = {}
        for setting in settings:
            try:
                cases[setting] = self._costs(source, setting), self._cluster(schedule, dict(setting.link))
            except REFUSED as error:
                outcomes[setting] = SweptOutcome(setting, reason=self.say(error))
        measures: Sequence[CaseMeasures | None] = [None] * len(cases)
        if not self.conditions.jitter:
            with suppress(*REFUSED):  # in one of the cases: which one is found out below
                measures = self._program(block.order, source)[0].measures([*cases.values()])
        for (setting, case), measured in zip(cases.items(), measures, strict=True):
            try:
                outcomes[setting] = self._outcome(source, setting, *case, measured)
            except REFUSED as error:
                outcomes[setting] = SweptOutcome(setting, reason=self.say(error))
        return OutcomeBlock.of(block.numbers, [outcomes[setting] for setting in settings])

    def _program(self, order: SweptSetting, source: ScheduleSource) -> tuple[CaseSweep, UnflushedRuns | None]:
        """Return the lists compiled for many cases, and their longer runs; the last ones are kept."""
        if order not in self._programs:
            self._programs.clear()
            lowered, is_batch = lower(source.schedule), source.longer is None
            program = CaseSweep(lowered, self.conditions.network, is_repeated=is_batch)
            self._programs[order] = program, None if is_batch else UnflushedRuns(lowered, source.longer)
        return self._programs[order]

    def has_bytes(self, setting: SweptSetting) -> bool:
        """Whether the costs say what a setting holds.

        Raises:
            ArgumentError, ScheduleError, ProfileError, SimulationError: The setting cannot be.
        """
        conditions = replace(self.conditions, microbatch_size=setting.microbatch_size)
        any_cut = replace(conditions, partition="uniform") if conditions.cuts_layers else conditions
        return any_cut.costs_of(_source(setting.order)).has_bytes

    def uneven_cuts(self, outcomes: Sequence[SweptOutcome]) -> list[str]:
        """Return lines, at most three, on stages of unlike numbers of layers, each cut of a schedule's ranks once.

        Args:
            outcomes: What can be, the best first: of a schedule on so many ranks the first one counts.
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
        """Return the costs of a schedule; those of a device or a cut are the same for all that share it alike."""
        known, schedule, size = self.conditions, source.schedule, setting.microbatch_size
        if known.cuts_layers:
            known = self._cut(source, setting)
        elif size != known.microbatch_size:
            known = replace(known, microbatch_size=size)
        if isinstance(known.costs, DeviceCost):
            key: object = (size, schedule.num_stages, stage_share(schedule))
        elif isinstance(known.costs, Profile | LayerCosts):
            key = (
                size,
                known.partition,
                schedule.num_stages,
                schedule.ranks_per_device,
                schedule.columns.splits_backward,
            )
        else:
            return known.costs_of(source)
        if key not in self._known_costs:
            self._known_costs[key] = known.costs_of(source)
        return self._known_costs[key]

    def _cluster(self, schedule: Schedule, link: Mapping[str, float]) -> Cluster:
        """Return the machines of a setting, every device with the limit if there is one."""
        if link:
            devices = (Device(memory_bytes=self.limit_bytes),) * (max(schedule.rank_to_device) + 1)
            return Cluster(devices, Link(**link))
        cluster = self.conditions.cluster_of(schedule)
        if self.limit_bytes is None:
            return cluster
        return replace(
            cluster, devices=tuple(replace(device, memory_bytes=self.limit_bytes) for device in cluster.devices)
        )

    def _outcome(
        self,
        source: ScheduleSource,
        setting: SweptSetting,
        costs: StageCosts,
        cluster: Cluster,
        measured: CaseMeasures | None,
    ) -> SweptOutcome:
        schedule = source.schedule
        if measured is None:
            conditions = replace(self.conditions, microbatch_size=setting.microbatch_size, cluster=cluster)
            measured = _simulated(source, conditions.cut(source), self.num_runs)
        num_devices = len(set(schedule.rank_to_device))
        pace: SteadyPace | Inexact = Inexact("")
        scenario = Scenario(schedule, costs, cluster, self.conditions.network)
        if measured.period_s and drifting_scenario(scenario) is None:
            bubble_fraction = idle_share(measured.busy_s, num_devices, measured.period_s)
            pace = SteadyPace(measured.period_s / schedule.num_microbatches, bubble_fraction)
        elif self.is_steady and not self.conditions.jitter:
            _, runs = self._program(setting.order, source)
            pace = steady_pace(scenario, measured.timeline, source.longer, runs)
        limits = {device: cluster.devices[device].memory_bytes for device in schedule.rank_to_device}
        over = [
            f"device {device} holds {held_bytes} bytes of {limit}"
            for device, held_bytes in sorted(measured.peak_bytes.items())
            if (limit := limits[device]) is not None and held_bytes > limit
        ]
        return SweptOutcome(
            setting,
            measured.makespan_s,
            idle_share(measured.busy_s, num_devices, measured.makespan_s),
            None if isinstance(pace, Inexact) else pace.s_per_microbatch,
            None if isinstance(pace, Inexact) else pace.bubble_fraction,
            max(measured.peak_bytes.values(), default=None),
            is_judged=bool(measured.peak_bytes) and any(limit is not None for limit in limits.values()),
            reason=over_memory_reason(over[0] if over else None),
        )


def _simulated(source: ScheduleSource, conditions: Conditions, num_runs: int) -> CaseMeasures:
    """Return the measures of a simulation; of several runs with jitter, those of the run of median makespan."""
    prediction = predict_source(source, conditions)
    if num_runs > 1:
        seconds = makespans_of_runs(prediction, num_runs, is_shared=False)
        median = seconds.index(median_low(seconds))
        prediction = predict_source(source, replace(conditions, seed=conditions.seed + median))
    busy_s = metrics(prediction.bare_timeline).busy_s
    peaks = {device: peak.total_bytes for device, peak in peak_memory(prediction.timeline.memory).items()}
    return CaseMeasures(prediction.makespan_s, busy_s, peaks, None, prediction.bare_timeline)


def _is_walkable(block: SettingBlock, source: ScheduleSource) -> bool:
    """Whether the steps of lists may say all of a block."""
    return source.longer is None and block.links.keys() <= _WALKED_LINKS and walkable(source.schedule)


_WALKED_LINKS = {"latency_s", "bandwidth_bytes_per_s"}


@lru_cache(maxsize=8)
def _source(order: SweptSetting) -> ScheduleSource:
    """Return the schedule of a setting; the last ones are kept, as settings of many sizes have the same lists."""
    counts = order.num_ranks, order.num_microbatches, order.num_chunks
    source = source_of_entry(find(order.schedule), *counts, dict(order.parameters))
    if not order.recomputes:
        return source
    longer = None if source.longer is None else partial(_recomputed, source.longer)
    return ScheduleSource(recompute(source.schedule), longer)


def _recomputed(longer: Callable[[int], Schedule], times: int) -> Schedule:
    return recompute(longer(times))
