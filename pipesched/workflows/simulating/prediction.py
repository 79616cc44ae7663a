"""The prediction of a schedule: from its lists, costs, machines and network options to a Timeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, get_args

from pipesched.profiles import FLOAT32_BYTES, MessagePrecision, element_bytes
from pipesched.profiles.clusters import Cluster, Link
from pipesched.profiles.costs import Compression, DeviceCost, LayerCosts, Profile, RunCosts, StageCosts
from pipesched.profiles.io import Plan
from pipesched.profiles.partitioning import is_searched
from pipesched.schedules import Schedule, Timeline, Yardstick, stage_share
from pipesched.schedules.check import require_runnable
from pipesched.schedules.lowering import lower, require_lowerable
from pipesched.simulator import Buffers, Engine, Inexact, NetworkOptions, Scenario, SteadyPace, engine
from pipesched.simulator.analysis import readable_s
from pipesched.simulator.fast import simulate_arrays, steady_pace
from pipesched.simulator.memory import InFlight, OverCapacity, in_flight, over_capacity, peaks_in_flight, with_memory
from pipesched.workflows import (
    MAX_INT64,
    ArgumentError,
    given_stages,
    gpus_in_all,
    require_at_least,
    require_choice,
    require_number,
    require_rate,
    require_share,
    serial_overlaps,
    timeline_notes,
    unitless_times,
    unjudged_limit,
)
from pipesched.workflows.arguments import (
    AnyCosts,
    ClusterArgument,
    ScheduleSource,
    is_same_model,
    layer_bounds,
    machines_of,
    partition_text,
    read_cluster_argument,
    read_costs_argument,
    require_as_planned,
    require_network,
)
from pipesched.workflows.simulating.layer_cut import balanced_layers

if TYPE_CHECKING:
    from pipesched.simulator.views import RunDetails


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The conditions of a prediction: everything but the schedule.

    Attributes:
        costs: Costs of stages, of layers, of a device, of runs, or of a profile's layers.
        cluster: The machines, as `read_cluster_argument` takes them; None: the machines that a plan keeps, if there
            is one.
        microbatch_size: Samples of a micro-batch, with a profile; None: the smallest measured size.
        partition: Layers to stages, of layers or a profile: ``balanced`` (None), which is the fastest cut found that
            fits, ``uniform``, or layers per stage as in ``3,3,4``.
        network: Options of the network.
        compression: ``"half"``: messages are sent in half precision.
        convert_bytes_per_s: Compression throughput of a device [bytes/s]; None: compression takes no time.
        buffers: Allocation of receive buffers: as in our executor, ``pooled`` from the Recv on or ``at_use`` on the
            streams of a GPU, or as in PyTorch's stages, ``per_microbatch``, always.
        jitter: Sigma of a log-normal factor on the seconds of every op.
        seed: Seed of the jitter.
        input_share: Share of B that I takes in costs with B alone; W takes the rest. None: no split is assumed.
        engine: ``"fast"``, or ``"simpy"``, the slower reference with the same results.
    """

    costs: AnyCosts
    cluster: ClusterArgument = None
    microbatch_size: int | None = None
    partition: str | None = None
    network: NetworkOptions = NetworkOptions()  # noqa: RUF009 -- frozen
    compression: MessagePrecision | None = None
    convert_bytes_per_s: float | None = None
    buffers: Buffers = "pooled"
    jitter: float = 0.0
    seed: int = 0
    input_share: float | None = None
    engine: Engine = "fast"

    def __post_init__(self) -> None:
        """Refuse unknown words, and a rate of 0.

        Raises:
            ArgumentError: There is one.
        """
        require_network(self.network)
        require_number("jitter", self.jitter)
        require_at_least("seed", self.seed, 0, MAX_INT64)
        require_choice("buffers", self.buffers, get_args(Buffers))
        require_choice("engine", self.engine, get_args(Engine))
        if self.input_share is not None:
            require_share("input_share", self.input_share)
        if self.compression is not None:
            require_choice("compression", self.compression, get_args(MessagePrecision))
        if self.convert_bytes_per_s is not None:
            require_rate("convert_bytes_per_s", self.convert_bytes_per_s)

    def costs_of(self, source: ScheduleSource) -> StageCosts:
        """Return the costs of the stages of a schedule, with messages compressed as asked, or as in its plan.

        Raises:
            ArgumentError: The conditions contradict the plan, or there is nothing to convert.
            ProfileError: The costs do not fit the schedule.
        """
        cut = self.cut(source)
        if cut.compression is None and cut.convert_bytes_per_s is not None:
            raise ArgumentError("convert_bytes_per_s: got it alone, expected `compression` half too; add that")
        costs = read_costs_argument(
            cut.costs,
            source.schedule,
            microbatch_size=cut.microbatch_size,
            partition=cut.partition,
            input_share=cut.input_share,
        )
        return costs if cut.compression is None else replace(costs, compression=cut.message_compression)

    @property
    def message_compression(self) -> Compression | None:
        """The compression of messages, or None without compression."""
        if self.compression is None:
            return None
        size = element_bytes(self.costs.provenance.dtype) if isinstance(self.costs, Profile) else FLOAT32_BYTES
        return Compression(size, self.convert_bytes_per_s)

    def layers_of(self, source: ScheduleSource) -> tuple[int, ...] | None:
        """Return the number of layers of each stage, or None if costs are not of layers."""
        bounds = self.bounds_of(source)
        return None if bounds is None else tuple(last - first for first, last in bounds)

    def bounds_of(self, source: ScheduleSource) -> tuple[tuple[int, int], ...] | None:
        """Return the half-open range of layers of each stage, or None if costs are not of layers."""
        cut = self.cut(source)
        bounds = layer_bounds(cut.costs, source.schedule, cut.microbatch_size, cut.partition)
        return None if bounds is None else tuple(bounds)

    @property
    def cuts_layers(self) -> bool:
        """Whether layers are cut for the fastest run of each schedule."""
        return isinstance(self.costs, Profile | LayerCosts) and self.partition in (None, "balanced")

    def cut(self, source: ScheduleSource) -> Conditions:
        """Return these conditions with the layers of each stage (if costs are of layers) and the choices of a plan."""
        known = self if source.plan is None else self._as_planned(source.plan)
        costs, num_stages = known.costs, source.schedule.num_stages
        is_given = isinstance(costs, Profile) and not is_searched(costs, known.partition, num_stages)
        if is_given or not known.cuts_layers or not isinstance(costs, Profile | LayerCosts):
            return known
        layers = balanced_layers(
            costs,
            source,
            known.cluster_of(source.schedule, source.plan),
            microbatch_size=known.microbatch_size,
            input_share=known.input_share,
            network=known.network,
            compression=known.message_compression,
            buffers=known.buffers,
        )
        return replace(known, partition=partition_text(layers))

    def _as_planned(self, plan: Plan) -> Conditions:
        """Return these conditions with the layers of each stage, and the messages, of the plan."""
        require_as_planned(
            plan, compression=self.compression, partition=self.partition, microbatch_size=self.microbatch_size
        )
        planned = replace(self, compression=plan.compression)
        if isinstance(self.costs, LayerCosts):
            return replace(planned, partition=partition_text(plan.partition))
        if not isinstance(self.costs, Profile):
            return planned
        if not is_same_model(self.costs.model, plan.model):
            raise ArgumentError(
                f"costs: got a profile of {self.costs.model}, expected one of {plan.model}, as the plan says; give the "
                "profile that the plan was made from"
            )
        return replace(planned, partition=partition_text(plan.partition), microbatch_size=plan.microbatch_size)

    def cluster_of(self, schedule: Schedule, plan: Plan | None = None) -> Cluster:
        """Return the machines of a schedule; without given machines, the machines of its plan.

        Raises:
            ArgumentError: There are too few devices.
            ProfileError: The file is not a cluster.
        """
        what, num_devices = f"schedule {schedule.name}", max(schedule.rank_to_device) + 1
        planned = None if plan is None else plan.cluster
        cluster = read_cluster_argument(planned if self.cluster is None else self.cluster, num_devices, what)
        return machines_of(self.costs, cluster) if self.cluster is None else cluster


