"""Which setting to train with: micro-batches, pipelines and more for a model, a batch and a memory limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pipesched.profiles.costs import Profile
from pipesched.profiles.partitioning import parse_partition
from pipesched.profiles.processes import num_cores
from pipesched.schedules.builders import find
from pipesched.simulator import NetworkOptions
from pipesched.simulator.analysis import readable_bytes, readable_s
from pipesched.simulator.search import divisors
from pipesched.simulator.tuner import (
    AVGPIPE,
    Accounting,
    Evaluator,
    Journal,
    Judge,
    Problem,
    Runner,
    Setting,
    SettingOutcome,
    Space,
    best_plain,
    evaluate_setting,
    ranked,
    search_settings,
    smallest_advance,
)
from pipesched.workflows.arguments import (
    ClusterArgument,
    PartitionArgument,
    ProfileArgument,
    partition_text,
    read_devices_argument,
    read_profile_argument,
)
from pipesched.workflows.choices import AccountingChoice, EvaluatorChoice
from pipesched.workflows.errors import (
    NETWORK_EXPECTED,
    ArgumentError,
    require_at_least,
    require_choice,
    require_each_at_least,
    require_kind,
    require_names,
)
from pipesched.workflows.setting_runs import Measurement, require_same_layers
from pipesched.workflows.table import Table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_FEW = 100
"""Settings; for fewer, starting processes takes longer than the work."""


@dataclass(frozen=True, slots=True, repr=False)
class TuneResult:
    """All settings, ranked by the evaluator.

    Attributes:
        problem: What every setting has in common.
        evaluator: Who ranked them.
        outcomes: The one that the evaluator ranks first at the front, the rejected last.
        plain: 1F1B at its best M; None if it does not fit.
        averages: Whether the answer may be a setting that is averaged elastically.
        advanced: The answer with the smallest advance that takes AFAB's time, by our model; None if none does.
    """

    problem: Problem
    evaluator: str
    outcomes: tuple[SettingOutcome, ...]
    plain: SettingOutcome | None
    averages: bool
    advanced: SettingOutcome | None = None

    @property
    def fitting(self) -> tuple[SettingOutcome, ...]:
        """Those that fit, the best first."""
        return tuple(outcome for outcome in self.outcomes if outcome.fits)

    @property
    def candidates(self) -> tuple[SettingOutcome, ...]:
        """Those that fit, without another training than the plain one unless it is asked for, or nothing else fits."""
        plainly = tuple(outcome for outcome in self.fitting if outcome.setting.training == "plain")
        return self.fitting if self.averages or not plainly else plainly

    @property
    def others(self) -> tuple[SettingOutcome, ...]:
        """Those that fit and are no candidates."""
        if len(self.candidates) == len(self.fitting):
            return ()
        return tuple(outcome for outcome in self.fitting if outcome.setting.training != "plain")

    @property
    def chosen(self) -> SettingOutcome | None:
        """The answer; None if nothing fits."""
        return next(iter(self.candidates), None)

    @property
    def averaged(self) -> SettingOutcome | None:
        """What is ranked before the answer, with another training that nobody has asked for; None if nothing is."""
        first = next(iter(self.fitting), None)
        return None if first is self.chosen else first

    def gain(self, outcome: SettingOutcome) -> float | None:
        """Return how many times as fast as plain 1F1B a setting is."""
        if self.plain is None or self.plain.seconds is None or not outcome.seconds:
            return None
        return self.plain.seconds / outcome.seconds

    def to_rows(self) -> list[dict[str, Any]]:
        """Return plain data, a row per setting."""
        return [outcome.to_row() for outcome in self.outcomes]

    def to_frame(self) -> pd.DataFrame:
        """Return a row per setting, in the evaluator's order, the rejected last with their reasons."""
        import pandas as pd

        return pd.DataFrame(self.to_rows())

    def plot(self) -> Figure:
        """Draw time and memory over M and N, and against each other."""
        from pipesched.simulator.views import heat_map_figure

        return heat_map_figure(self.outcomes, self.title)

    @property
    def title(self) -> str:
        """Model, batch and devices."""
        problem = self.problem
        return f"{problem.profile.model}, batch {problem.batch_size}, {len(problem.cluster.devices)} devices"

    def table(self, top: int = 10) -> Table:
        """Return a row for each of the first `top` settings that the answer is among."""
        rows = []
        for number, outcome in enumerate(self.candidates[:top], 1):
            gain = self.gain(outcome)
            rows.append(
                {
                    "": str(number),
                    "setting": str(outcome.setting),
                    "training": outcome.setting.training.value,
                    "time per batch": readable_s(outcome.seconds or 0.0),
                    "memory": readable_bytes(outcome.held_bytes),
                    "over plain 1F1B": "-" if gain is None else f"{gain:.3f} x",
                }
            )
        caption = f"{len(self.fitting)} of {len(self.outcomes)} settings fit; ranked by {self.evaluator}"
        return Table(self.title, tuple(rows), caption)

    def __repr__(self) -> str:
        best = self.chosen
        chosen = "nothing fits" if best is None else f"{best.setting}, {readable_s(best.seconds or 0.0)} per batch"
        return f"TuneResult({self.title!r}: {chosen})"

    def _repr_html_(self) -> str:
        return self.table().to_html()


