"""A setting as it really is: run by one process per rank on this machine (the traversal of ``tune``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from pipesched.cli.errors import InputError
from pipesched.cli.flows.run_jobs import RunOptions
from pipesched.cli.options.torch_options import load_model

if TYPE_CHECKING:
    from pipesched.executor.launch import RunSpec
    from pipesched.schedules import Timeline
    from pipesched.simulator.tuner import Problem, Setting, SettingOutcome


def with_trust(problem: Problem) -> Problem:
    """Return `problem` with a profile that may name what is imported."""
    from pipesched.profiles.io import trusted

    return replace(problem, profile=replace(problem.profile, model=trusted(problem.profile.model)))


def require_model(problem: Problem, option: str) -> None:
    """Refuse, before anything is searched, a profile whose model cannot be run.

    Raises:
        InputError: It has other layers than the profile.
        ProfileError: There is no such model, or the profile is not trusted.
    """
    model = load_model(problem.profile.model)
    if len(model.layers) != len(problem.profile.layers):
        raise InputError(
            f"{option}: got a profile of {problem.profile.model} with {len(problem.profile.layers)} layers, expected "
            f"the {len(model.layers)} of that model; profile it again"
        )


@dataclass(frozen=True, slots=True)
class Measurement:
    """A judge of settings that runs them.

    Attributes:
        options: How to run; `warmup` and `iterations` are counted in one list that has all of them, for pipelines do
            not wait for each other between iterations.
        drift: Iterations more before those that count, where there are several pipelines: they begin together, and
            drift apart.
    """

    problem: Problem
    options: RunOptions
    drift: int = 20

    def __call__(
        self,
        setting: Setting,
        tick: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
    ) -> SettingOutcome:
        """Run `setting`; its seconds are those of the median iteration, its bytes what the processes held.

        Raises:
            RankFailed: A rank failed, died or hung.
        """
        from pipesched.executor.runs import launch
        from pipesched.profiles import ProfileError
        from pipesched.schedules import ScheduleError
        from pipesched.simulator.memory import over_capacity, peak_memory
        from pipesched.simulator.tuner import SettingOutcome

        try:
            job = self._job(setting)
        except (ScheduleError, ProfileError) as error:
            return SettingOutcome(setting, reason=str(error))
        timeline = launch(job, tick).timeline
        held_bytes = max((peak.total_bytes for peak in peak_memory(timeline.memory).values()), default=0)
        over = over_capacity(timeline.memory, self.problem.cluster, timeline)
        seconds = _iteration_s(timeline, setting.num_pipelines, self._skipped(setting)) / setting.num_pipelines
        return SettingOutcome(setting, seconds, held_bytes, None if over is None else f"over memory: {over}")

    def _skipped(self, setting: Setting) -> int:
        return self.options.warmup + (self.drift if setting.num_pipelines > 1 else 0)

    def _job(self, setting: Setting) -> RunSpec:
        from pipesched.profiles.costs import layer_seconds
        from pipesched.profiles.partitioning import parse_partition
        from pipesched.schedules import repeat
        from pipesched.schedules.lowering import lower

        problem = self.problem
        size = problem.microbatch_size(setting.num_microbatches)
        schedule = lower(setting.build(len(problem.cluster.devices)))
        bounds = parse_partition(problem.partition, layer_seconds(problem.profile, size), schedule.num_stages)
        times = 1 + self._skipped(setting) + self.options.iterations
        once = replace(self.options, warmup=0, iterations=1)
        whole = repeat(schedule, times).held()
        return once.job(whole, model=problem.profile.model, bounds=bounds, microbatch_size=size)


def _iteration_s(timeline: Timeline, num_pipelines: int, skipped: int) -> float:
    """Return the seconds of the median iteration of any pipeline, from Step to Step of its first rank.

    Args:
        timeline: Of a list that goes through the iterations one after the other.
        skipped: Iterations that do not count, besides the first.
    """
    from pipesched.schedules import Step

    num_ranks = 1 + max(span.rank for span in timeline.spans)
    laps_s: list[float] = []
    ends_s = []
    for rank in range(0, num_ranks, num_ranks // num_pipelines):
        spans = [span for span in timeline.spans if span.rank == rank and isinstance(span.op, Step)]
        first = spans[0].op  # of several stages, one
        ends_s.append([span.end_s for span in spans if span.op == first])
    until_s = min(ends[-1] for ends in ends_s)  # after that the others have the devices for themselves
    for ends in ends_s:
        counted = [end_s for end_s in ends[skipped:] if end_s <= until_s]
        laps_s += [end_s - start_s for start_s, end_s in pairwise(counted)]
    return median(laps_s)