@dataclass(frozen=True, repr=False)  # without slots, for cached properties
class Prediction:
    """A predicted schedule: times are computed at once, memory and pace on demand.

    Attributes:
        source: The schedule and its origin.
        conditions: The conditions of the prediction.
        costs: Costs of the schedule's stages, with compressed messages if compression is on.
        cluster: The machines.
        bare_timeline: The Timeline without memory.
    """

    source: ScheduleSource
    conditions: Conditions
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
    def timeline(self) -> Timeline:
        """The Timeline, with memory samples where the costs have bytes."""
        return with_memory(self.bare_timeline, self.costs, self.schedule, buffers=self.conditions.buffers)

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
        from pipesched.simulator.views import run_details

        unusual = _unusual(self.conditions, ("costs", "cluster", "network", "engine")) | _unusual(
            self.conditions.network
        )
        costs = self.conditions.costs
        known = {
            "model": costs.model if isinstance(costs, Profile) else None,
            "costs": _origin(costs, self.costs),
            "machines": self.cluster.origin or None,
        }
        return run_details(self.bare_timeline, self.cluster, known | unusual, self.peak_microbatches)

    @cached_property
    def _pace(self) -> SteadyPace | Inexact:
        if self.conditions.jitter:
            return Inexact("")
        scenario = Scenario(self.schedule, self.costs, self.cluster, self.conditions.network)
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
        costs, devices = self.conditions.costs, self.schedule.rank_to_device
        return [
            *(unitless_times(costs) if isinstance(costs, LayerCosts | StageCosts) else []),
            *(gpus_in_all(costs, len(set(devices))) if isinstance(costs, Profile) else []),
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
        return self.conditions.partition is None and self.source.plan is None

    def _machines_of_plan(self) -> list[str]:
        """Return a note if the machines of a plan are used, or if the plan does not keep its machines."""
        plan, cluster = self.source.plan, self.cluster
        if plan is None or isinstance(self.conditions.costs, RunCosts):
            return []
        if plan.cluster is not None:
            if cluster.intra is not plan.cluster.intra:  # others are given
                return []
            count, nodes = len(cluster.devices), len({device.node for device in cluster.devices})
            where = f"{count} in {nodes} node{'s' * (nodes > 1)}"
            return [f"devices and links are those that the plan was made for, {where}; `cluster` says others"]
        links = {cluster.intra, cluster.inter or Link(), *(link for *_, link in cluster.links)}
        if links != {Link()} or not self.costs.has_bytes or plan.predicted.communication_fraction == 0:
            return []
        return [
            "links take no time here, as this plan does not keep the machines that it was made for, on which a step "
            f"was predicted to take {readable_s(plan.predicted.seconds)}: give them too (`cluster`)"
        ]

    @property
    def cut(self) -> str:
        """Stages of a rank, if they may vary, and layers of the stages; empty if neither is known."""
        return cut_text(self.schedule, self.conditions.layers_of(self.source))

    @property
    def stage_share(self) -> float | None:
        """The share of each stage in a `DeviceCost`, or None with other costs."""
        return float(stage_share(self.schedule)) if isinstance(self.conditions.costs, DeviceCost) else None


def cut_text(schedule: Schedule, layers: Sequence[int] | None) -> str:
    """Return the stages of a rank, if they may vary, and layers of the stages; empty if neither is known.

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


def _origin(given: AnyCosts, costs: StageCosts) -> str | None:
    """Return the origin of costs in a few words, or the numbers of a `DeviceCost`."""
    if not isinstance(given, DeviceCost):
        return costs.origin or None
    parts = {"F": given.forward_s, "B": given.backward_s, "I": given.backward_input_s, "W": given.backward_weight_s}
    return ", ".join(f"{name} {readable_s(part_s)}" for name, part_s in parts.items() if part_s is not None)


def _unusual(options: Conditions | NetworkOptions, without: Collection[str] = ()) -> dict[str, object]:
    """Return the options other than their defaults, without the names in `without`."""
    values = {field.name: (getattr(options, field.name), field.default) for field in fields(options)}
    return {name: value for name, (value, usual) in values.items() if name not in without and value != usual}


def predict_source(source: ScheduleSource, conditions: Conditions) -> Prediction:
    """Return the prediction of a schedule, after a check of its lists.

    Raises:
        ArgumentError: The conditions do not fit the schedule.
        NotRunnableError, ScheduleError: The lists cannot run to their end, or are too long for their number of ranks.
        ProfileError: A file is bad, or does not fit the schedule.
        SimulationError: The schedule cannot be simulated.
    """
    schedule = source.schedule
    require_lowerable(schedule)  # before anything goes through long lists
    costs, cluster = conditions.costs_of(source), conditions.cluster_of(schedule, source.plan)
    require_runnable(schedule)
    simulate_with = engine.simulate_lists if conditions.engine == "simpy" else simulate_arrays
    timeline = simulate_with(
        lower(schedule), costs, cluster, network=conditions.network, jitter=conditions.jitter, seed=conditions.seed
    )
    timeline = replace(timeline, yardstick=_yardstick_of(conditions.costs))
    return Prediction(source, conditions, costs, cluster, timeline)


def _yardstick_of(costs: AnyCosts) -> Yardstick | None:
    """Return the speed of the machine that measured the costs, or None without a measurement of it."""
    if isinstance(costs, Profile):
        return costs.provenance.yardstick
    return costs.yardstick if isinstance(costs, RunCosts) else None