def tune(
    profile: ProfileArgument,
    batch_size: int,
    cluster: ClusterArgument = None,
    *,
    num_devices: int | None = None,
    partition: PartitionArgument = "balanced",
    network: NetworkOptions = NetworkOptions(),  # noqa: B008 -- frozen
    microbatches: Sequence[int] | None = None,
    pipelines: Sequence[int] | None = None,
    advances: Sequence[int] = (0, 1, 2, 3, 4),
    schedules: Sequence[str] = (AVGPIPE,),
    chunks: Sequence[int] = (2,),
    recomputes: Sequence[bool] = (False,),
    evaluator: EvaluatorChoice = "simulate",
    accounting: AccountingChoice = "paper",
    num_workers: int | None = None,
    resume: str | Path | None = None,
) -> TuneResult:
    """Choose micro-batches M, pipelines N and more for a model, a batch and the memory of the devices.

    The batch is that of one pipeline, and so are its micro-batches M: N of them are under way at once, and times are
    those of one. Several pipelines are averaged elastically, which is another training; unless `pipelines` asks for it,
    the answer is a setting that trains as plain training does.

    Args:
        profile: Of the model: a Profile, or a file of one.
        batch_size: Samples in a batch of each pipeline.
        cluster: Machines, or a file of them; None: `num_devices` equal ones whose links take no time.
        num_devices: Stages of the pipeline, on the first devices of the cluster; None: all.
        partition: Layers to stages: ``balanced``, ``uniform``, or counts as ``3,3,4`` or in a list.
        network: How messages go.
        microbatches: M of each pipeline's batch; None: all that divide it and that the profile covers.
        pipelines: Parallel pipelines N of avgpipe; None: 1 to 4.
        advances: How far ahead of 1F1B avgpipe's forwards may run.
        schedules: Names of the catalogue; avgpipe has 1f1b and 1f1b_afp in it.
        chunks: Stages per device, where a schedule takes them.
        recomputes: Whether stages keep only their input: no, yes, or both are tried.
        evaluator: Who ranks: our model, AvgPipe's equations, a run of every setting here (a `Measurement`), or a
            guideline (most or largest micro-batches).
        accounting: AvgPipe's equations as printed, or all terms per iteration.
        num_workers: Processes; None: as many as cores, where that is quicker.
        resume: File that keeps what is found, so that a stopped search goes on from there.

    Raises:
        ArgumentError: No devices, an unknown word, or numbers that do not divide the batch or that the profile does not
                cover.
        ProfileError: A file is bad, or the model cannot be cut into so many stages.
        ScheduleError: There is no such schedule.
        RankFailed: With ``measure``, if a rank failed, died or hung.
    """
    require_at_least("batch_size", batch_size, 1)
    for name, counts in {"microbatches": microbatches, "pipelines": pipelines}.items():
        if counts is not None:
            require_each_at_least(name, counts, 1)
    require_each_at_least("advances", advances, 0)
    require_each_at_least("chunks", chunks, 1)
    require_names("recomputes", recomputes)
    require_choice("evaluator", evaluator, get_args(EvaluatorChoice))
    require_choice("accounting", accounting, get_args(AccountingChoice))
    require_kind("network", network, NetworkOptions, NETWORK_EXPECTED)
    if num_workers is not None:
        require_at_least("num_workers", num_workers, 1)
    machines = read_devices_argument(cluster, num_devices)
    measured, layers = read_profile_argument(profile), partition_text(partition) or "balanced"
    parse_partition(layers, (1.0,) * len(measured.layers), len(machines.devices))
    problem = Problem(measured, batch_size, machines, layers, network)
    space = Space(
        microbatches=covered_microbatches(problem, microbatches),
        pipelines=(1, 2, 3, 4) if pipelines is None else tuple(pipelines),
        advances=tuple(advances),
        schedules=tunable_schedules(schedules),
        chunks=tuple(chunks),
        recomputes=tuple(recomputes),
    )
    return search_problem(
        problem,
        space.settings(),
        evaluator,
        accounting=accounting,
        num_workers=num_workers,
        resume=resume,
        averages=pipelines is not None,
        judge=_runs_here(problem) if evaluator == "measure" else None,
        how="measure" if evaluator == "measure" else "simulate",
    )


def _runs_here(problem: Problem) -> Judge:
    require_same_layers(problem)
    return Measurement(problem)


