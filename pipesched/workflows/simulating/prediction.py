"""The prediction of a schedule: from its lists, costs, machines and network options to a Timeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING

from pipesched.profiles.clusters import Cluster, Link
from pipesched.profiles.costs import CostSource, StageCosts, TrainingRates
from pipesched.schedules import Schedule, Timeline
from pipesched.schedules.check import require_runnable
from pipesched.schedules.lowering import lower, require_lowerable
from pipesched.schedules.transforms import can_sum_before_steps, with_tied_sum
from pipesched.simulator import Inexact, NetworkOptions, Scenario, SteadyPace, engine, views
from pipesched.simulator.analysis import readable_s
from pipesched.simulator.fast import simulate_arrays, steady_pace
from pipesched.simulator.memory import InFlight, OverCapacity, in_flight, over_capacity, peaks_in_flight, with_memory
from pipesched.workflows import (
    estimate_notes,
    given_stages,
    gpus_in_all,
    serial_overlaps,
    timeline_notes,
    unitless_times,
    unjudged_limit,
)
from pipesched.workflows.arguments import ScheduleSource
from pipesched.workflows.simulating.setup import Setup

if TYPE_CHECKING:
    from pipesched.simulator.views import RunDetails


@dataclass(frozen=True, repr=False)  # without slots, for cached properties
class Prediction:
    """A predicted schedule: times are computed at once, memory and pace on demand.

    Attributes:
        source: The schedule and its origin.
        setup: The setup of the prediction.
        costs: Costs of the schedule's stages, with compressed messages if compression is on.
        cluster: The machines.
        bare_timeline: The Timeline without memory.
    """

    source: ScheduleSource
    setup: Setup
    costs: StageCosts
    cluster: Cluster
    bare_timeline: Timeline

    def __repr__(self) -> str:
        return f"Prediction({self.schedule.name!r}, makespan_s={self.makespan_s:.6g})"

    @property
    def schedule(self) -> Schedule:
        """The predicted schedule."""
        return self.source.schedule

    @property
    def makespan_s(self) -> float:
        """The time from the first start of work to its last end [s]."""
        return self.bare_timeline.makespan_s

    @property
    def step_s(self) -> float:
        """Seconds of a batch in a long training, or the makespan if the steady state is unknown, as with jitter."""
        steady_s = self.steady_s_per_microbatch
        return self.makespan_s if steady_s is None else steady_s * self.schedule.num_microbatches

    @cached_property
    def rates(self) -> TrainingRates | None:
        """The rates of one GPU in this batch, by the makespan; None for costs without an estimate of the model's work.

        Raises:
            ProfileError: The GPU would exceed its peak.
        """
        num_samples = self.schedule.num_microbatches * (self.costs.microbatch_size or 1)
        num_devices = len(set(self.schedule.rank_to_device))
        return self.setup.loaded_costs.training_rates(num_samples, self.makespan_s, num_devices)

    @cached_property
    def timeline(self) -> Timeline:
        """The Timeline, with memory samples where the costs have bytes."""
        return with_memory(self.bare_timeline, self.costs, self.schedule, buffers=self.setup.buffers)

    @cached_property
    def in_flight(self) -> tuple[InFlight, ...]:
        """Micro-batches in flight on the devices, over time."""
        return in_flight(self.bare_timeline, self.costs, self.schedule)

    @cached_property
    def peak_microbatches(self) -> Mapping[int, float]:
        """The most micro-batches in flight on each device."""
        peaks = peaks_in_flight(self.bare_timeline, self.costs, self.schedule).values()
        return {peak.device: peak.microbatches for peak in peaks}

    @property
    def over(self) -> OverCapacity | None:
        """The first excess over the memory of a device, or None if all fit or memory is unknown."""
        return over_capacity(self.timeline.memory, self.cluster, self.timeline)

    @property
    def details(self) -> RunDetails:
        """Details for pictures and pages: costs, memory of the machines, and options other than the defaults."""
        unusual = _unusual(self.setup, ("costs", "cluster", "network", "engine")) | _unusual(self.setup.network)
        costs = self.setup.loaded_costs
        known = {
            "model": costs.model_name,
            "costs": _origin(costs, self.costs),
            "machines": self.cluster.origin or None,
        }
        return views.run_details(self.bare_timeline, self.cluster, known | unusual, self.peak_microbatches)

    @cached_property
    def _pace(self) -> SteadyPace | Inexact:
        if self.setup.jitter:
            return Inexact("")
        scenario = Scenario(self.schedule, self.costs, self.cluster, self.setup.network)
        return steady_pace(scenario, self.bare_timeline, self.source.longer)

    @property
    def pace(self) -> SteadyPace | None:
        """The steady state, or None if it is unknown, as with jitter."""
        return None if isinstance(self._pace, Inexact) else self._pace

    @property
    def steady_s_per_microbatch(self) -> float | None:
        """Steady-state seconds per micro-batch, or None if unknown, as with jitter."""
        return None if self.pace is None else self.pace.s_per_microbatch

    @property
    def steady_error(self) -> float | None:
        """Standard error of the steady seconds, as a share of them, or None if they are exact or unknown."""
        return None if self.pace is None else self.pace.error

    @property
    def steady_bubble_fraction(self) -> float | None:
        """Idle share of all device time in the steady state, or None if unknown."""
        return None if self.pace is None else self.pace.bubble_fraction

    @cached_property
    def notes(self) -> list[str]:
        """Cautions about the numbers, a line each."""
        costs, devices = self.setup.loaded_costs, self.schedule.rank_to_device
        return [
            *unitless_times(costs),
            *gpus_in_all(costs, len(set(devices))),
            *estimate_notes(costs),
            *(given_stages(costs, self.schedule.num_stages) if self._cuts_alone else []),
            *unjudged_limit(self.cluster, devices, self.costs.has_bytes),
            *self._machines_of_plan(),
            *timeline_notes(self.bare_timeline),
            *serial_overlaps(self.schedule, self.costs.overlap),
            *([f"steady time: {self._pace.reason}"] if isinstance(self._pace, Inexact) and self._pace.reason else []),
        ]

    @property
    def _cuts_alone(self) -> bool:
        """Whether the partition of the layers is left to us."""
        return self.setup.partition is None and self.source.plan is None

    def _machines_of_plan(self) -> list[str]:
        """Return a note if the machines of a plan are used, or if the plan does not keep its machines."""
        plan, cluster = self.source.plan, self.cluster
        if plan is None or self.setup.loaded_costs.has_machines:
            return []
        if plan.cluster is not None:
            if cluster.intra is not plan.cluster.intra:  # others are given
                return []
            count, nodes = len(cluster.devices), len({device.node for device in cluster.devices})
            where = f"{count} in {nodes} node{'s' * (nodes > 1)}"
            return [f"devices and links are from the plan, {where}; give `cluster` for others"]
        links = {cluster.intra, cluster.inter or Link(), *(link for *_, link in cluster.links)}
        if links != {Link()} or not self.costs.has_bytes or plan.predicted.communication_fraction == 0:
            return []
        return [
            "links take no time here, because the file of the plan lacks the machines of the plan, where a step takes "
            f"{readable_s(plan.predicted.seconds)} by prediction: give the machines too (`cluster`)"
        ]

    @property
    def layers(self) -> tuple[int, ...] | None:
        """The number of layers of each stage, or None if costs are not of layers."""
        return self.setup.layers_of(self.source)

    @property
    def cut(self) -> str:
        """Text on the stages per rank, if the schedule takes chunks, and on the layers per stage; may be empty."""
        return cut_text(self.schedule, self.layers)

    @property
    def stage_share(self) -> float | None:
        """The share of each stage in a `DeviceCost`, or None with other costs."""
        return float(self.schedule.stage_share) if self.setup.loaded_costs.device_seconds else None


def cut_text(schedule: Schedule, layers: Sequence[int] | None) -> str:
    """Return text on the stages per rank, if the schedule takes chunks, and on the layers per stage; may be empty.

    Args:
        schedule: The schedule.
        layers: Number of layers of each of its stages; None if unknown.
    """
    chunks = schedule.num_stages // schedule.num_ranks if schedule.traits.takes_chunks else 0
    parts = [f"v = {chunks}"] if chunks else []
    if layers is not None:
        alike = sorted(Counter(layers).items(), reverse=True)
        shares = ", ".join(f"{count} of {size}" for size, count in alike) if len(alike) > 1 else f"{layers[0]} each"
        even = [v for v in range(2, sum(layers)) if sum(layers) % (v * schedule.num_ranks) == 0]
        if chunks and len(alike) > 1 and even:
            shares += f"; v = {min(even, key=lambda v: abs(v - chunks))} would be even"
        parts.append(f"{sum(layers)} layers on {len(layers)} stages: {shares}")
    return ", ".join(parts)


def _origin(given: CostSource, costs: StageCosts) -> str | None:
    """Return the origin of costs in a few words, or the seconds of a `DeviceCost`."""
    numbers = ", ".join(f"{phase} {readable_s(phase_s)}" for phase, phase_s in given.device_seconds.items())
    return numbers or costs.origin or None


def _unusual(options: Setup | NetworkOptions, without: Collection[str] = ()) -> dict[str, object]:
    """Return the options other than their defaults, without the names in `without`."""
    values = {field.name: (getattr(options, field.name), field.default) for field in fields(options)}
    return {name: value for name, (value, usual) in values.items() if name not in without and value != usual}


def predict_source(source: ScheduleSource, setup: Setup) -> Prediction:
    """Return the prediction of a schedule, after a check of its lists.

    Raises:
        ArgumentError: The setup does not fit the schedule.
        NotRunnableError, ScheduleError: The lists cannot run to their end, or are too long for their number of ranks.
        ProfileError: A file is bad, or does not fit the schedule.
        SimulationError: The schedule cannot be simulated.
    """
    require_lowerable(source.schedule)  # before anything goes through long lists
    costs = setup.costs_of(source)
    if setup.tied_bytes is not None or (costs.tied_bytes and can_sum_before_steps(source.schedule)):
        source = replace(source, schedule=with_tied_sum(source.schedule, costs.tied_stages), longer=None)
    schedule = source.schedule
    cluster = setup.cluster_of(schedule, source.plan)
    require_runnable(schedule)
    simulate_with = engine.simulate_lists if setup.engine == "simpy" else simulate_arrays
    timeline = simulate_with(
        lower(schedule), costs, cluster, network=setup.network, jitter=setup.jitter, seed=setup.seed
    )
    timeline = replace(timeline, yardstick=setup.loaded_costs.yardstick)
    return Prediction(source, setup, costs, cluster, timeline)
