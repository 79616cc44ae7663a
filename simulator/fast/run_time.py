"""The seconds of a whole training run, and of each of its steps, without simulating all of it.

    step    0      1      2    3    4    5    ..    n-1
            |--warm-up--|                |drain|
    known   ------>F      F    F    F    F    ..    F        the loss of a step: its last F of the last stage
                        |<->|  period_s: seconds per step once the pipeline is full

A run of few steps is simulated as it is. For a longer one, two short runs are simulated, the second twice as long as
the first: if in both the last steps come equally fast, all steps in between do too, and each further step adds one
period. Pipelines that slow each other drift apart: each step but the first takes their steady-state time. A run whose
steps change their pace (`hybrid`, which stops pipelining half way) has no such period and is simulated whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from pipesched.schedules import ScheduleError, Timeline
from pipesched.schedules.ops import Phase, computes
from pipesched.simulator import Estimate, Inexact, Scenario, SimulationError
from pipesched.simulator.fast.array_engine import simulate_arrays
from pipesched.simulator.fast.equal_pipelines import predict_drifting
from pipesched.simulator.fast.steady_pace import drifting_scenario

_MAX_CELLS = 200_000
"""Most stages times micro-batches of a run that is simulated whole."""

_STEADY = 1e-3
"""How far, relatively, the pace of two runs may differ to be the same."""


@dataclass(frozen=True, slots=True)
class RunTime:
    """The predicted times of a run.

    Attributes:
        num_steps: Steps of the run.
        known_s: Times when the losses of the first, simulated steps are known [s].
        period_s: Seconds per step in the steady state. If the whole run was simulated, the mean from the first loss to
            the last.
        makespan_s: Makespan of the whole run, with warm-up and drain [s].
    """

    num_steps: int
    known_s: tuple[float, ...]
    period_s: float
    makespan_s: float

    @property
    def steps_per_s(self) -> float:
        """Throughput of the run, with warm-up and drain."""
        return self.num_steps / self.makespan_s

    def at_s(self, step: int) -> float:
        """Return when the loss of `step` is known [s].

        Raises:
            SimulationError: The run has no such step.
        """
        if not 0 <= step < self.num_steps:
            raise SimulationError(f"run: got step {step}, expected 0 to {self.num_steps - 1}")
        beyond = max(0, step - len(self.known_s) + 1)
        return self.known_s[step - beyond] + beyond * self.period_s


def run_time(scenario_of: Callable[[int], Scenario], num_steps: int, microbatches_per_step: int) -> RunTime | Inexact:
    """Predict a run of `num_steps` steps.

    Args:
        scenario_of: Returns the scenario of a run, given its number of steps.
        num_steps: Steps of the run.
        microbatches_per_step: Micro-batches of one step.

    Returns:
        The times of the run, or the reason why they are unknown: the run has several pipelines, or it has no steady
        state and too many steps to simulate.

    Raises:
        SimulationError, ProfileError: As `simulate_lists` does.
        ScheduleError: The lists cannot have that many steps, or as `simulate_lists`.
    """
    scenario = scenario_of(num_steps)
    whole = scenario.schedule
    if scenario.num_pipelines > 1:
        return Inexact(f"{whole.name}: got a run of {scenario.num_pipelines} pipelines, expected one")
    drifting = _drifting(scenario_of, num_steps, microbatches_per_step) if whole.pipelines > 1 else None
    if drifting is not None:
        return drifting
    short = max(16, math.ceil(8 * whole.num_stages / microbatches_per_step))
    if num_steps > 2 * short:
        steady = _steady(scenario_of, num_steps, short, microbatches_per_step)
        if steady is not None:
            return steady
    if whole.num_microbatches * whole.num_stages > _MAX_CELLS:
        return Inexact(
            f"{whole.name}: got {num_steps} steps that reach no steady state, expected at most "
            f"{_MAX_CELLS // (whole.num_stages * microbatches_per_step)}, for a simulation of all steps; try fewer "
            "steps"
        )
    timeline = _simulated(scenario)
    known_s = loss_times_s(timeline, whole.num_stages, microbatches_per_step)
    period_s = (known_s[-1] - known_s[0]) / (num_steps - 1) if num_steps > 1 else timeline.makespan_s
    return RunTime(num_steps, known_s, period_s, timeline.makespan_s)


def _drifting(scenario_of: Callable[[int], Scenario], num_steps: int, microbatches_per_step: int) -> RunTime | None:
    """Return the times of pipelines that slow each other; None if they do not, or have no lists in common."""
    try:
        first = scenario_of(1)
    except ScheduleError:  # lists of several steps
        return None
    several = drifting_scenario(first)
    answer = predict_drifting(several) if isinstance(several, Scenario) else None
    if not isinstance(answer, Estimate):
        return None
    timeline = _simulated(first)
    known_s = loss_times_s(timeline, first.schedule.num_stages, microbatches_per_step)
    makespan_s = timeline.makespan_s + (num_steps - 1) * answer.seconds
    return RunTime(num_steps, known_s, answer.seconds, makespan_s)


def _steady(
    scenario_of: Callable[[int], Scenario], num_steps: int, short: int, microbatches_per_step: int
) -> RunTime | None:
    """Return the run time from two short runs, or None if they have no common pace."""
    try:
        runs = [scenario_of(short), scenario_of(2 * short)]
    except ScheduleError:  # a parameter that only fits the whole run
        return None
    first, second = map(_simulated, runs)
    known_s = loss_times_s(second, runs[1].schedule.num_stages, microbatches_per_step)
    period_s = (second.makespan_s - first.makespan_s) / short
    pace_s = (known_s[-1] - known_s[short - 1]) / short
    if not math.isclose(period_s, pace_s, rel_tol=_STEADY):
        return None
    return RunTime(num_steps, known_s, period_s, second.makespan_s + (num_steps - 2 * short) * period_s)


def _simulated(scenario: Scenario) -> Timeline:
    return simulate_arrays(scenario.schedule.held(), scenario.costs, scenario.cluster, network=scenario.network)


def loss_times_s(timeline: Timeline, num_stages: int, microbatches_per_step: int) -> tuple[float, ...]:
    """Return when the last F of the last stage in each step is over [s]."""
    ends_s: dict[int, float] = {}
    for span in timeline.spans:
        for part in computes(span.op):
            if part.phase is Phase.FORWARD and part.stage == num_stages - 1:
                step = part.microbatch // microbatches_per_step
                ends_s[step] = max(ends_s.get(step, 0.0), span.end_s)
    return tuple(ends_s[step] for step in range(len(ends_s)))
