"""Time and memory of one setting, as our model has them or as AvgPipe's equations do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from profiles.cluster import Cluster
from profiles.errors import ProfileError
from profiles.partition import parse_partition
from profiles.profile import Profile, layer_seconds, stage_costs
from profiles.stage_costs import StageCosts
from schedules.lower import lower
from schedules.schedule import Schedule, ScheduleError
from schedules.timeline import Timeline
from simulator.errors import SimulationError
from simulator.in_step import in_step
from simulator.longest_path import is_unshared
from simulator.memory import memory, over_capacity, peak_memory
from simulator.simulate import simulate
from simulator.tuner.outcome import Outcome
from simulator.tuner.predictor import Accounting, SettingProfile, predict, profile_setting
from simulator.tuner.setting import AVGPIPE, Setting


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
        size, left = divmod(self.batch_size, num_microbatches)
        if left:
            raise ProfileError(
                f"got a batch of {self.batch_size} samples in {num_microbatches} micro-batches, expected equal ones"
            )
        return _costs(self.profile, self.partition, size, num_stages)


@lru_cache(maxsize=256)
def _costs(profile: Profile, partition: str, size: int, num_stages: int) -> StageCosts:
    bounds = parse_partition(partition, layer_seconds(profile, size), num_stages)
    return stage_costs(profile, bounds, size)


def evaluate(problem: Problem, setting: Setting) -> Outcome:
    """Predict a setting with our model: a longest path wherever that is the same, SimPy elsewhere."""
    try:
        timeline, _ = _run(problem, setting)
    except (ScheduleError, ProfileError, SimulationError) as error:
        return Outcome(setting, reason=str(error))
    held_bytes = max((peak.total_bytes for peak in peak_memory(timeline.memory).values()), default=0)
    over = over_capacity(timeline.memory, problem.cluster, timeline)
    reason = None if over is None else f"over memory: {over}"
    return Outcome(setting, timeline.makespan_s / setting.num_pipelines, held_bytes, reason)


def _run(problem: Problem, setting: Setting) -> tuple[Timeline, StageCosts]:
    """Return one pipeline's part of an iteration, or all, with the memory of all, and what it was simulated with."""
    cluster = problem.cluster
    one = _one_pipeline(replace(setting, num_pipelines=min(2, setting.num_pipelines)), len(cluster.devices))
    costs = problem.costs(setting.num_microbatches, one.num_stages)
    if is_unshared(one, cluster):
        return in_step(one, costs, cluster, setting.num_pipelines), costs
    lowered = lower(setting.build(len(cluster.devices)))
    timeline = simulate(lowered, costs, cluster)
    return replace(timeline, memory=memory(timeline, costs, lowered)), costs


@lru_cache(maxsize=8)
def _one_pipeline(setting: Setting, num_devices: int) -> Schedule:
    """Return the lists of one pipeline, which are the same beside one other and beside many."""
    return lower(setting.build_one(num_devices))


def measure(problem: Problem, setting: Setting) -> SettingProfile:
    """Return the profile of one setting that the equations start from, out of our model.

    Raises:
        ScheduleError, ProfileError, SimulationError: The setting cannot be.
    """
    timeline, costs = _run(problem, setting)
    return profile_setting(timeline, costs, setting.num_pipelines)


def evaluate_by_equations(
    problem: Problem, profile: SettingProfile, accounting: Accounting, setting: Setting
) -> Outcome:
    """Predict a setting with AvgPipe's equations, which speak of its own schedule only."""
    if setting.schedule != AVGPIPE:
        return Outcome(setting, reason=f"AvgPipe's equations say nothing of {setting.schedule}; try simulate")
    try:
        problem.costs(setting.num_microbatches, len(profile.devices))
    except ProfileError as error:
        return Outcome(setting, reason=str(error))
    found = predict(profile, setting.num_microbatches, setting.num_pipelines, accounting)
    reasons = [
        f"over memory: device {index} holds {each.held_bytes:.0f} bytes of {device.memory_bytes}"
        for index, (each, device) in enumerate(zip(found.devices, problem.cluster.devices, strict=True))
        if device.memory_bytes is not None and each.held_bytes > device.memory_bytes
    ]
    return Outcome(setting, found.seconds, round(found.held_bytes), reasons[0] if reasons else None)
