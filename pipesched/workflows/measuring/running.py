"""Run a schedule with real processes, one per rank, and measure every op."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack, get_args

from pipesched.executor import How
from pipesched.profiles.models import Model
from pipesched.schedules import Schedule, Timeline, Yardstick
from pipesched.schedules.builders import ParameterValue
from pipesched.simulator.analysis import Metrics, metrics, readable_bytes, readable_s, readable_share
from pipesched.workflows import (
    NOT_ONE_SPEED,
    ArgumentError,
    Table,
    is_rank,
    other_speed,
    require_at_least,
    require_callable,
    require_choice,
    require_flag,
    require_optional,
    timeline_notes,
)
from pipesched.workflows.arguments import (
    ClusterArgument,
    CostsArgument,
    ModelArgument,
    PartitionArgument,
    ProfileArgument,
    RunKeywords,
    ScheduleArgument,
    ScheduleSource,
    load_costs,
    partition_text,
    read_profile_argument,
    read_schedule_argument,
    read_settings,
    require_possible,
)
from pipesched.workflows.measuring.planned_run import PlannedRun, hold_against_plan
from pipesched.workflows.measuring.run_specs import prepare_emulation, prepare_run
from pipesched.workflows.simulating import Setup

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from pipesched.executor.launch import RunSpec
    from pipesched.executor.runs import Measured


@dataclass(frozen=True, slots=True, repr=False)
class RunResult:
    """A schedule, run and measured.

    Attributes:
        schedule: The schedule's lists.
        timeline: The iteration of median makespan, with memory samples of a model.
        makespans_s: Makespan of every measured iteration.
        losses: Mean loss of every micro-batch from the initial weights; empty when emulated.
        metrics: Metrics of the Timeline.
        planned: The prediction of the plan beside the measurement; None without a plan.
        profiled: Speed of the machine during the profile, or the profile of the plan; None if unknown.
    """

    schedule: Schedule
    timeline: Timeline
    makespans_s: tuple[float, ...]
    losses: tuple[float, ...]
    metrics: Metrics
    planned: PlannedRun | None = None
    profiled: Yardstick | None = None

    def __repr__(self) -> str:
        return f"RunResult({self.schedule.name!r}, makespan_s={self.makespan_s:.6g}, losses={len(self.losses)})"

    @property
    def makespan_s(self) -> float:
        """The makespan of the median iteration [s]."""
        return self.metrics.makespan_s

    @property
    def bubble_fraction(self) -> float:
        """Idle share of all device time."""
        return self.metrics.bubble_fraction

    @property
    def first_loss(self) -> float | None:
        """The mean loss from the initial weights; None when emulated."""
        return sum(self.losses) / len(self.losses) if self.losses else None

    @property
    def notes(self) -> list[str]:
        """Cautions about the seconds, a line each."""
        speeds = (self.profiled, self.timeline.yardstick)
        speed = other_speed(*speeds, NOT_ONE_SPEED) if self.planned is None else other_speed(*speeds)
        return [*speed, *timeline_notes(self.timeline)]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as ``pipesched run --json`` prints it."""
        loss = self.first_loss
        return {
            "schedule": self.schedule.name,
            **self.metrics.to_dict(),
            "throughput_unit": "micro-batches per second",
            "makespans_s": self.makespans_s,
            "first_loss": loss if loss is None or math.isfinite(loss) else None,
            **({} if self.planned is None else {"planned": self.planned.to_dict()}),
        }

    def to_frame(self) -> pd.DataFrame:
        """Return a row per device: its time [s], idle time by cause, and peak memory."""
        return self.metrics.to_frame()

    def plot(self) -> Figure:
        """Draw the Timeline."""
        from pipesched.simulator.views import gantt_figure

        return gantt_figure([self.timeline])

    def table(self) -> Table:
        """Return a row per device, formatted for people."""
        loss = "" if self.first_loss is None else f"; mean loss at the start {self.first_loss:.6g}"
        rows = [
            {
                "device": str(device.device),
                "busy": readable_s(device.busy_s),
                "idle": readable_s(device.idle_s),
                "peak memory": readable_bytes(device.peak_memory_bytes),
            }
            for device in self.metrics.devices
        ]
        caption = (
            f"makespan {readable_s(self.makespan_s)} (median of {len(self.makespans_s)})"
            f"; bubble_fraction {readable_share(self.bubble_fraction)}{loss}"
        )
        return Table(f"{self.schedule.name}, measured", tuple(rows), caption)

    def _repr_html_(self) -> str:
        return self.table().noted(self.notes).to_html() + (
            "" if self.planned is None else self.planned.table().to_html()
        )


