"""What is said of a prediction, or before a run, that should not be believed as it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipesched.simulator.analysis import readable_s
from pipesched.workflows import busy_machine, crowded_cores, other_device, short_ops, unjudged_limit

if TYPE_CHECKING:
    from pipesched.cli.options.machine_options import MachineOptions
    from pipesched.executor import RunSettings
    from pipesched.profiles.processes import LoadMeter
    from pipesched.workflows.arguments import AnyCosts
    from pipesched.workflows.simulating import Prediction


def doubts_of_prediction(prediction: Prediction, machines: MachineOptions) -> list[str]:
    """Return the notes on a prediction: its limit, the device of its profile, and ops that are too short."""
    devices = prediction.schedule.rank_to_device
    return [
        *unjudged_limit(prediction.cluster, devices, prediction.costs.has_bytes),
        *doubts_of_costs(prediction.conditions.costs, machines),
        *_plan_without_machines(prediction, machines),
        *short_ops(prediction.bare_timeline),
    ]


def _plan_without_machines(prediction: Prediction, machines: MachineOptions) -> list[str]:
    """Return the note on a plan whose messages took time, which is predicted where they take none."""
    from pipesched.profiles.costs import RunCosts

    plan = prediction.source.plan
    if plan is None or machines.are_given or not prediction.costs.has_bytes:
        return []
    if plan.predicted.communication_fraction == 0 or isinstance(prediction.conditions.costs, RunCosts):
        return []
    return [
        "links take no time here, as a plan does not keep the machines that it was made for, on which a step was "
        f"predicted to take {readable_s(plan.predicted.seconds)}: give them too, as --nodes 2 --machine dgx-h100"
    ]


def doubts_of_costs(costs: AnyCosts, machines: MachineOptions) -> list[str]:
    """Return the note on a profile that is of another device than those of the machines."""
    from pipesched.profiles.costs import Profile

    return other_device(costs, machines.machine) if isinstance(costs, Profile) else []


def doubts_of_machine(num_ranks: int, settings: RunSettings, meter: LoadMeter) -> list[str]:
    """Return the notes on this machine, where so many ranks are about to compute."""
    if settings.device != "cpu":
        return []
    others = meter.others()
    return [
        *crowded_cores(num_ranks, settings.threads),
        *busy_machine(others, num_ranks * settings.threads),
    ]
