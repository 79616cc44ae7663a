"""The costs of stages from runs, for use in place of a profile's."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pipesched.profiles.costs import (
    Profile,
    RunCosts,
    Spread,
    StageCost,
    costs_of_samples,
    samples_of,
)
from pipesched.profiles.io import run_costs_text, save_json
from pipesched.profiles.partitioning import cut_layers
from pipesched.questions import MessageFacts, RunFacts
from pipesched.schedules import Schedule, Timeline, schedule_of
from pipesched.schedules.common import integer
from pipesched.simulator import views
from pipesched.simulator.analysis import readable_s
from pipesched.workflows import ArgumentError, Result, Table, asks, other_speed, require_names, require_path
from pipesched.workflows.arguments import (
    ProfileArgument,
    ScheduleSource,
    read_microbatch_size,
    read_profile_argument,
)
from pipesched.workflows.simulating import Setup
from pipesched.workflows.timelines import TimelineArgument, read_timeline_argument

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_HANDOVER = {"Op": "after an op", "Recv": "posting a Recv", "Send": "posting a Send", "Take": "taking a message"}
_OF_PROFILE = "seconds that only the profile has, such as copies of weights, stay at the speed of the profile"

RunsArgument: TypeAlias = TimelineArgument | Sequence[TimelineArgument]


@dataclass(frozen=True, slots=True, repr=False)
class MeasuredCosts(Result):
    """Costs of stages from measured runs.

    Attributes:
        costs: Costs for `simulate`, `compare` and `run`.
        notes: Cautions about the seconds, a line each.
    """

    costs: RunCosts
    notes: tuple[str, ...] = ()

    @property
    def _title(self) -> str:
        return f"costs from {', '.join(self.costs.runs)}"

    def __repr__(self) -> str:
        costs = self.costs
        return f"MeasuredCosts({', '.join(costs.runs)!r}, stages={len(costs.stages)}, kinds={costs.kinds})"

    def save(self, path: str | Path) -> None:
        """Write the costs as JSON.

        Raises:
            ArgumentError: `path` is no name of a file.
            ProfileError: The file cannot be written.
        """
        save_json(self.costs, require_path(path))

    def to_json(self) -> str:
        """Return the text that `save` writes."""
        return run_costs_text(self.costs, "the costs")

    def to_rows(self) -> list[dict[str, Any]]:
        """Return plain data: a row per stage and kind of op, then rows of hand-over and messages, without a stage."""
        costs = self.costs
        spreads: list[tuple[int | None, str, Spread]] = [
            (index, kind, spread) for index, stage in enumerate(costs.stages) for kind, spread in stage.work.items()
        ]
        spreads += [(None, _HANDOVER[kind], spread) for kind, spread in costs.hand_over.items()]
        spreads += [(None, "message", costs.message)] if costs.message is not None else []
        return [
            {
                "stage": stage,
                "what": what,
                "count": spread.count,
                "mean_s": spread.mean_s,
                "median_s": spread.median_s,
                "p10_s": spread.deciles_s[1],
                "p90_s": spread.deciles_s[9],
            }
            for stage, what, spread in spreads
        ]

    def to_frame(self) -> pd.DataFrame:
        """Return a row per stage and kind of op, and for hand-over and messages."""
        import pandas as pd

        return pd.DataFrame(self.to_rows()).astype({"stage": "Int64"})

    def plot(self) -> Figure:
        """Draw the median seconds of each kind of op of each stage."""
        stages = self.costs.stages
        kinds = dict.fromkeys(kind for stage in stages for kind in stage.work)
        return views.cost_figure(
            self._title,
            "stage",
            list(map(str, range(len(stages)))),
            {kind: [stage.work[kind].median_s if kind in stage.work else 0.0 for stage in stages] for kind in kinds},
        )

    def table(self) -> Table:
        """Return the same rows, formatted for people."""
        rows = [
            {
                "stage": "all" if row["stage"] is None else str(row["stage"]),
                "what": row["what"],
                "count": str(row["count"]),
                "mean": readable_s(row["mean_s"]),
                "median": readable_s(row["median_s"]),
                "10 %": readable_s(row["p10_s"]),
                "90 %": readable_s(row["p90_s"]),
            }
            for row in self.to_rows()
        ]
        return Table(self._title, tuple(rows), "\n".join(self._lines()))

    def _lines(self) -> list[str]:
        """Return lines on ignored ops and missing costs."""
        costs = self.costs
        first = "op" if costs.warmup == 1 else f"{costs.warmup} ops"
        lines = [f"the first {first} of each kind and stage on a rank left out as warm-up"] if costs.warmup else []
        missing = [kind for kind in ("B", "I", "W", "Step") if kind not in costs.kinds]
        if missing:
            lines.append(f"without a measurement in every stage: {', '.join(missing)}")
        if not costs.hand_over:
            lines.append("hand-over: unknown, because the runs do not record it")
        if not costs.has_bytes:
            lines.append("bytes: unknown; give a profile beside the runs for bytes, and for I and W as shares of B")
        return lines


@dataclass(frozen=True)
class RunCostsQuestion(MessageFacts):
    """The question of `costs_from_runs`; its fields are the arguments of that function."""

    runs: RunsArgument
    profile: ProfileArgument | None = field(default=None, kw_only=True)


@asks(RunCostsQuestion)
def costs_from_runs(question: RunCostsQuestion) -> MeasuredCosts:
    """Return the costs of stages in measured runs: seconds, their spread, and the time that a rank spends on messages.

    Args:
        runs: Measured Timelines of one model that is cut into the same stages, or files of them.
        profile: Profile of the model, for bytes and, where only B was run, for I and W as shares of B. Its seconds are
            not used.

    Raises:
        ArgumentError: An argument, or a combination, makes no sense.
        ScheduleError: A file is no Timeline.
        ProfileError: A Timeline is not measured, or has other stages; or the profile does not fit.
    """
    timelines, names = read_runs(question.runs)
    samples = samples_of(timelines, names, question.warmup)
    known = profiled_stages(schedule_of(timelines[0]), question.profile, question, question.output_bytes)
    profiled = None if question.profile is None else read_profile_argument(question.profile).provenance.yardstick
    notes = other_speed(profiled, samples.yardstick, _OF_PROFILE)
    costs = costs_of_samples(samples, names, question.warmup)
    return MeasuredCosts(with_profiled(costs, known, question.microbatch_size), tuple(notes))


def read_runs(runs: RunsArgument, name: str = "runs") -> tuple[tuple[Timeline, ...], tuple[str, ...]]:
    """Return Timelines and their names; `name` is the name of the argument.

    Raises:
        ArgumentError: There is no run, or one is something else.
        ScheduleError: A file is no Timeline.
    """
    is_list = isinstance(runs, Collection) and not isinstance(runs, str)
    given = require_names(name, runs) if is_list else (runs,)
    if not given:
        raise ArgumentError(
            f"{name}: got no Timeline, expected at least one; try a Timeline that pipesched.run has measured"
        )
    timelines = tuple(read_timeline_argument(run, name) for run in given)
    names = tuple(
        str(run) if isinstance(run, str | Path) else timeline.name
        for run, timeline in zip(given, timelines, strict=True)
    )
    return timelines, names


def profiled_stages(
    lists: Schedule, profile: ProfileArgument | None, facts: RunFacts, output_bytes: int | None
) -> tuple[StageCost, ...] | None:
    """Return the costs of the stages from the profile or `output_bytes`, or None if neither is given.

    Raises:
        ArgumentError: A value is given twice, or belongs to a profile that is not given.
        ProfileError: The partition does not fit the profile.
    """
    if profile is None:
        if facts.run_partition is not None:
            raise ArgumentError(
                f"run_partition: got {facts.run_partition} without `profile`, expected both; add `profile`, or leave "
                "`run_partition` out"
            )
        if output_bytes is None:
            return None
        return (*[StageCost(0.0, output_bytes=output_bytes)] * (lists.num_stages - 1), StageCost(0.0))
    if output_bytes is not None:
        raise ArgumentError(
            "output_bytes: got `profile` too, expected only one of them: the profile has the bytes; leave "
            "`output_bytes` out"
        )
    in_order, bounds, size = cut_of_runs(lists, profile, facts)
    return in_order.costs_of_layers(bounds, size).stages


def cut_of_runs(
    lists: Schedule, profile: ProfileArgument, facts: RunFacts
) -> tuple[Profile, tuple[tuple[int, int], ...], int]:
    """Return the profile of runs, the layers of each of their stages, and the samples of a micro-batch.

    Raises:
        ArgumentError: An argument is no profile, no partition or no size.
        ProfileError: The partition does not fit the profile.
    """
    loaded = read_profile_argument(profile)
    size = read_microbatch_size(facts.microbatch_size, loaded)
    setup = Setup(costs=loaded, microbatch_size=size, partition=facts.run_partition)
    cut = setup.cut(ScheduleSource(lists))
    return *cut_layers(loaded, cut.partition_text, size, lists.num_stages), size


def lists_of_runs(runs: RunsArgument) -> Schedule:
    """Return the op lists of the first run in `runs`.

    Raises:
        ArgumentError, ScheduleError: As `read_runs` does.
    """
    return schedule_of(read_runs(runs)[0][0])


def with_profiled(costs: RunCosts, stages: Sequence[StageCost] | None, microbatch_size: int | None) -> RunCosts:
    """Return `costs` with the costs of the stages from the profile."""
    sized = replace(costs, microbatch_size=integer(microbatch_size))
    if stages is None:
        return sized
    pairs = zip(costs.stages, stages, strict=True)
    return replace(sized, stages=tuple(replace(stage, profiled=known) for stage, known in pairs))
