"""AvgPipe's equations as an evaluator of scenarios: never exact, and of AvgPipe's own lists alone."""

from __future__ import annotations

from pipesched.schedules import Schedule
from pipesched.schedules.builders import lookup
from pipesched.simulator import Estimate, Inexact, Meaning, Precision, Scenario, is_usual
from pipesched.simulator.engine import obstacle_of_several
from pipesched.simulator.search import memory_excess
from pipesched.simulator.tuner.predictor import Accounting, SettingProfile, predict_setting


def predict_by_equations(
    scenario: Scenario, profile: SettingProfile, accounting: Accounting = Accounting.PAPER
) -> Estimate | Inexact:
    """Predict equal pipelines from the profile of another setting, or of the same.

    Args:
        scenario: Scenario of one pipeline, with the number of pipelines; only costs in the profile are used.
        profile: Profile of a setting on the same devices, by `profile_setting`.
        accounting: AvgPipe's equations as printed, or with all terms per iteration.

    Returns:
        The seconds of an iteration, in which every pipeline does a batch, and the bytes that the devices hold; or the
        reason why the equations do not cover the scenario.

    Raises:
        SimulationError: A count is below 1.
    """
    schedule, number = scenario.schedule, scenario.num_pipelines
    reason = _obstacle(scenario, len(profile.devices)) or obstacle_of_several(scenario)
    if reason is not None:
        return Inexact(reason)
    prediction = predict_setting(profile, schedule.num_microbatches, number, accounting)
    peak_bytes = {index: round(device.held_bytes) for index, device in enumerate(prediction.devices)}
    return Estimate(
        Meaning.ITERATION,
        number * prediction.seconds,
        peak_bytes,
        memory_excess(peak_bytes, scenario.cluster),
        precision=Precision.APPROXIMATE,
    )


def _obstacle(scenario: Scenario, num_devices: int) -> str | None:
    """Return the part of a scenario that the equations do not cover, or None."""
    schedule, network = scenario.schedule, scenario.network
    if _is_other(schedule) or schedule.reducers or schedule.traits.is_asynchronous:
        return f"AvgPipe's equations say nothing of {schedule.name}, expected its own schedule; try simulate"
    if schedule.num_ranks != num_devices or schedule.num_stages != num_devices or schedule.num_devices != num_devices:
        return (
            f"{schedule.name}: got {schedule.num_stages} stages on {schedule.num_ranks} ranks and "
            f"{schedule.num_devices} devices, expected one of each on the {num_devices} devices of the profile"
        )
    if not is_usual(network):
        return f"{schedule.name}: got {network}, expected the usual messages; try simulate"
    return None


def _is_other(schedule: Schedule) -> bool:
    """Whether the lists are neither AvgPipe's nor a special case of them, according to the catalogue."""
    entry = None if schedule.origin is None else lookup(schedule.origin)
    return entry is not None and not entry.traits.averages and entry.case_of is None
