"""The judge of a sweep: predicts settings that share lists together, in columns, each as `simulate` does."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from pipesched.profiles.clusters import Cluster, Device, Link
from pipesched.profiles.costs import DeviceCost, StageCosts
from pipesched.schedules import Schedule, stage_share
from pipesched.schedules.lowering import lower
from pipesched.schedules.transforms import recompute
from pipesched.simulator import Scenario, SteadyPace, is_usual
from pipesched.simulator.analysis import metrics
from pipesched.simulator.engine import require_simulable
from pipesched.simulator.fast import idle_share
from pipesched.simulator.memory import peak_memory
from pipesched.simulator.search import over_memory_reason
from pipesched.simulator.sweep import (
    NOTHING_S,
    CaseColumns,
    CaseMeasures,
    CaseSweep,
    Links,
    OutcomeBlock,
    RepeatedLists,
    SettingBlock,
    SweptOutcome,
    SweptSetting,
    WalkedLists,
    walkable,
)
from pipesched.workflows.arguments import ScheduleSource, read_schedule_argument
from pipesched.workflows.simulating import REFUSED, Conditions, cut_text, pace_of_source, predict_source

_Four: TypeAlias = tuple[Any, Any, Any, Any]


@dataclass(slots=True)
class _Lists:
    """Lists of settings, and what predicts them: the steps of a walk, or one program for all cases, or a simulation.

    Attributes:
        source: The schedule, and where it comes from.
        walked: Its steps; None where they do not say all.
        longer: Longer runs of it.
        programs: The program of all cases, if it has been needed.
        costs: Costs, by samples of a micro-batch.
    """

    source: ScheduleSource
    walked: WalkedLists | None
    longer: RepeatedLists
    programs: CaseSweep | None = None
    costs: dict[Any, StageCosts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SweepJudge:
    """Predicts blocks of settings; can be sent to another process.

    Attributes:
        conditions: What all settings have in common: costs, machines, network.
        limit_bytes: What every device may hold; None: as the machines say.
        is_steady: Whether longer runs are simulated where a batch does not show its steady pace.
        say: Makes the reason of an error.
        num_threads: Threads that share out the links of a block.
    """

    conditions: Conditions
    limit_bytes: int | None = None
    is_steady: bool = True
    say: Callable[[Exception], str] = str
    num_threads: int = 1
    _kept: dict[SweptSetting, _Lists] = field(default_factory=dict, init=False, repr=False, compare=False)
    _device_costs: dict[Any, StageCosts] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __call__(self, block: SettingBlock) -> OutcomeBlock:
        """Return what the settings of a block amount to."""
        try:
            lists = self._lists(block.order, len(block.numbers))
            costs = self._costs(lists, block.size)
        except REFUSED as error:
            reason = self.say(error)
            return OutcomeBlock.of(block.numbers, [SweptOutcome(s, reason=reason) for s in block.settings()])
        try:
            outcome = self._in_columns(block, lists, costs)
        except REFUSED:  # whatever the links are: what one of the settings says holds of all
            single = self._one_by_one(next(block.singles()), lists)
            if math.isnan(single.seconds[0]):
                settings = block.settings()
                return OutcomeBlock.of(block.numbers, [SweptOutcome(s, reason=single.reasons[0]) for s in settings])
            outcome = None
        return self._one_by_one(block, lists) if outcome is None else outcome

    def _in_columns(self, block: SettingBlock, lists: _Lists, costs: StageCosts) -> OutcomeBlock | None:
        """Return what a block amounts to, by the steps of its lists; None where these do not say it."""
        schedule, walked, count = lists.source.schedule, lists.walked, len(block.numbers)
        if walked is None or not block.links.keys() <= {"latency_s", "bandwidth_bytes_per_s"}:
            return None
        cluster = self._cluster(schedule, {})
        require_simulable(schedule, costs, cluster, self.conditions.network, 0.0)
        if cluster.nics or cluster.has_hand_over or not walked.can_add_up(costs):
            return None
        if count > 1 and not walked.takes_many:
            return OutcomeBlock.joined([self._in_columns(single, lists, costs) for single in block.singles()])
        links, devices, has_bytes = _links(block), schedule.rank_to_device, costs.has_bytes
        measured = walked.measures(costs, cluster, devices, links, with_bytes=has_bytes, num_threads=self.num_threads)
        of = self._of_one if count == 1 else self._of_many
        columns = of(lists, costs, cluster, links, measured)
        if columns is None:
            return None
        limits = [cluster.devices[device].memory_bytes for device in devices]
        is_judged = has_bytes and any(limit is not None for limit in limits)
        held, reasons = _held(measured, devices, limits, count)
        return OutcomeBlock(block.numbers, *columns, held, [is_judged] * count, reasons)

    def _of_one(
        self, lists: _Lists, costs: StageCosts, cluster: Cluster, links: Links | None, measured: CaseColumns
    ) -> _Four | None:
        """Return seconds, bubble and steady pace of one setting; None where it has to be simulated."""
        schedule, busy_s, makespan_s = lists.source.schedule, measured.busy_s, float(measured.makespans_s[0])
        if not (math.isfinite(makespan_s) and busy_s > NOTHING_S):
            return None
        num_devices, period_s = schedule.num_ranks, float(measured.periods_s[0])
        steady: tuple[float, float] = math.nan, math.nan
        if period_s > 0:
            steady = period_s / schedule.num_microbatches, idle_share(busy_s, num_devices, period_s)
        elif self.is_steady:
            pace = lists.longer.pace(costs, cluster, links)
            if pace is not None and pace.bubble_fraction is not None:
                steady = pace.s_per_microbatch, pace.bubble_fraction
        return [makespan_s], [idle_share(busy_s, num_devices, makespan_s)], [steady[0]], [steady[1]]

    def _of_many(
        self, lists: _Lists, costs: StageCosts, cluster: Cluster, links: Links | None, measured: CaseColumns
    ) -> _Four | None:
        """Return the same of several settings."""
        import numpy as np

        schedule, makespans_s, periods_s = lists.source.schedule, measured.makespans_s, measured.periods_s
        if not (np.isfinite(makespans_s).all() and measured.busy_s > NOTHING_S):
            return None
        num_devices, busy_s = schedule.num_ranks, measured.busy_s
        is_shown = periods_s > 0
        steady_s = np.where(is_shown, periods_s / schedule.num_microbatches, np.nan)
        shares = 1 - busy_s / (num_devices * np.where(is_shown, periods_s, 1.0))
        steady = np.where(is_shown, np.maximum(0.0, shares), np.nan)
        if self.is_steady:
            assert links is not None, "there are several"
            for place in np.flatnonzero(~is_shown).tolist():
                link = Links([links.latencies_s[place]], [links.bandwidths[place]])
                pace = lists.longer.pace(costs, cluster, link)
                if pace is not None:
                    steady_s[place], steady[place] = pace.s_per_microbatch, pace.bubble_fraction
        return makespans_s, np.maximum(0.0, 1 - busy_s / (num_devices * makespans_s)), steady_s, steady

    def _one_by_one(self, block: SettingBlock, lists: _Lists) -> OutcomeBlock:
        """Return what settings amount to of which the steps of a walk do not say all."""
        settings, schedule = [*block.settings()], lists.source.schedule
        outcomes: dict[SweptSetting, SweptOutcome] = {}
        cases: dict[SweptSetting, tuple[StageCosts, Cluster]] = {}
        for setting in settings:
            try:
                cases[setting] = (
                    self._costs(lists, block.size),
                    self._cluster(schedule, dict(setting.link)),
                )
            except REFUSED as error:
                outcomes[setting] = SweptOutcome(setting, reason=self.say(error))
        try:
            if lists.programs is None:
                lowered, is_batch = lower(schedule), lists.source.longer is None
                lists.programs = CaseSweep(lowered, self.conditions.network, is_repeated=is_batch)
            measures = lists.programs.measures([*cases.values()])
        except REFUSED:  # in one of the cases: which one is found out below
            measures = [None] * len(cases)
        for (setting, case), measured in zip(cases.items(), measures, strict=True):
            try:
                outcomes[setting] = self._outcome(lists.source, setting, *case, measured)
            except REFUSED as error:
                outcomes[setting] = SweptOutcome(setting, reason=self.say(error))
        return OutcomeBlock.of(block.numbers, [outcomes[setting] for setting in settings])

    def has_bytes(self, setting: SweptSetting) -> bool:
        """Whether the costs say what a setting holds.

        Raises:
            ArgumentError, ScheduleError, ProfileError, SimulationError: The setting cannot be.
        """
        conditions = replace(self.conditions, microbatch_size=setting.microbatch_size)
        return conditions.costs_of(_source(setting.order)).has_bytes

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
            layers = replace(self.conditions, microbatch_size=setting.microbatch_size).layers_of(source)
            if layers is not None and len(set(layers)) > 1:
                names.setdefault(cut_text(source.schedule, layers), []).append(setting.schedule)
        return [f"{', '.join(alike)}: {cut}" for cut, alike in names.items()][:3]

    def _lists(self, order: SweptSetting, num_cases: int) -> _Lists:
        """Return the lists of settings; the last ones are kept."""
        if order not in self._kept:
            self._kept.clear()
            source, network = _source(order), self.conditions.network
            schedule, walked = source.schedule, None
            if source.longer is None and is_usual(network) and walkable(schedule):
                walked = WalkedLists(
                    schedule.columns, schedule.num_stages, schedule.num_microbatches, num_cases=num_cases
                )
                walked = walked if walked.is_walked else None
            self._kept[order] = _Lists(source, walked, RepeatedLists(schedule))
        return self._kept[order]

    def _costs(self, lists: _Lists, size: int | None) -> StageCosts:
        known, schedule = self.conditions, lists.source.schedule
        kept: dict[Any, StageCosts] = lists.costs
        key: Any = size
        if isinstance(known.costs, DeviceCost):  # whose stages are the same in all lists of as many
            kept, key = self._device_costs, (size, schedule.num_stages, stage_share(schedule))
        if key not in kept:
            conditions = known if size == known.microbatch_size else replace(known, microbatch_size=size)
            kept[key] = conditions.costs_of(lists.source)
        return kept[key]

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
            measured = _simulated(source, conditions)
        num_devices = len(set(schedule.rank_to_device))
        pace: SteadyPace | None = None
        if measured.period_s:
            bubble_fraction = idle_share(measured.busy_s, num_devices, measured.period_s)
            pace = SteadyPace(measured.period_s / schedule.num_microbatches, bubble_fraction)
        elif measured.timeline is not None and self.is_steady:
            scenario = Scenario(schedule, costs, cluster, self.conditions.network)
            pace = pace_of_source(source, measured.timeline, scenario)
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
            None if pace is None else pace.s_per_microbatch,
            None if pace is None else pace.bubble_fraction,
            max(measured.peak_bytes.values(), default=None),
            is_judged=bool(measured.peak_bytes) and any(limit is not None for limit in limits.values()),
            reason=over_memory_reason(over[0] if over else None),
        )


def _links(block: SettingBlock) -> Links | None:
    """Return what all links have in each setting of a block; None where they are not varied."""
    if not block.links:
        return None
    usual, count = Link(), len(block.numbers)
    latencies_s = block.links.get("latency_s", [usual.latency_s] * count)
    return Links(latencies_s, block.links.get("bandwidth_bytes_per_s", [usual.bandwidth_bytes_per_s] * count))


def _held(
    measured: CaseColumns, devices: Sequence[int], limits: Sequence[int | None], count: int
) -> tuple[Any, dict[int, str]]:
    """Return the most that a device holds in each setting, and the reasons of those in which one has too little."""
    if not len(measured.peaks):
        return [-1] * count, {}
    if count == 1:
        peaks: Any = [[int(peak)] for peak in measured.peaks]
        held: Any = [max(peak for (peak,) in peaks)]
    else:
        peaks = measured.peaks
        held = peaks.max(axis=0)
    reasons: dict[int, str] = {}
    for device, limit, of_device in sorted(zip(devices, limits, peaks, strict=True), key=lambda item: item[0]):
        if limit is not None:
            for place in [0] * (of_device[0] > limit) if count == 1 else (of_device > limit).nonzero()[0].tolist():
                text = f"device {device} holds {int(of_device[place])} bytes of {limit}"
                reasons.setdefault(place, over_memory_reason(text) or "")
    return held, reasons


def _simulated(source: ScheduleSource, conditions: Conditions) -> CaseMeasures:
    """Return what a simulation says, where nothing else is exact."""
    prediction = predict_source(source, conditions)
    busy_s = metrics(prediction.bare_timeline).busy_s
    peaks = {device: peak.total_bytes for device, peak in peak_memory(prediction.timeline.memory).items()}
    return CaseMeasures(prediction.makespan_s, busy_s, peaks, None, prediction.bare_timeline)


def _source(order: SweptSetting) -> ScheduleSource:
    source = read_schedule_argument(
        order.schedule,
        num_ranks=order.num_ranks,
        num_microbatches=order.num_microbatches,
        num_chunks=order.num_chunks,
        parameters=dict(order.parameters),
    )
    if not order.recomputes:
        return source
    longer = None if source.longer is None else partial(_recomputed, source.longer)
    return ScheduleSource(recompute(source.schedule), longer)


def _recomputed(longer: Callable[[int], Schedule], times: int) -> Schedule:
    return recompute(longer(times))
