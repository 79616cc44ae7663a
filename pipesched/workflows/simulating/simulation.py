"""Simulate a schedule: time, bubbles, idle time by cause, and what the devices would hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipesched.profiles import MessagePrecision
from pipesched.profiles.clusters import all_reduce
from pipesched.profiles.costs import Profile, Variation
from pipesched.profiles.processes import num_cores
from pipesched.schedules.builders import ParameterValue
from pipesched.schedules.lowering import lower
from pipesched.simulator import NetworkOptions
from pipesched.simulator.analysis import Metrics, fits, metrics, readable_bytes, readable_s, readable_share
from pipesched.simulator.engine import Distribution, distribution, makespans
from pipesched.simulator.fidelity import MakespanRange, makespan_range
from pipesched.simulator.memory import InFlight, in_flight, peak_in_flight
from pipesched.workflows import ArgumentError, BuffersChoice, Table, require_at_least
from pipesched.workflows.arguments import (
    ClusterArgument,
    CostsArgument,
    PartitionArgument,
    ScheduleArgument,
    ScheduleSource,
    load_costs,
    partition_text,
    read_schedule_argument,
)
from pipesched.workflows.simulating.prediction import (
    Conditions,
    Prediction,
    device_share,
    predict_source,
    steady_pace_s,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_LONG = 2_000_000
"""Ops that take about half a minute."""


@dataclass(frozen=True, slots=True)
class ReducedStage:
    """How the gradients of a stage are added up over its replicas.

    Attributes:
        devices: Devices of the replicas.
        way: Way of the reduction, as `AllReduce` names it.
        seconds: Where nothing is in the way.
    """

    stage: int
    devices: tuple[int, ...]
    way: str
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"stage": self.stage, "devices": list(self.devices), "way": self.way, "seconds": self.seconds}


@dataclass(frozen=True, slots=True, repr=False)
class Simulation(Prediction):
    """A schedule that was simulated.

    Attributes:
        metrics: Makespan, bubbles, throughput, and each device's time and memory.
        steady_s_per_microbatch: Seconds of a micro-batch when it goes on; None where that is not known.
        in_flight: Micro-batches that the devices hold, over time.
        reductions: Reductions of the stages with replicas.
        stage_share: What each stage has of a `DeviceCost`; None where other costs are given.
        distribution: Distribution of the makespans of several runs with jitter; None where there is one run.
        spread: Where the makespans of runs lie, as far as the profile says how seconds vary; None: not asked for.
    """

    metrics: Metrics
    steady_s_per_microbatch: float | None
    in_flight: tuple[InFlight, ...]
    reductions: tuple[ReducedStage, ...]
    stage_share: float | None
    distribution: Distribution | None = None
    spread: MakespanRange | None = None

    def __repr__(self) -> str:
        metrics = self.metrics
        return (
            f"Simulation({self.schedule.name!r}, makespan_s={metrics.makespan_s:.6g}, "
            f"bubble_fraction={metrics.bubble_fraction:.4g}, throughput={metrics.throughput:.4g})"
        )

    @property
    def makespan_s(self) -> float:
        """The time from the first start of work to its last end [s]."""
        return self.metrics.makespan_s

    @property
    def bubble_fraction(self) -> float:
        """Idle share of all device time."""
        return self.metrics.bubble_fraction

    @property
    def throughput(self) -> float:
        """Micro-batches per second."""
        return self.metrics.throughput

    @property
    def fits(self) -> bool | None:
        """Whether no device holds more than it has; None where either is not known."""
        return fits(self.timeline, self.cluster)

    @property
    def peak_microbatches(self) -> Mapping[int, float]:
        """The most micro-batches that each device holds."""
        return {device: peak.microbatches for device, peak in peak_in_flight(self.in_flight).items()}

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as ``pipesched simulate --json`` prints it."""
        data = {
            "schedule": self.schedule.name,
            **self.metrics.to_dict(),
            "throughput_unit": "micro-batches per second",
            "steady_s_per_microbatch": self.steady_s_per_microbatch,
            "fits": self.fits,
            "reductions": [reduction.to_dict() for reduction in self.reductions],
            "stage_share": self.stage_share,
        }
        if self.distribution is not None:
            data["distribution"] = self.distribution.to_dict()
        if self.spread is not None:
            data["spread"] = self.spread.to_dict()
        peaks = self.peak_microbatches
        for device in data["devices"]:
            device["peak_microbatches"] = peaks[device["device"]]
        return data

    def to_frame(self) -> pd.DataFrame:
        """Return a row per device: its time [s], idle time by cause, and peak memory."""
        import pandas as pd

        peaks = self.peak_microbatches
        rows = [
            {
                **device.to_row(),
                "peak_microbatches": peaks[device.device],
                **{f"idle_{cause}_s": idle_s for cause, idle_s in device.idle_by_cause_s},
            }
            for device in self.metrics.devices
        ]
        return pd.DataFrame(rows).astype({"peak_memory_bytes": "Int64"})

    def plot(self) -> Figure:
        """Draw the Timeline."""
        from pipesched.simulator.views import gantt_figure

        return gantt_figure([self.timeline])

    def table(self) -> Table:
        """Return a row per device, as people read it."""
        peaks = self.peak_microbatches
        rows = []
        for device in self.metrics.devices:
            causes = [f"{cause} {readable_s(idle_s)}" for cause, idle_s in device.idle_by_cause_s if idle_s > 0]
            rows.append(
                {
                    "device": str(device.device),
                    "busy": readable_s(device.busy_s),
                    "idle": readable_s(device.idle_s),
                    "span": readable_s(device.span_s),
                    "peak memory": readable_bytes(device.peak_memory_bytes),
                    "micro-batches": f"{peaks[device.device]:.4g}",
                    "idle by cause": ", ".join(causes),
                }
            )
        return Table(self.schedule.name, tuple(rows), "\n".join(self._lines()))

    def _repr_html_(self) -> str:
        return self.table().to_html()

    def _lines(self) -> list[str]:
        """Return what is said of the whole run."""
        metrics, several, spread = self.metrics, self.distribution, self.spread
        lines = [
            f"makespan {readable_s(metrics.makespan_s)}; "
            f"bubble_fraction {readable_share(metrics.bubble_fraction)} of all device time; "
            f"bubble_overhead {readable_share(metrics.bubble_overhead)} over the busiest device's work; "
            f"{metrics.throughput:.4g} micro-batches/s"
        ]
        if several is not None:
            lines.append(
                f"{several.runs} runs: min {readable_s(several.min_s)}, p50 {readable_s(several.p50_s)}, "
                f"p90 {readable_s(several.p90_s)}, p99 {readable_s(several.p99_s)}, max {readable_s(several.max_s)}"
            )
        if spread is not None:
            lines.append(
                f"80 % of runs between {readable_s(spread.low_s)} and {readable_s(spread.high_s)}, by {spread.draws} "
                "draws of what the profile's seconds varied by"
            )
        if self.steady_s_per_microbatch is not None:
            lines.append(f"steady, when it goes on: {readable_s(self.steady_s_per_microbatch)} per micro-batch")
        return lines