def search_problem(
    problem: Problem,
    settings: Sequence[Setting],
    evaluator: str,
    *,
    averages: bool,
    accounting: AccountingChoice = "paper",
    num_workers: int | None = None,
    runner: Runner | None = None,
    resume: str | Path | None = None,
    judge: Judge | None = None,
    how: str = "simulate",
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
) -> TuneResult:
    """Evaluate `settings` and rank them.

    Args:
        problem: What they have in common.
        settings: What to choose from.
        evaluator: Who ranks; ``measure`` needs a `judge`, which is asked for one setting after the other.
        averages: Whether the answer may be a setting that is averaged elastically.
        accounting: Of AvgPipe's equations.
        num_workers: Processes; None: as many as cores, where that is quicker.
        runner: Another way to go through them, in place of processes of this machine.
        resume: File that keeps what is found.
        judge: Who evaluates a setting, in place of the evaluator's own.
        how: What the found times depend on, beside the problem; kept in `resume`.
        progress: Is told which share of the settings is done.

    Raises:
        ArgumentError: None of them can be.
        RankFailed: With ``measure``, if a rank failed, died or hung.
    """
    who = Evaluator(evaluator)
    measures = who is Evaluator.MEASURE
    is_quick = len(settings) < _FEW or who is Evaluator.AVGPIPE
    outcomes = search_settings(
        problem,
        settings,
        who,
        accounting=Accounting(accounting),
        workers=num_workers or (1 if is_quick else num_cores()),
        tick=progress,
        judge=judge,
        runner=_in_turn if measures else runner,
        journal=None if resume is None else Journal(Path(resume), problem, how),
    )
    if all(outcome.seconds is None for outcome in outcomes):
        raise ArgumentError(f"none of {len(outcomes)} settings can be; the first: {outcomes[0].reason}")
    result = TuneResult(problem, evaluator, ranked(outcomes, who), best_plain(outcomes), averages)
    return result if measures else replace(result, advanced=_advanced(result, who))


def _in_turn(judge: Judge, settings: Sequence[Setting]) -> Iterator[SettingOutcome]:
    """One after the other, and nothing beside it; settings of one size follow each other."""
    return map(judge, settings)


def _advanced(result: TuneResult, who: Evaluator) -> SettingOutcome | None:
    if result.chosen is None or result.chosen.setting.advance is None:
        return None
    known = {} if who is Evaluator.AVGPIPE else {outcome.setting: outcome for outcome in result.outcomes}
    return smallest_advance(
        lambda setting: known.get(setting) or evaluate_setting(result.problem, setting), result.chosen.setting
    )


def tunable_schedules(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of schedules that train batch by batch, each once.

    Raises:
        ArgumentError: There is none, or one steps without a flush.
        ScheduleError: There is no such schedule.
    """
    require_names("schedules", names)
    entries = [find(name) for name in names]
    if not entries:
        raise ArgumentError("schedules: got none, expected names; try avgpipe,zb_h1")
    for entry in entries:
        if entry.traits.is_asynchronous:
            raise ArgumentError(
                f"schedules: got {entry.name}, which steps without a flush, expected schedules that train batch by "
                "batch; try avgpipe,zb_h1"
            )
    return tuple(dict.fromkeys(entry.name for entry in entries))


def covered_microbatches(problem: Problem, asked: Sequence[int] | None) -> tuple[int, ...]:
    """Return the numbers of micro-batches that there may be: those asked for, or all that the profile covers.

    Raises:
        ArgumentError: The profile covers none, or one that is asked for cannot be, with the nearest that can.
    """
    size = problem.batch_size
    covered = [count for count in divisors(size) if problem.covers(count)]
    if not covered:
        raise ArgumentError(
            f"batch_size: got {size}, expected a multiple of a micro-batch that {_covered(problem.profile)}; "
            f"try {_near_batch(problem)}, or profile the model again with other sizes"
        )
    if asked is None:
        return tuple(covered)
    require_dividing(asked, size, covered)
    for count in asked:
        if count not in covered:
            raise ArgumentError(
                f"microbatches: got {count} in a batch of {size}, so {size // count} samples in each, expected a size "
                f"that {_covered(problem.profile)}; try `microbatches={_nearest(count, covered)}`"
            )
    return tuple(asked)


def require_dividing(asked: Sequence[int], batch_size: int, there: Sequence[int]) -> None:
    """Refuse numbers of micro-batches that do not divide the batch.

    Args:
        there: Numbers that would do.

    Raises:
        ArgumentError: One does not divide it.
    """
    for count in asked:
        if count < 1 or batch_size % count:
            raise ArgumentError(
                f"microbatches: got {count}, expected what divides the batch of {batch_size}; "
                f"try `microbatches={_nearest(count, there)}`"
            )


def _nearest(wanted: int, there: Sequence[int]) -> str:
    return " or ".join(map(str, sorted(sorted(there, key=lambda count: abs(count - wanted))[:2])))


def _covered(profile: Profile) -> str:
    sizes = profile.microbatch_sizes
    return f"the profile covers, {sizes[0]} to {sizes[-1]}"


def _near_batch(problem: Problem) -> int:
    """Return the nearest batch that can be cut into micro-batches that the profile covers."""
    size = problem.batch_size
    near = (
        other for step in range(size + problem.profile.microbatch_sizes[0] + 1) for other in (size - step, size + step)
    )
    return next(
        other
        for other in near
        if other > 0 and any(replace(problem, batch_size=other).covers(m) for m in divisors(other))
    )
