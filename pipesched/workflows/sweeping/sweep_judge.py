"""The judge of a sweep: predicts settings that share lists together, each as `simulate` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pipesched.profiles.clusters import Cluster, Device, Link
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Schedule
from pipesched.schedules.lowering import lower
from pipesched.schedules.transforms import recompute
from pipesched.simulator import Scenario, SteadyPace
from pipesched.simulator.analysis import metrics
from pipesched.simulator.fast import idle_share
from pipesched.simulator.memory import peak_memory
from pipesched.simulator.search import over_memory_reason
from pipesched.simulator.sweep import CaseMeasures, CaseSweep, SweptOutcome, SweptSetting
from pipesched.workflows.arguments import ScheduleSource, read_schedule_argument
from pipesched.workflows.simulating import REFUSED, Conditions, cut_text, pace_of_source, predict_source


@dataclass(frozen=True, slots=True)
class SweepJudge:
    """Predicts settings; can be sent to another process.

    Attributes:
        conditions: What all settings have in common: costs, machines, network.
        limit_bytes: What every device may hold; None: as the machines say.
        is_steady: Whether longer runs are simulated where a batch does not show its steady pace.
        say: Makes the reason of an error.
    """

    conditions: Conditions
    limit_bytes: int | None = None
    is_steady: bool = True
    say: Callable[[Exception], str] = str
    _kept: dict[SweptSetting, tuple[ScheduleSource, CaseSweep, dict[int | None, StageCosts]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __call__(self, settings: Sequence[SweptSetting]) -> tuple[SweptOutcome, ...]:
        """Return the outcomes of settings that all have the lists of the first."""
        try:
            source, lists, costs = self._lists(settings[0].order)
        except REFUSED as error:
            reason = self.say(error)
            return tuple(SweptOutcome(setting, reason=reason) for setting in settings)
        outcomes: dict[SweptSetting, SweptOutcome] = {}
        cases: dict[SweptSetting, tuple[StageCosts, Cluster]] = {}
        for setting in settings:
            size = setting.microbatch_size
            try:
                if size not in costs:
                    costs[size] = replace(self.conditions, microbatch_size=size).costs_of(source)
                cases[setting] = costs[size], self._cluster(source.schedule, setting)
            except REFUSED as error:
                outcomes[setting] = SweptOutcome(setting, reason=self.say(error))
        try:
            measures = lists.measures([*cases.values()])
        except REFUSED:  # in one of the cases: which one is found out below
            measures = [None] * len(cases)
        for (setting, case), measured in zip(cases.items(), measures, strict=True):
            try:
                outcomes[setting] = self._outcome(source, setting, *case, measured)
            except REFUSED as error:
                outcomes[setting] = SweptOutcome(setting, reason=self.say(error))
        return tuple(outcomes[setting] for setting in settings)

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

    def _lists(self, order: SweptSetting) -> tuple[ScheduleSource, CaseSweep, dict[int | None, StageCosts]]:
        """Return the lists of settings, what evaluates them together, and costs by size; the last ones are kept."""
        if order not in self._kept:
            self._kept.clear()
            source = _source(order)
            network, is_batch = self.conditions.network, source.longer is None
            self._kept[order] = source, CaseSweep(lower(source.schedule), network, is_repeated=is_batch), {}
        return self._kept[order]

    def _cluster(self, schedule: Schedule, setting: SweptSetting) -> Cluster:
        """Return the machines of a setting, every device with the limit if there is one."""
        if setting.link:
            devices = (Device(memory_bytes=self.limit_bytes),) * (max(schedule.rank_to_device) + 1)
            return Cluster(devices, Link(**dict(setting.link)))
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