def simulate(
    schedule: ScheduleArgument,
    costs: CostsArgument,
    cluster: ClusterArgument = None,
    *,
    num_ranks: int | None = None,
    num_microbatches: int | None = None,
    num_chunks: int | None = None,
    parameters: Mapping[str, ParameterValue] | None = None,
    microbatch_size: int | None = None,
    partition: PartitionArgument | None = None,
    network: NetworkOptions = NetworkOptions(),  # noqa: B008 -- frozen
    compression: MessagePrecision | None = None,
    convert_bytes_per_s: float | None = None,
    buffers: BuffersChoice = "pooled",
    jitter: float = 0.0,
    seed: int = 0,
    num_runs: int = 1,
    spread: int = 0,
) -> Simulation:
    """Predict time, bubbles, idle time by cause and memory of a schedule.

    Args:
        schedule: A Schedule, a Plan, a file, or a name of the catalogue with `num_ranks` and `num_microbatches`.
        costs: StageCosts, a DeviceCost, a Profile, or a file of a profile or of stage costs.
        cluster: Machines, or a file of them; None: equal devices whose links take no time.
        num_ranks: Ranks of a schedule given by name.
        num_microbatches: Micro-batches of a schedule given by name.
        num_chunks: Stages per rank of a schedule given by name, where it takes them.
        parameters: Parameters of a schedule given by name, as its entry of the catalogue lists them.
        microbatch_size: Samples of a micro-batch, with a profile; None: the smallest size that was measured.
        partition: Layers to stages, with a profile: ``balanced`` (None), ``uniform``, or layers per stage: ``3,3,4``,
            or a list.
        network: How messages go.
        compression: ``"half"``: messages go in half precision.
        convert_bytes_per_s: How quickly a device compresses; None: in no time.
        buffers: Receive buffers as our executor has them, or as PyTorch's: one per micro-batch, always.
        jitter: Sigma of a log-normal factor on the seconds of every op.
        seed: Seed of the jitter.
        num_runs: Runs with jitter, with seeds from `seed` on, whose makespans are the `distribution`.
        spread: How often seconds are drawn as they varied when the profile was measured, for a range of the
            makespan; 0: no range.

    Raises:
        ArgumentError: An argument, or a combination, makes no sense.
        NotRunnableError: The lists cannot run to their end.
        ScheduleError: No such schedule, bad counts, or a bad file.
        ProfileError: A file is bad, or does not fit the schedule.
        SimulationError: The schedule cannot be simulated.
    """
    source = read_schedule_argument(
        schedule, num_ranks=num_ranks, num_microbatches=num_microbatches, num_chunks=num_chunks, parameters=parameters
    )
    conditions = Conditions(
        costs=load_costs(costs),
        cluster=cluster,
        microbatch_size=microbatch_size,
        partition=partition_text(partition),
        network=network,
        compression=compression,
        convert_bytes_per_s=convert_bytes_per_s,
        buffers=buffers,
        jitter=jitter,
        seed=seed,
    )
    return simulate_source(source, conditions, num_runs, spread=spread)


