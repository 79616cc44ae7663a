"""The estimate of a scenario that is exact: its lists on arrays, with their memory."""

from __future__ import annotations

from pipesched.simulator import Estimate, Scenario, SimulationError
from pipesched.simulator.engine import lists_of_all, obstacle_of_several
from pipesched.simulator.fast.array_engine import simulate_arrays
from pipesched.simulator.memory import iteration


def predict_scenario(scenario: Scenario) -> Estimate:
    """Predict an iteration of all pipelines, as `predict_by_events` does, with the array engine.

    Raises:
        ScheduleError, ProfileError: As `simulate_lists` does.
        SimulationError: Also where the schedule cannot be run by several pipelines at once.
    """
    reason = obstacle_of_several(scenario)
    if reason is not None:
        raise SimulationError(reason)
    costs, cluster = scenario.costs, scenario.cluster
    lists = lists_of_all(scenario.schedule, scenario.num_pipelines)
    return iteration(simulate_arrays(lists, costs, cluster, network=scenario.network), lists, costs, cluster)
