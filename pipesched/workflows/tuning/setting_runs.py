"""Measurement of the tuner's settings: runs by one process per rank on this machine, and their record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, TypeAlias

from pipesched.executor import Repetitions, RunSettings
from pipesched.profiles import ProfileError
from pipesched.profiles.costs import Profile
from pipesched.profiles.processes import num_cores
from pipesched.questions import MeasureSettings
from pipesched.schedules import ScheduleError, Timeline, repeat
from pipesched.schedules.common import values_of
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Step
from pipesched.simulator.fidelity import MedianInterval, median_interval
from pipesched.simulator.memory import over_capacity, peak_memory
from pipesched.simulator.search import Lag, Outcome, Setting, over_memory_reason
from pipesched.simulator.tuner import Problem
from pipesched.workflows import ArgumentError

if TYPE_CHECKING:
    from pipesched.executor.launch import RunSpec
    from pipesched.executor.runs import Measured

RunLists: TypeAlias = "Callable[[RunSpec, Callable[[float], None]], Measured]"
"""A function that runs lists once and returns the measurement; its second argument is called with the progress."""


@dataclass(frozen=True, slots=True)
class RunSetting:
    """A setting that was run, beside its prediction; seconds are of a batch.

    Attributes:
        outcome: The setting's outcome, as the evaluator predicts it.
        runs: The measured outcome of each run.
        lag: Excess of the setting's time over the leader's of a race; None for the leader, for a setting that cannot
            be run, and without a race.
        may_be_fastest: Whether no other setting is proven to be faster.
        refusal: Why the setting cannot be run, or None if it can.
    """

    outcome: Outcome
    runs: tuple[Outcome, ...] = ()
    lag: Lag | None = None
    may_be_fastest: bool = True
    refusal: str | None = None

    @property
    def samples_s(self) -> tuple[float, ...]:
        """Measured seconds of every run."""
        return tuple(run.seconds for run in self.runs if run.seconds is not None)

    @property
    def measured(self) -> MedianInterval | None:
        """Measured seconds: the median of the runs, or None without a run."""
        return median_interval(self.samples_s) if self.samples_s else None

    @property
    def measured_s(self) -> float:
        """The median of the measured seconds; the setting must have a run."""
        return median(self.samples_s)

    @property
    def predicted_s(self) -> float:
        """Predicted seconds."""
        return self.outcome.seconds or 0.0


def measure_settings(runs: RunSettings, repetitions: Repetitions) -> MeasureSettings:
    """Return the settings of runs and of their repetitions in one."""
    return MeasureSettings(**values_of(runs, RunSettings), **values_of(repetitions, Repetitions))


def require_same_layers(profile: Profile) -> None:
    """Refuse, before any search, a profile whose model cannot be run.

    Raises:
        ArgumentError: The model has other layers than the profile.
        ProfileError: The model does not exist, or the profile is not trusted.
    """
    from pipesched.profiles.models import resolve_model
    from pipesched.profiles.processes import prints_to_stderr

    with prints_to_stderr():
        model = resolve_model(profile.model)
    if len(model.layers) != len(profile.layers):
        raise ArgumentError(
            f"profile: got a profile of {profile.model} with {len(profile.layers)} layers, expected "
            f"{len(model.layers)}, the layers of the model; profile the model again"
        )


@dataclass(frozen=True, slots=True)
class Measurement:
    """A judge of settings that runs them.

    Attributes:
        settings: Settings of a run. One list has all its iterations, because pipelines do not wait for each other
            between iterations.
        drift: Further uncounted iterations for several pipelines, which begin together and drift apart.
        runs: Runs lists; None: processes of this machine run them.
    """

    problem: Problem
    settings: MeasureSettings = MeasureSettings()  # noqa: RUF009 -- frozen
    drift: int = 20
    runs: RunLists | None = None

    def __call__(
        self,
        setting: Setting,
        tick: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
    ) -> Outcome:
        """Run `setting`; return the seconds of the median iteration and the peak bytes of the devices.

        Raises:
            RankFailed: A rank failed, died or hung.
        """
        from pipesched.executor.runs import launch

        try:
            spec = self._spec_of(setting)
        except (ScheduleError, ProfileError) as error:
            return Outcome(setting, reason=str(error))
        timeline = (self.runs or launch)(spec, tick).timeline
        held_bytes = max((peak.total_bytes for peak in peak_memory(timeline.memory).values()), default=0)
        over = over_capacity(timeline.memory, self.problem.cluster, timeline)
        seconds = _iteration_s(timeline, setting.num_pipelines, self._skipped(setting)) / setting.num_pipelines
        return Outcome(setting, seconds, held_bytes, over_memory_reason(over), yardstick=timeline.yardstick)

    def look(self) -> float:
        """Return the seconds of a fixed kernel while other cores are as busy as in a run."""
        from pipesched.profiles.measuring import yardstick_s

        num_busy = min(len(self.problem.cluster.devices), num_cores())
        return yardstick_s(num_busy, self.problem.profile.provenance.kind)

    def num_iterations(self, setting: Setting) -> int:
        """Return the iterations in one run: warm-up, the counted ones, and one whose Step begins the first of these."""
        return 1 + self._skipped(setting) + self.settings.iterations

    def _skipped(self, setting: Setting) -> int:
        return self.settings.warmup + (self.drift if setting.num_pipelines > 1 else 0)

    def _spec_of(self, setting: Setting) -> RunSpec:
        from pipesched.workflows.measuring import modelled_spec  # loads torch, which a search does without

        problem, once = self.problem, replace(self.settings, iterations=1, warmup=0)
        schedule = lower(problem.all_lists(setting, problem.costs(setting)))
        lists = repeat(schedule, self.num_iterations(setting)).held()
        size = problem.microbatch_size(setting)
        return modelled_spec(lists, problem.profile.model, problem.bounds(setting), size, once)


def _iteration_s(timeline: Timeline, num_pipelines: int, skipped: int) -> float:
    """Return the seconds of the median iteration of any pipeline, from Step to Step of its first rank.

    Args:
        timeline: Timeline of a list with all iterations one after the other.
        skipped: Iterations that do not count, besides the first.
    """
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
