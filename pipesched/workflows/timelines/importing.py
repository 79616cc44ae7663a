"""Import of traces of real runs, as PyTorch's profiler writes them, as a Timeline with its metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipesched.profiles.traces import ClockAlignment, read_traces
from pipesched.questions import ImportSettings, OnShare, unheard
from pipesched.schedules import Schedule, Timeline
from pipesched.schedules.common import values_of
from pipesched.schedules.formats import timeline_to_json, write_text
from pipesched.simulator import views
from pipesched.simulator.analysis import (
    CAUSES,
    Metrics,
    Straggler,
    metrics,
    readable_s,
    readable_share,
    straggler,
    waits_by_stage,
)
from pipesched.workflows import ArgumentError, Table, asks, require_kind, require_names, require_path
from pipesched.workflows.arguments import ScheduleArgument, read_schedule_argument

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, repr=False)
class TraceImport:
    """One step in the traces of all ranks.

    Attributes:
        files: The trace of each rank.
        step: The number of the step, as the profiler counts; None in traces of pipesched.
        schedule: The op lists of the step, without communication.
        timeline: The measured Timeline, on one clock.
        clocks: The alignment of the clocks of the ranks, and its uncertainty.
        metrics: Makespan, bubbles, and each device's time.
        is_counted: Whether stages (one per rank) and micro-batches were counted, because the names of ranges lack both.
        notes: Sentences on the choice of ranks, names and step.
    """

    files: tuple[str, ...]
    step: int | None
    schedule: Schedule
    timeline: Timeline
    clocks: ClockAlignment
    metrics: Metrics
    is_counted: bool = False
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        totals = self.metrics
        return (
            f"TraceImport({self.schedule.name!r}, ranks={self.schedule.num_ranks}, makespan_s={totals.makespan_s:.6g}, "
            f"bubble_fraction={totals.bubble_fraction:.4g})"
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
    def bubble_by_cause(self) -> dict[str, float]:
        """The shares of all device time that add up to the bubble, the largest first."""
        whole_s = self.makespan_s * len(self.metrics.devices)
        seconds = {
            cause: sum(dict(device.idle_by_cause_s)[cause] for device in self.metrics.devices) for cause in CAUSES
        }
        return {cause: idle_s / whole_s for cause, idle_s in sorted(seconds.items(), key=lambda item: -item[1])}

    @property
    def wait_by_stage(self) -> dict[int, float]:
        """The share of all device time in which devices waited for messages of each stage, the largest first."""
        whole_s = self.makespan_s * len(self.metrics.devices)
        return {stage: wait_s / whole_s for stage, wait_s in waits_by_stage(self.timeline).items()}

    @property
    def straggler(self) -> Straggler | None:
        """The device that takes longer than its peers, and that all wait for in the end, or None without one."""
        return straggler(self.timeline)

    @property
    def clock_uncertainty_s(self) -> float:
        """The largest uncertainty of the clock of a rank against rank 0 [s]."""
        return max(self.clocks.uncertainties_ns) / 1e9

    def save(self, path: str | Path) -> None:
        """Write the Timeline (.json), completely or not at all.

        Raises:
            ArgumentError: `path` is no name of a file.
            ScheduleError: The file cannot be written.
        """
        write_text(require_path(path), timeline_to_json(self.timeline))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as ``pipesched import --json`` prints it."""
        return {
            "schedule": self.schedule.name,
            "step": self.step,
            "num_stages": self.schedule.num_stages,
            "num_microbatches": self.schedule.num_microbatches,
            "is_counted": self.is_counted,
            **self.metrics.to_dict(),
            "throughput_unit": "micro-batches per second",
            "bubble_by_cause": self.bubble_by_cause,
            "wait_by_stage": {str(stage): share for stage, share in self.wait_by_stage.items()},
            "straggler": None if self.straggler is None else asdict(self.straggler),
            "ranks": [
                {"file": file, "stages": list(self.schedule.stages_on(rank)), "num_ops": len(self.schedule.ops[rank])}
                | {"clock_offset_s": offset_ns / 1e9, "clock_uncertainty_s": uncertainty_ns / 1e9}
                for rank, (file, offset_ns, uncertainty_ns) in enumerate(self._clocks())
            ],
        }

    def to_frame(self) -> pd.DataFrame:
        """Return a row per device: its time [s], and idle time by cause."""
        return self.metrics.to_frame()

    def plot(self) -> Figure:
        """Draw the Timeline."""
        return views.gantt_figure([self.timeline])

    def table(self) -> Table:
        """Return a row per rank, formatted for people."""
        devices = {device.device: device for device in self.metrics.devices}
        rows = []
        for rank, (file, offset_ns, uncertainty_ns) in enumerate(self._clocks()):
            device = devices[self.timeline.rank_to_device[rank]]
            causes = sorted(device.idle_by_cause_s, key=itemgetter(1), reverse=True)
            rows.append(
                {
                    "rank": str(rank),
                    "stages": ",".join(map(str, self.schedule.stages_on(rank))),
                    "busy": readable_s(device.busy_s),
                    "idle": readable_s(device.idle_s),
                    "idle by cause": ", ".join(
                        f"{cause} {readable_s(idle_s)}" for cause, idle_s in causes if idle_s > 0
                    ),
                    "clock": f"{offset_ns / 1e3:+.0f} +- {uncertainty_ns / 1e3:.0f} us",
                    "ops": str(len(self.schedule.ops[rank])),
                    "trace": Path(file).name,
                }
            )
        return Table(self.schedule.name, tuple(rows), "\n".join(self._lines()))

    def _repr_html_(self) -> str:
        return self.table().to_html()

    def _clocks(self) -> list[tuple[str, int, int]]:
        """Return the file, the clock offset and the uncertainty of each rank."""
        return list(zip(self.files, self.clocks.offsets_ns, self.clocks.uncertainties_ns, strict=True))

    def _lines(self) -> list[str]:
        """Return the lines on the whole step."""
        points = ", ".join(f"{cause} {share:.1%}" for cause, share in self.bubble_by_cause.items() if share >= 0.0005)
        step = "" if self.step is None else f"step {self.step}: "
        lines = [
            f"{step}{self.schedule.num_microbatches} micro-batches on {self.schedule.num_stages} stages; makespan "
            f"{readable_s(self.makespan_s)}; {self.metrics.throughput:.4g} micro-batches/s",
            f"bubble {readable_share(self.bubble_fraction)} of all device time: {points or 'nothing'}",
        ]
        lines += self.notes
        waits = [f"{share:.1%} for stage {stage}" for stage, share in self.wait_by_stage.items() if share >= 0.0005]
        if waits:
            lines.append(f"waits of devices between ops: {', '.join(waits)}")
        if self.straggler is not None:
            lines.append(self.straggler.sentence)
        if self.is_counted:
            lines.append(
                "the names of the passes have no stage: one stage on each rank is assumed, with "
                f"{self.schedule.num_microbatches} micro-batches; give the schedule of the run (-s, -p, -m, --chunks) "
                "if ranks had several stages"
            )
        if self.clock_uncertainty_s:
            lines.append(
                f"clocks of the ranks aligned by their messages, within {readable_s(self.clock_uncertainty_s)}"
            )
        if self.clocks.contradiction_ns:
            lines.append(
                f"messages contradict the aligned clocks by {readable_s(self.clocks.contradiction_ns / 1e9)}: a clock "
                "drifts"
            )
        return lines


