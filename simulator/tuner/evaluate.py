"""Predict the time and memory of one setting, with our model or with AvgPipe's equations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import Profile, StageCosts, costs_of_stages, layer_seconds
from pipesched.profiles.partitioning import parse_partition
from pipesched.schedules import Schedule, ScheduleError, Timeline
from pipesched.schedules.lowering import lower
from pipesched.schedules.transforms import recompute
from pipesched.simulator import SimulationError
from pipesched.simulator.engine import simulate
from pipesched.simulator.fast import DriftArrays, InStep, in_numbers, in_step, is_unshared, steady_s
from pipesched.simulator.memory import OverCapacity, memory, over_capacity, peak_memory
from pipesched.simulator.tuner.outcome import SettingOutcome
from pipesched.simulator.tuner.predictor import Accounting, SettingProfile, predict_setting, profile_setting
from pipesched.simulator.tuner.setting import AVGPIPE, Setting

_FOLLOWED = 2
"""Micro-batches for each device of a pipeline, in the drift of several."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What every setting has in common.

    Attributes:
        profile: Of the model.
        batch_size: Samples in the batch of one pipeline.
        cluster: As many devices as the pipeline has, with their memory.
        partition: Layers to stages, as in `parse_partition`.
    """

    profile: Profile
    batch_size: int
    cluster: Cluster
    partition: str = "balanced"

    def covers(self, num_microbatches: int) -> bool:
        """Whether a batch can be cut so, and the profile knows micro-batches of that size."""
        sizes = self.profile.microbatch_sizes
        size, left = divmod(self.batch_size, num_microbatches)
        return not left and (size in sizes or sizes[0] < size < sizes[-1])

    def costs(self, num_microbatches: int, num_stages: int) -> StageCosts:
        """Return what the stages cost if a batch is cut into so many micro-batches.

        Raises:
            ProfileError: It cannot be cut so, the profile does not cover the size, or there are fewer layers.
        """
        return _costs(self.profile, self.partition, self.microbatch_size(num_microbatches), num_stages)

    def microbatch_size(self, num_microbatches: int) -> int:
        """Return the samples of each, if a batch is cut into so many.

        Raises:
            ProfileError: It cannot be cut so.
        """
        size, left = divmod(self.batch_size, num_microbatches)
        if left:
            raise ProfileError(
                f"got a batch of {self.batch_size} samples in {num_microbatches} micro-batches, expected equal ones"
            )
        return size


@lru_cache(maxsize=256)
def _costs(profile: Profile, partition: str, size: int, num_stages: int) -> StageCosts:
    bounds = parse_partition(partition, layer_seconds(profile, size), num_stages)
    return costs_of_stages(profile, bounds, size)


def evaluate_setting(problem: Problem, setting: Setting) -> SettingOutcome:
    """Predict a setting with our model: a longest path wherever that is the same, SimPy elsewhere.

    Several pipelines that slow each other drift apart, so their time is that of the long run; the memory is what they
    hold when all are at their peak.
    """
    try:
        costs = _costs_of(problem, setting)
        makespan_s, held_bytes, over = _one_iteration(problem.cluster, costs, setting)
        seconds = _iteration_s(problem.cluster, costs, setting, makespan_s)
    except (ScheduleError, ProfileError, SimulationError) as error:
        return SettingOutcome(setting, reason=str(error))
    reason = None if over is None else f"over memory: {over}"
    return SettingOutcome(setting, seconds / setting.num_pipelines, held_bytes, reason)


def _costs_of(problem: Problem, setting: Setting) -> StageCosts:
    num_stages = _one_pipeline(_alike(setting), len(problem.cluster.devices)).num_stages
    return problem.costs(setting.num_microbatches, num_stages)


def _one_iteration(cluster: Cluster, costs: StageCosts, setting: Setting) -> tuple[float, int, OverCapacity | None]:
    """Return what an iteration takes that all begin together [s], what they hold [bytes], what is too much."""
    number, pipeline = setting.num_pipelines, _in_step(_alike(setting), costs, cluster)
    if pipeline is not None:
        times_s = pipeline.times_s(number)
        peaks = pipeline.peaks(times_s, number)
        over = pipeline.over_capacity(times_s, number, peaks)
        return pipeline.makespan_s(times_s), max(peaks.values(), default=0), over
    timeline = _by_simpy(setting, costs, cluster)
    held_bytes = max((peak.total_bytes for peak in peak_memory(timeline.memory).values()), default=0)
    return timeline.makespan_s, held_bytes, over_capacity(timeline.memory, cluster, timeline)


def _iteration_s(cluster: Cluster, costs: StageCosts, setting: Setting, makespan_s: float) -> float:
    """Return the seconds of an iteration, of which one that all pipelines begin together takes `makespan_s`.

    What pipelines lose at the ends of a batch does not grow with M: of many micro-batches some are followed, and each
    of the others adds what it takes on the busiest device.
    """
    number = setting.num_pipelines
    is_nobody_slowed = all(number * cost.utilisation <= 1 for cost in costs.stages)
    if is_nobody_slowed or cluster.nics:
        return makespan_s
    followed, each_s = setting.num_microbatches, _busiest_s(costs, cluster, setting)
    if each_s is not None:
        followed = min(followed, _FOLLOWED * len(cluster.devices) + (setting.advance or 0))
    lists = _lists(replace(_alike(setting), num_microbatches=followed), costs, cluster)
    return steady_s(lists, number) + (setting.num_microbatches - followed) * (each_s or 0.0)


def _busiest_s(costs: StageCosts, cluster: Cluster, setting: Setting) -> float | None:
    """Return what one more micro-batch of all pipelines takes on the device that is full; None where links are."""
    number, devices = setting.num_pipelines, cluster.devices
    forwards = 2 if setting.recomputes else 1
    seconds = [
        max(1.0, number * cost.utilisation) * (forwards * cost.forward_s + (cost.backward_s or 0.0)) / device.speed
        for cost, device in zip(costs.stages, devices, strict=True)
    ]
    busiest_s = max(seconds)
    pairs = [(k, k + 1) for k in range(len(devices) - 1)]
    transfers = [
        number * costs.stages[a].output_bytes / cluster.link(*ends).bandwidth_bytes_per_s
        for a, b in pairs
        for ends in ((a, b), (b, a))
    ]
    is_full = number * costs.stages[seconds.index(busiest_s)].utilisation >= 1
    return busiest_s if is_full and all(transfer_s < busiest_s for transfer_s in transfers) else None


def _alike(setting: Setting) -> Setting:
    """Return one that has the same lists in each of its pipelines: there are two, if there can be several."""
    return setting if setting.advance is None else replace(setting, num_pipelines=2)


@lru_cache(maxsize=8)
def _one_pipeline(setting: Setting, num_devices: int) -> Schedule:
    """Return the lists, lowered. No message comes from R, so it may as well be put in when they are."""
    if setting.recomputes:
        return recompute(_one_pipeline(replace(setting, recomputes=False), num_devices))
    return lower(setting.build_one(num_devices))


@lru_cache(maxsize=8)
def _in_step(setting: Setting, costs: StageCosts, cluster: Cluster) -> InStep | None:
    """Return one of several pipelines, as long as they are in step; None where it is not enough to know one."""
    schedule = _one_pipeline(setting, len(cluster.devices))
    return in_step(schedule, costs, cluster) if is_unshared(schedule, cluster) else None


@lru_cache(maxsize=8)
def _lists(setting: Setting, costs: StageCosts, cluster: Cluster) -> DriftArrays:
    return in_numbers(_one_pipeline(setting, len(cluster.devices)), costs, cluster)


def _by_simpy(setting: Setting, costs: StageCosts, cluster: Cluster) -> Timeline:
    """Return an iteration of all pipelines."""
    lowered = lower(setting.build(len(cluster.devices)))
    timeline = simulate(lowered, costs, cluster)
    return replace(timeline, memory=memory(timeline, costs, lowered))


def measure(problem: Problem, setting: Setting) -> SettingProfile:
    """Return the profile of one setting that the equations start from, out of our model.

    Raises:
        ScheduleError, ProfileError, SimulationError: The setting cannot be.
    """
    costs = _costs_of(problem, setting)
    timeline = _by_simpy(setting, costs, problem.cluster)
    return profile_setting(timeline, costs, setting.num_pipelines)


def evaluate_by_equations(
    problem: Problem, profile: SettingProfile, accounting: Accounting, setting: Setting
) -> SettingOutcome:
    """Predict a setting with AvgPipe's equations, which speak of its own schedule only."""
    if setting.schedule != AVGPIPE:
        return SettingOutcome(setting, reason=f"AvgPipe's equations say nothing of {setting.schedule}; try simulate")
    try:
        problem.costs(setting.num_microbatches, len(profile.devices))
    except ProfileError as error:
        return SettingOutcome(setting, reason=str(error))
    found = predict_setting(profile, setting.num_microbatches, setting.num_pipelines, accounting)
    reasons = [
        f"over memory: device {index} holds {each.held_bytes:.0f} bytes of {device.memory_bytes}"
        for index, (each, device) in enumerate(zip(found.devices, problem.cluster.devices, strict=True))
        if device.memory_bytes is not None and each.held_bytes > device.memory_bytes
    ]
    return SettingOutcome(setting, found.seconds, round(found.held_bytes), reasons[0] if reasons else None)