def simulate_source(
    source: ScheduleSource,
    conditions: Conditions,
    num_runs: int = 1,
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
    *,
    spread: int = 0,
) -> Simulation:
    """Do what `simulate` does; `progress` is told which share of several runs is over."""
    require_at_least("num_runs", num_runs, 1)
    if num_runs > 1 and not conditions.jitter:
        raise ArgumentError(
            f"num_runs: got {num_runs} without `jitter`, expected both: all would be the same; try `jitter=0.1`"
        )
    require_at_least("spread", spread, 0)
    variation = _variation(conditions) if spread else None
    prediction = predict_source(source, conditions)
    schedule, costs, timeline = prediction.schedule, prediction.costs, prediction.timeline
    return Simulation(
        schedule,
        costs,
        prediction.cluster,
        timeline,
        metrics=metrics(timeline),
        steady_s_per_microbatch=steady_pace_s(source, prediction, conditions),
        in_flight=tuple(in_flight(timeline, costs, schedule)),
        reductions=_reductions(prediction),
        stage_share=device_share(schedule, conditions),
        distribution=None if num_runs == 1 else _distribution(prediction, conditions, num_runs, progress),
        spread=None
        if variation is None
        else makespan_range(
            schedule, costs, prediction.cluster, conditions.network, variation, spread, conditions.seed
        ),
    )


def _variation(conditions: Conditions) -> Variation:
    """Return how the seconds of the costs vary.

    Raises:
        ArgumentError: They do not say it, or vary by jitter.
    """
    if conditions.jitter:
        raise ArgumentError("spread: got `jitter` too, expected one of them; leave one out")
    costs = conditions.costs
    if not isinstance(costs, Profile):
        raise ArgumentError("spread: got costs that are no profile, expected one, which says how seconds vary")
    if costs.variation is None:
        raise ArgumentError(
            f"spread: got a profile of {costs.model} that does not say how seconds vary, expected one that does; "
            "profile the model again, with 2 `repeats` or more"
        )
    return costs.variation


def _distribution(
    prediction: Prediction, conditions: Conditions, num_runs: int, progress: Callable[[float], None]
) -> Distribution:
    """Simulate with as many seeds, in several processes where that takes long."""
    lowered = lower(prediction.schedule)
    is_long = num_runs * sum(map(len, lowered.ops)) > _LONG
    seconds = []
    for makespan_s in makespans(
        lowered,
        prediction.costs,
        prediction.cluster,
        network=conditions.network,
        jitter=conditions.jitter,
        seeds=range(conditions.seed, conditions.seed + num_runs),
        num_processes=num_cores() if is_long else 1,
    ):
        seconds.append(makespan_s)
        progress(len(seconds) / num_runs)
    return distribution(seconds)


def _reductions(prediction: Prediction) -> tuple[ReducedStage, ...]:
    """Return how the gradients of each stage are added up, and how long that takes where nothing is in the way."""
    schedule, reductions = prediction.schedule, []
    for stage, ranks in schedule.reducers.items():
        devices = tuple(schedule.rank_to_device[rank] for rank in ranks)
        plan = all_reduce(prediction.costs.stages[stage].weight_bytes, devices, prediction.cluster)
        reductions.append(ReducedStage(stage, devices, plan.way, plan.seconds))
    return tuple(reductions)
