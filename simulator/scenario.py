"""The interface of every evaluator of time and memory: a scenario in, an estimate or a reason out.

    Scenario ──> evaluator ──> Estimate    seconds, peaks of memory, and the meaning of the seconds
                          └──> Inexact     why this evaluator cannot predict it; another one may

The evaluators and when each of them is exact:

    engine.predict_by_events          always, under SimPy: the reference of all others
    fast.predict_drifting             the pace of equal pipelines in the steady state: no bound, with a random error
    fast.predict_scenario             always, on arrays: the same without SimPy
    fast.EqualPipelines               equal pipelines that begin together, if nothing distinguishes them
    fast.RepeatedRuns                 the pace of a batch that is repeated, where it settles to one
    fast.UnflushedRuns                the pace of a run without a flush, where it settles to one
    fast.steady_pace                  the steady state of any schedule, by one of the others
    fast.run_time                     a training run, where short runs settle to a pace or the whole one is short
    tuner.evaluate_setting            an iteration; the pace where pipelines slow each other
    tuner.predict_setting             AvgPipe's equations, from a profile of another setting: never exact
    planner.predict_candidate         a candidate: an iteration, or the pace of a run without a flush
    planner.Bounds                    the least of a candidate, whose lists need not be made: a bound
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple, TypeAlias

from pipesched.profiles.clusters import Cluster
from pipesched.profiles.costs import StageCosts
from pipesched.schedules import Schedule, Timeline
from pipesched.simulator.network_options import USUAL_NETWORK, NetworkOptions

Engine: TypeAlias = Literal["fast", "simpy"]
"""The engine: a loop over arrays, or SimPy, the readable reference with the same results."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Lists of ops, their costs, and their machines.

    Attributes:
        schedule: Lowered or not. Lists of one pipeline, or lists of several: then `num_pipelines` is 1.
        costs: Seconds of each op alone on its device.
        cluster: Devices and links.
        network: How messages go.
        num_pipelines: Equal pipelines on the same devices, each with micro-batches of its own, all begun together. A
            schedule of one pipeline that is alone has no reference model: its Averages take no time and no memory.
    """

    schedule: Schedule
    costs: StageCosts
    cluster: Cluster
    network: NetworkOptions = USUAL_NETWORK
    num_pipelines: int = 1


class Meaning(StrEnum):
    """The meaning of the seconds of a prediction."""

    ITERATION = "iteration"
    PACE = "pace"


class Precision(StrEnum):
    """The relation of an estimate to SimPy's result.

    EXACT        equal, but for rounding
    BOUND        never above
    APPROXIMATE  near, above or below
    """

    EXACT = "exact"
    BOUND = "bound"
    APPROXIMATE = "approximate"


@dataclass(frozen=True, slots=True)
class Estimate:
    """Time and memory of a scenario.

    Attributes:
        meaning: Whether `seconds` is an iteration of all pipelines from its first work to its last, or the
            pace at which iterations follow each other in the steady state.
        seconds: The seconds of the iteration, or between two of them at that pace [s].
        peak_bytes: Peak memory of each device that holds any; empty if the evaluator does not compute it.
        over_memory: Which op first takes a device over its memory, or None if none does.
        timeline: Timeline of the ops, with memory, or None if the evaluator makes none.
        precision: Precision of seconds and bytes.
        error: Relative error of approximate seconds; 0 if unknown.
        bubble_fraction: Idle share of all device time at a pace, or None if the evaluator does not compute it.
    """

    meaning: Meaning
    seconds: float
    peak_bytes: Mapping[int, int]
    over_memory: str | None = None
    timeline: Timeline | None = None
    precision: Precision = Precision.EXACT
    error: float = 0.0
    bubble_fraction: float | None = None

    def pace(self, num_microbatches: int) -> SteadyPace:
        """Return the pace of iterations of `num_microbatches` micro-batches, of all pipelines together."""
        return SteadyPace(self.seconds / num_microbatches, self.bubble_fraction, self.error or None)


@dataclass(frozen=True, slots=True)
class Inexact:
    """The reason why an evaluator has no answer: it would have to leave something out."""

    reason: str


class SteadyPace(NamedTuple):
    """The pace of batches that follow one another, or of a run without a flush in the steady state.

    Attributes:
        s_per_microbatch: Seconds of a micro-batch, of all pipelines together.
        bubble_fraction: Idle share of all device time; None for pipelines that slow each other, whose works drift.
        error: Relative error of the seconds: the standard error of pipelines that drift, or None if the pace is exact.
    """

    s_per_microbatch: float
    bubble_fraction: float | None
    error: float | None = None


EvaluateScenario: TypeAlias = Callable[[Scenario], Estimate | Inexact]
"""Raises ScheduleError, SimulationError or ProfileError if no evaluator can predict the scenario."""