def run(
    schedule: ScheduleArgument,
    model: ModelArgument | None = None,
    *,
    emulate: CostsArgument | None = None,
    cluster: ClusterArgument = None,
    num_ranks: int | None = None,
    num_microbatches: int | None = None,
    num_chunks: int | None = None,
    parameters: Mapping[str, ParameterValue] | None = None,
    microbatch_size: int | None = None,
    partition: PartitionArgument | None = None,
    profile: ProfileArgument | None = None,
    how: How = "sleep",
    iterations: int = 5,
    warmup: int = 1,
    is_checked: bool = True,
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
    **keywords: Unpack[RunKeywords],
) -> RunResult:
    """Run a schedule, one process per rank, and measure every op.

    The processes are started here, on this machine. In a script that torchrun has started, this process joins as its
    rank instead, and every process gets the result. `close` ends the processes that stay for the next run.

    Args:
        schedule: A Schedule, a Plan, a file, or with `num_ranks` and `num_microbatches` a name of the catalogue or a
            builder of your own.
        model: A name as `profile` takes it, a plan's own, a function of a module, or a Model made from a name; under
            torchrun any Model; None with `emulate`.
        emulate: Costs of stages that only take time, as `simulate` takes them, instead of a model.
        cluster: Machines to emulate too, whose links delay messages; None: messages take their real time.
        num_ranks: Ranks of a schedule given by name.
        num_microbatches: Micro-batches of a schedule given by name.
        num_chunks: Stages per rank of a schedule given by name, where it takes them.
        parameters: Parameters of a schedule given by name, as its entry of the catalogue lists them.
        microbatch_size: Samples of a micro-batch; None: as planned, or 1 for a model, or the smallest size of an
            emulated profile.
        partition: ``uniform``, ``balanced`` with a profile, or layers per stage as in ``3,3,4`` or in a list;
            None with a plan, which has a partition.
        profile: Profile of the model, for the partition.
        how: Emulated stages ``sleep``, or are ``busy``.
        iterations: Measured runs of the lists, of which the median counts.
        warmup: Runs before them.
        is_checked: Whether lists that cannot finish are refused before they run.
        progress: Receives the finished fraction of all ops now and then.
        keywords: Settings of the run: the fields of `RunSettings`.

    Raises:
        ArgumentError: An argument, or a combination, makes no sense.
        NotRunnableError: The lists cannot run to their end.
        ScheduleError: No such schedule, bad counts, or a bad file.
        ProfileError: The model does not exist, the partition does not fit, or a file is bad.
        ExecutionError: A value is out of range.
        RankFailed: A rank failed, died or hung; with rank, op and micro-batch. All others are ended.
    """
    settings = read_settings(keywords)
    require_choice("how", how, get_args(How))
    microbatch_size = require_optional("microbatch_size", microbatch_size, 1)
    iterations = require_at_least("iterations", iterations, 1)
    warmup = require_at_least("warmup", warmup, 0)
    require_flag("is_checked", is_checked)
    require_callable("progress", progress)
    partition = partition_text(partition)
    source = read_schedule_argument(
        schedule, num_ranks=num_ranks, num_microbatches=num_microbatches, num_chunks=num_chunks, parameters=parameters
    )
    measured_how: dict[str, Any] = {"iterations": iterations, "warmup": warmup, "is_checked": is_checked}
    require_possible(settings)
    if model is None:
        if emulate is None:
            raise ArgumentError("model: got none, expected one, or `emulate`; try model='mlp'")
        setup = Setup(
            costs=load_costs(emulate),
            cluster=cluster,
            microbatch_size=microbatch_size,
            partition=partition,
            compression=settings.compression,
        )
        spec = prepare_emulation(source, setup, settings, how=how, **measured_how)
    else:
        if emulate is not None or cluster is not None:
            raise ArgumentError(
                "model: got `emulate` or `cluster` too, expected one or the other: the messages of a model are real; "
                "leave it out"
            )
        spec = prepare_run(
            source,
            model,
            settings,
            microbatch_size=microbatch_size,
            partition=partition,
            profile=profile,
            **measured_how,
        )
    made = model if isinstance(model, Model) else None
    return result_of(source, measured(spec, progress, made), None if model is None else profile)


def measured(
    spec: RunSpec,
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
    model: Model | None = None,
) -> Measured:
    """Run a measuring job: as a rank of torchrun if it has started this process, otherwise with own processes.

    Args:
        spec: Specification of the run.
        progress: Receives the finished fraction of all ops now and then.
        model: The named model of the run, as under torchrun; None: the name is looked up.

    Raises:
        RankFailed: A rank failed, died or hung; with rank, op and micro-batch.
    """
    from pipesched.executor.runs import Measured, launch, run_rank

    if not is_rank():
        return launch(spec, progress)
    measured = run_rank(spec, is_shared=True, model=model)
    assert isinstance(measured, Measured), "its job measures"
    return measured


def result_of(source: ScheduleSource, measured: Measured, profile: ProfileArgument | None = None) -> RunResult:
    """Return the result of a run with its metrics, beside the prediction of its plan if there is one.

    Args:
        source: The schedule of the run.
        measured: The measurement.
        profile: Profile for the partition of the model; None: no profile, or the plan's.
    """
    schedule, timeline = source.schedule, measured.timeline
    measures = metrics(timeline)
    planned = None if source.plan is None else hold_against_plan(source.plan, schedule, timeline, measures)
    profiled = None if source.plan is None else source.plan.yardstick
    if profile is not None:
        profiled = read_profile_argument(profile).provenance.yardstick
    return RunResult(schedule, timeline, measured.makespans_s, measured.losses, measures, planned, profiled)