@dataclass(frozen=True)
class ImportQuestion(ImportSettings):
    """The question of `import_traces`; its fields are the arguments of that function."""

    files: Sequence[str | Path]
    schedule: ScheduleArgument | None = field(default=None, kw_only=True)
    progress: OnShare = field(default=unheard, kw_only=True)


@asks(ImportQuestion)
def import_traces(question: ImportQuestion) -> TraceImport:
    r"""Read the traces of all ranks of a pipeline: the ops of each rank in one step, on one clock.

    Known names of passes are the names of ``torch.distributed.pipelining`` and `annotate`, of PiPPy, Megatron-LM and
    DeepSpeed. The groups ``stage`` and ``microbatch`` of a pattern may be left out. The last step is the last one that
    is complete on all ranks. Clocks of several hosts are aligned by messages.

    Args:
        files: Chrome traces (.json, .json.gz), as ``torch.profiler`` writes them: one of each rank, or one of all.
        schedule: The schedule of the run, a `Schedule` or a file of one. It is needed if names lack stages or
            micro-batches and counting passes is not enough, as with several stages on a rank.

    Raises:
        ArgumentError: There is no file, or an argument makes no sense.
        ProfileError: A file is no trace, passes are missing, or the clocks cannot be aligned.
        SimulationError: Nothing in the step takes time.
    """
    files = require_names("files", question.files)
    if not files:
        raise ArgumentError(
            "files: got an empty list, expected a trace of every rank; try ['rank0.json', 'rank1.json']"
        )
    for file in files:
        require_kind("files", file, str | Path, "paths; try ['rank0.json', 'rank1.json']")
    read = read_traces(
        [Path(file) for file in files],
        schedule=None if question.schedule is None else read_schedule_argument(question.schedule).schedule,
        progress=question.progress,
        **values_of(question, ImportSettings),
    )
    totals = metrics(read.timeline)
    about = (read.files, read.step, read.schedule, read.timeline, read.clocks)
    return TraceImport(*about, totals, read.is_counted, read.notes)
