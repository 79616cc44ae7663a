"""Simulate a schedule: time, bubbles, idle time by cause, and memory of the devices."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pipesched.profiles.clusters import all_reduce
from pipesched.profiles.costs import TrainingRates, Variation
from pipesched.profiles.processes import num_cores
from pipesched.questions import OnShare, OptimizeSettings, SimulateSettings, unheard
from pipesched.schedules.lowering import lower
from pipesched.schedules.ops import Summed
from pipesched.simulator import optimum, views
from pipesched.simulator.analysis import (
    Metrics,
    fits,
    metrics,
    readable_bytes,
    readable_pace,
    readable_s,
    readable_share,
)
from pipesched.simulator.fast import Distribution, distribution, makespans
from pipesched.simulator.fidelity import MakespanRange, makespan_range
from pipesched.simulator.memory import FullestMoment, fullest_moment
from pipesched.workflows import (
    ArgumentError,
    Result,
    Table,
    asks,
    estimate_data,
    require_at_least,
    with_equal_devices,
)
from pipesched.workflows.arguments import ListsArgument, read_lists_argument
from pipesched.workflows.simulating.iteration_fit import IterationFit, fitted_to_iteration
from pipesched.workflows.simulating.prediction import Prediction, predict_source
from pipesched.workflows.simulating.setup import Setup, SetupArgument, read_setup_argument

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from pipesched.workflows.simulating.least_time import LeastTime

_LONG = 2_000_000
"""Ops that take about half a minute."""


@dataclass(frozen=True, slots=True)
class SimulateQuestion(SimulateSettings):
    """The question of `simulate`; its fields are the arguments of that function."""

    schedule: ListsArgument
    setup: SetupArgument
    progress: OnShare = field(default=unheard, kw_only=True)


@asks(SimulateQuestion)
def simulate(question: SimulateQuestion) -> Simulation:
    """Predict time, bubbles, idle time by cause and memory of a schedule.

    Args:
        schedule: A Schedule, as `build` makes it, a Plan, or a file of either.
        setup: Costs, machines and other conditions, a `Setup`; or the costs alone.

    Raises:
        ArgumentError: An argument, or a combination, makes no sense.
        ModuleNotFoundError: OR-tools is not installed, and the search for a bound needs it.
        NotRunnableError: The lists cannot run to their end.
        ScheduleError: A bad file.
        ProfileError: A file is bad, or does not fit the schedule.
        SimulationError: The schedule cannot be simulated.
    """
    source, setup = read_lists_argument(question.schedule), read_setup_argument(question.setup)
    num_runs = require_runs(question.num_runs, setup.jitter)
    variation = _variation(setup) if question.spread else None
    if question.bound_seconds is not None and setup.jitter:
        raise ArgumentError("bound_seconds: got `jitter` too, expected only one of them; leave one out")
    fit = None
    if question.fit_iteration_s is not None:
        setup, fit = fitted_to_iteration(source, setup, question.fit_iteration_s)
    prediction = predict_source(source, setup)
    several = None if num_runs == 1 else distribution(makespans_of_runs(prediction, num_runs, question.progress))
    return Simulation(
        prediction.source,
        setup,
        prediction.costs,
        prediction.cluster,
        prediction.bare_timeline,
        bare_metrics=metrics(prediction.bare_timeline),
        distribution=several,
        spread=None
        if variation is None
        else makespan_range(
            prediction.schedule,
            prediction.costs,
            prediction.cluster,
            setup.network,
            variation,
            question.spread,
            setup.seed,
        ),
        least=None if question.bound_seconds is None else _least_time(prediction, question.bound_seconds),
        fit=fit,
    )


def _least_time(prediction: Prediction, seconds: float) -> LeastTime:
    """Return the bound for the ops in other orders, or a simple bound if the schedule cannot be reordered."""
    from pipesched.workflows.simulating.least_time import LeastTime, order_search

    try:
        search = order_search(prediction, has_device_limits=False)
    except optimum.NotOrderableError:
        bound_s = optimum.least_seconds_of_lists(prediction.schedule, prediction.costs, prediction.cluster)
        return LeastTime(bound_s, math.inf, None, prediction.makespan_s)
    return search.least_time(
        prediction.makespan_s, search.prove(OptimizeSettings(seconds=seconds)) if seconds else None
    )


def _variation(setup: Setup) -> Variation:
    """Return the variation of the seconds of the costs.

    Raises:
        ArgumentError: The costs have no variation, or jitter is set too.
    """
    if setup.jitter:
        raise ArgumentError("spread: got `jitter` too, expected only one of them; leave one out")
    costs = setup.loaded_costs
    if not costs.is_measured:
        raise ArgumentError(
            "spread: got costs without the variation of their seconds, expected a profile or costs from runs; leave "
            "`spread` out"
        )
    if costs.variation is None:
        what, advice = "runs", "give two runs or more of one schedule"
        if costs.model_name is not None:
            what, advice = f"a profile of {costs.model_name}", "profile the model again, with 2 `repeats` or more"
        raise ArgumentError(f"spread: got {what} without the variation of its seconds, expected a variation; {advice}")
    return costs.variation


def require_runs(num_runs: int, jitter: float) -> int:
    """Return the number of runs; several need jitter.

    Raises:
        ArgumentError: The number is below 1, or above 1 without jitter.
    """
    num_runs = require_at_least("num_runs", num_runs, 1)
    if num_runs > 1 and not jitter:
        raise ArgumentError(
            f"num_runs: got {num_runs} without `jitter`, expected both, because all runs would be equal; try "
            "`jitter=0.1`"
        )
    return num_runs


def makespans_of_runs(
    prediction: Prediction,
    num_runs: int,
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
) -> list[float]:
    """Return the makespans of runs with jitter [s].

    Args:
        prediction: The run with the first seed; the others have the seeds that follow.
        num_runs: Number of runs.
        progress: Receives the finished share of the runs.
    """
    setup, lowered = prediction.setup, lower(prediction.schedule)
    is_long = num_runs * sum(map(len, lowered.ops)) > _LONG
    seconds = []
    for makespan_s in makespans(
        lowered,
        prediction.costs,
        prediction.cluster,
        network=setup.network,
        jitter=setup.jitter,
        seeds=range(setup.seed, setup.seed + num_runs),
        num_processes=num_cores() if is_long else 1,
        engine=setup.engine,
    ):
        seconds.append(makespan_s)
        progress(len(seconds) / num_runs)
    return seconds


def rates_sentence(rates: TrainingRates) -> str:
    """Return the rates of a training step in words."""
    return (
        f"estimated: {readable_s(rates.seconds)} per iteration of {rates.num_samples} samples of {rates.sample_tokens} "
        f"tokens on {rates.num_gpus} GPUs; per GPU {rates.tokens_per_s:.4g} tokens/s, "
        f"{rates.flops_per_s / 1e12:.4g} TFLOP/s, MFU {readable_share(rates.utilization)}"
    )


@dataclass(frozen=True, slots=True)
class ReducedStage:
    """The reduction of the gradients of a stage over its replicas.

    Attributes:
        devices: Devices of the replicas.
        way: Algorithm of the reduction, as `AllReduce` names it.
        seconds: Duration without contention.
    """

    stage: int
    devices: tuple[int, ...]
    way: str
    seconds: float


@dataclass(frozen=True, repr=False)
class Simulation(Result, Prediction):
    """A simulated schedule: times are computed at once, memory and pace on demand.

    Attributes:
        bare_metrics: The `metrics` without memory.
        distribution: Distribution of the makespans of several runs with jitter, or None for one run.
        spread: Range of the makespans of runs, from the variation of the profile's seconds; None if not asked for.
        least: Lower bound for the ops in any order under the same memory; None if not asked for.
        fit: Fit of an estimated profile to a run whose time is known; None without such a run.
    """

    bare_metrics: Metrics
    distribution: Distribution | None = None
    spread: MakespanRange | None = None
    least: LeastTime | None = None
    fit: IterationFit | None = None

    def __repr__(self) -> str:
        metrics = self.bare_metrics
        return (
            f"Simulation({self.schedule.name!r}, makespan_s={metrics.makespan_s:.6g}, "
            f"bubble_fraction={metrics.bubble_fraction:.4g}, throughput={metrics.throughput:.4g})"
        )

    @cached_property
    def metrics(self) -> Metrics:
        """Makespan, bubbles, throughput, and each device's time and memory."""
        return metrics(self.timeline)

    @property
    def bubble_fraction(self) -> float:
        """Idle share of all device time."""
        return self.bare_metrics.bubble_fraction

    @property
    def throughput(self) -> float:
        """The number of micro-batches per second."""
        return self.bare_metrics.throughput

    @property
    def has_step_barrier(self) -> bool:
        """Whether all stages end their backwards before any steps, as the steady state assumes."""
        return Summed.NORM in self.schedule.summands

    @property
    def fits(self) -> bool | None:
        """Whether every device fits into its memory, or None if bytes or limits are unknown."""
        return fits(self.timeline, self.cluster)

    @cached_property
    def peak(self) -> FullestMoment | None:
        """The fullest device, the time of its peak, and the op at that time; None if the costs have no bytes."""
        return fullest_moment(self.timeline)

    @property
    def reductions(self) -> tuple[ReducedStage, ...]:
        """Reductions of the stages with replicas, with their durations without contention."""
        reduced = []
        for stage, ranks in self.schedule.reducers.items():
            devices = tuple(self.schedule.rank_to_device[rank] for rank in ranks)
            plan = all_reduce(self.costs.stages[stage].weight_bytes, devices, self.cluster)
            reduced.append(ReducedStage(stage, devices, plan.way, plan.seconds))
        return tuple(reduced)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as ``pipesched simulate --json`` prints it."""
        data = {
            "schedule": self.schedule.name,
            **self.metrics.to_dict(),
            "throughput_unit": "micro-batches per second",
            "steady_s_per_microbatch": self.steady_s_per_microbatch,
            "steady_error": self.steady_error,
            "steady_bubble_fraction": self.steady_bubble_fraction,
            "has_step_barrier": self.has_step_barrier,
            "fits": self.fits,
            "peak": self.peak and self.peak.to_dict(),
            "rates": None if self.rates is None else asdict(self.rates),
            "estimate_errors": estimate_data(self.setup.loaded_costs.gpu_family),
            "reductions": [asdict(reduction) for reduction in self.reductions],
            "stage_share": self.stage_share,
            "layers": self.layers and list(self.layers),
        }
        asked = {"distribution": self.distribution, "spread": self.spread, "least": self.least, "fit": self.fit}
        data |= {name: part.to_dict() for name, part in asked.items() if part is not None}
        peaks = self.peak_microbatches
        for device in data["devices"]:
            device["peak_microbatches"] = peaks[device["device"]]
        return data

    def to_frame(self) -> pd.DataFrame:
        """Return a row per device: its time [s], idle time by cause, and peak memory."""
        frame = self.metrics.to_frame()
        return frame.assign(peak_microbatches=frame["device"].map(self.peak_microbatches))

    def plot(self) -> Figure:
        """Draw the Timeline."""
        return views.gantt_figure([self.timeline], details=[self.details])

    def table(self) -> Table:
        """Return a row per device, formatted for people."""
        peaks = self.peak_microbatches
        rows = []
        for device in self.metrics.devices:
            causes = [f"{cause} {readable_s(idle_s)}" for cause, idle_s in device.idle_by_cause_s if idle_s > 0]
            rows.append(
                {
                    "device": str(device.device),
                    "busy": readable_s(device.busy_s),
                    "idle": readable_s(device.idle_s),
                    "peak memory": readable_bytes(device.peak_memory_bytes),
                    "in flight": f"{peaks[device.device]:.4g}",
                    "idle by cause": ", ".join(causes),
                    "span": readable_s(device.span_s),
                }
            )
        return Table(self.schedule.name, with_equal_devices(rows), "\n".join(self._lines()))

    def _lines(self) -> list[str]:
        """Return the lines on the whole run."""
        metrics, several, spread = self.metrics, self.distribution, self.spread
        lines = [
            f"makespan {readable_s(metrics.makespan_s)}; "
            f"bubble_fraction {readable_share(metrics.bubble_fraction)} of all device time; "
            f"bubble_overhead {readable_share(metrics.bubble_overhead)} over the busiest device's work; "
            f"{metrics.throughput:.4g} micro-batches/s"
        ]
        if self.rates is not None:
            lines.append(rates_sentence(self.rates))
        if self.fit is not None:
            lines.append(self.fit.sentence)
        if self.layers is not None:
            size = self.costs.microbatch_size
            samples = "" if size is None else f"; micro-batches of {size} sample{'s' * (size != 1)}"
            lines.append(f"layers of the stages: {','.join(map(str, self.layers))}{samples}")
        if several is not None:
            lines.append(
                f"{several.runs} runs: min {readable_s(several.min_s)}, p50 {readable_s(several.p50_s)}, "
                f"p90 {readable_s(several.p90_s)}, p99 {readable_s(several.p99_s)}, max {readable_s(several.max_s)}"
            )
        if spread is not None:
            lines.append(
                f"80 % of runs between {readable_s(spread.low_s)} and {readable_s(spread.high_s)}, by {spread.draws} "
                "draws of the variation of the profile's seconds"
            )
        if self.pace is not None:
            share = self.pace.bubble_fraction
            idle = "" if share is None else f", steady_bubble_fraction {readable_share(share)}"
            assumed = " with a barrier before the steps" if self.has_step_barrier else ""
            lines.append(f"steady state{assumed}: {readable_pace(self.pace)} per micro-batch{idle}")
        if self.peak is not None:
            lines.append(
                f"most memory: device {self.peak.device} holds {readable_bytes(self.peak.held_bytes)} "
                f"from {readable_s(self.peak.time_s)} on, at {self.peak.op} of rank {self.peak.rank}"
            )
        if self.least is not None:
            lines.append(self.least.sentence)
        return lines
