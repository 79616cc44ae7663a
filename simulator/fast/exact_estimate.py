"""The quickest evaluator that is exact for a scenario."""

from __future__ import annotations

from pipesched.simulator import Estimate, Scenario, SimulationError
from pipesched.simulator.engine import predict_by_events
from pipesched.simulator.fast.lockstep import predict_in_lockstep
from pipesched.simulator.fast.longest_path import predict_by_longest_path


def predict_scenario(scenario: Scenario) -> Estimate:
    """Predict an iteration: as a longest path wherever that is the same, under SimPy elsewhere.

    Raises:
        ScheduleError, ProfileError: As `simulate_lists` does.
        SimulationError: Costs or devices are missing, the lists deadlock, or no evaluator is exact for the scenario.
    """
    reasons = []
    for evaluate in (predict_by_longest_path, predict_in_lockstep, predict_by_events):
        answer = evaluate(scenario)
        if isinstance(answer, Estimate):
            return answer
        reasons.append(answer)
    raise SimulationError(reasons[-1].reason)
