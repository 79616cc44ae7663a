"""The result of a simulation: times are computed at once, memory and pace on demand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pipesched.profiles.clusters import all_reduce
from pipesched.simulator.analysis import (
    Metrics,
    fits,
    metrics,
    readable_bytes,
    readable_pace,
    readable_s,
    readable_share,
)
from pipesched.simulator.fast import Distribution
from pipesched.simulator.fidelity import MakespanRange
from pipesched.workflows import Table, with_equal_devices
from pipesched.workflows.simulating.prediction import Prediction

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from pipesched.workflows.simulating.least_time import LeastTime


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

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"stage": self.stage, "devices": list(self.devices), "way": self.way, "seconds": self.seconds}


@dataclass(frozen=True, repr=False)
class Simulation(Prediction):
    """A simulated schedule: times are computed at once, memory and pace on demand.

    Attributes:
        bare_metrics: The `metrics` without memory.
        distribution: Distribution of the makespans of several runs with jitter, or None for one run.
        spread: Range of the makespans of runs, from the variation of the profile's seconds; None if not asked for.
        least: Lower bound for the ops in any order under the same memory; None if not asked for.
    """

    bare_metrics: Metrics
    distribution: Distribution | None = None
    spread: MakespanRange | None = None
    least: LeastTime | None = None

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
    def fits(self) -> bool | None:
        """Whether every device fits into its memory, or None if bytes or limits are unknown."""
        return fits(self.timeline, self.cluster)

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
            "fits": self.fits,
            "reductions": [reduction.to_dict() for reduction in self.reductions],
            "stage_share": self.stage_share,
        }
        if self.distribution is not None:
            data["distribution"] = self.distribution.to_dict()
        if self.spread is not None:
            data["spread"] = self.spread.to_dict()
        if self.least is not None:
            data["least"] = self.least.to_dict()
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
        from pipesched.simulator.views import gantt_figure

        return gantt_figure([self.timeline], details=[self.details])

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

    def _repr_html_(self) -> str:
        return self.table().noted(self.notes).to_html()

    def _lines(self) -> list[str]:
        """Return the lines on the whole run."""
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
        if self.pace is not None:
            share = self.pace.bubble_fraction
            idle = "" if share is None else f", steady_bubble_fraction {readable_share(share)}"
            lines.append(f"steady state: {readable_pace(self.pace)} per micro-batch{idle}")
        if self.least is not None:
            lines.append(self.least.sentence)
        return lines
