"""Tuning: find the micro-batches, pipelines and more to train with, for a model, a batch and a memory limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import get_args

from pipesched.profiles.partitioning import parse_partition
from pipesched.profiles.processes import num_cores
from pipesched.simulator import Inexact, NetworkOptions, SteadyPace
from pipesched.simulator.search import Runner, evaluate_in_turn, own_sources
from pipesched.simulator.tuner import (
    AVGPIPE,
    Accounting,
    Evaluator,
    Judge,
    Problem,
    Setting,
    SettingOutcome,
    Space,
    best_plain,
    evaluate_setting,
    pace_of_setting,
    ranked,
    search_leading,
    search_settings,
    setting_journal,
    smallest_advance,
)
from pipesched.workflows import (
    MAX_PROCESSES,
    AccountingChoice,
    EvaluatorChoice,
    refused_settings,
    require_at_least,
    require_choice,
    require_each_at_least,
    require_flags,
    require_kind,
    require_optional,
)
from pipesched.workflows.arguments import (
    ClusterArgument,
    NamedSchedule,
    PartitionArgument,
    ProfileArgument,
    partition_text,
    read_devices_argument,
    read_profile_argument,
    require_network,
    workers_for,
)
from pipesched.workflows.tuning.setting_race import CONTENDERS, raced, require_budget
from pipesched.workflows.tuning.setting_runs import Measurement, require_same_layers
from pipesched.workflows.tuning.tune_result import TuneResult
from pipesched.workflows.tuning.tune_space import covered_microbatches, tunable_schedules

_FEW = 2000
"""Number of settings below which starting processes takes longer than the work."""


def tune(
    profile: ProfileArgument,
    batch_size: int,
    cluster: ClusterArgument = None,
    *,
    num_devices: int | None = None,
    partition: PartitionArgument | None = None,
    network: NetworkOptions = NetworkOptions(),  # noqa: B008 -- frozen
    microbatches: Sequence[int] | None = None,
    pipelines: Sequence[int] | None = None,
    advances: Sequence[int] = (0, 1, 2, 3, 4),
    schedules: Sequence[NamedSchedule] = (AVGPIPE,),
    chunks: Sequence[int] = (2,),
    recomputes: Sequence[bool] = (False,),
    evaluator: EvaluatorChoice = "simulate",
    accounting: AccountingChoice = "paper",
    num_workers: int | None = None,
    resume: str | Path | None = None,
    budget_s: float | None = None,
    num_contenders: int = CONTENDERS,
    input_share: float | None = None,
) -> TuneResult:
    """Choose micro-batches M, pipelines N and more for a model, a batch and the memory of the devices.

    The batch and its M micro-batches are of one pipeline. N pipelines process N batches at once, and times are of one
    batch. Several pipelines are averaged elastically, which is another training. Unless `pipelines` asks for it, the
    answer is a setting with plain training.

    Args:
        profile: Profile of the model: a Profile, or a file of one.
        batch_size: Samples in a batch of each pipeline.
        cluster: Machines, or a file of them; None: `num_devices` equal ones whose links take no time.
        num_devices: Stages of the pipeline, on the first devices of the cluster; None: all.
        partition: Layers to stages: ``balanced`` (None), ``uniform``, or counts as ``3,3,4`` or in a list.
        network: Options of the network.
        microbatches: M of each pipeline's batch; None: all divisors of the batch that the profile covers.
        pipelines: Parallel pipelines N of avgpipe; None: 1 to 4.
        advances: Steps that avgpipe's forwards may run ahead of 1F1B.
        schedules: Names of the catalogue, and builders of your own or their names; avgpipe includes 1f1b and 1f1b_afp.
        chunks: Stages per device, where a schedule takes them.
        recomputes: Whether stages keep only their input: no, yes, or both.
        evaluator: Ranking by our model, by AvgPipe's equations, by a run of every setting here (a `Measurement`), or by
            a guideline (most or largest micro-batches).
        accounting: AvgPipe's equations as printed, or all terms per iteration.
        num_workers: Processes; None: one per core if that is quicker.
        resume: File of the results so far, from which a stopped search continues.
        budget_s: Seconds for a race of the best settings here, in turn until one is clear of the others; None: no race.
        num_contenders: Number of the best settings in the race, beside plain 1F1B.
        input_share: Share of B that I takes in a profile with B alone; W takes the rest.

    Raises:
        ArgumentError: No devices, an unknown word, or numbers that do not divide the batch or that the profile does not
            cover.
        ProfileError: A file is bad, or the model has fewer layers than stages.
        ScheduleError: A schedule does not exist.
        RankFailed: With ``measure`` or `budget_s`, if a rank failed, died or hung.
    """
    batch_size = require_at_least("batch_size", batch_size, 1)
    space = Space(
        microbatches=() if microbatches is None else require_each_at_least("microbatches", microbatches, 1),
        pipelines=(1, 2, 3, 4) if pipelines is None else require_each_at_least("pipelines", pipelines, 1),
        advances=require_each_at_least("advances", advances, 0),
        schedules=tunable_schedules(schedules),
        chunks=require_each_at_least("chunks", chunks, 1),
        recomputes=require_flags("recomputes", recomputes),
    )
    if resume is not None:
        require_kind("resume", resume, str | Path, "the name of a file, or None")
    require_choice("evaluator", evaluator, get_args(EvaluatorChoice))
    require_choice("accounting", accounting, get_args(AccountingChoice))
    require_network(network)
    num_workers = require_optional("num_workers", num_workers, 1, MAX_PROCESSES)
    num_contenders = require_at_least("num_contenders", num_contenders, 1)
    if budget_s is not None:
        require_budget("budget_s", budget_s, evaluator)
    machines = read_devices_argument(cluster, num_devices)
    measured, layers = read_profile_argument(profile, input_share), partition_text(partition)
    parse_partition(layers or "balanced", (1.0,) * len(measured.layers), len(machines.devices))
    problem = Problem(measured, batch_size, machines, layers, network)
    space = replace(space, microbatches=covered_microbatches(problem, space.microbatches or None))
    measurement = _runs_here(problem) if evaluator == "measure" or budget_s is not None else None
    result = search_problem(
        problem,
        space.settings(),
        evaluator,
        accounting=accounting,
        num_workers=workers_for(space.schedules, num_workers),
        resume=resume,
        averages=pipelines is not None,
        judge=measurement if evaluator == "measure" else None,
        how="measure" if evaluator == "measure" else "simulate",
    )
    return result if budget_s is None or measurement is None else raced(result, measurement, budget_s, num_contenders)


def _runs_here(problem: Problem) -> Measurement:
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
    num_paced: int = 10,
    num_leading: int | None = None,
    progress: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
) -> TuneResult:
    """Evaluate `settings` and rank them.

    Args:
        problem: The common parts of all settings.
        settings: The candidates.
        evaluator: The ranking; ``measure`` needs a `judge`, which evaluates one setting after the other.
        averages: Whether the answer may be a setting that is averaged elastically.
        accounting: The accounting of AvgPipe's equations.
        num_workers: Processes; None: one per core if that is quicker.
        runner: Another way to evaluate all settings, in place of processes of this machine.
        resume: File of the results so far.
        judge: Evaluates a setting, in place of the evaluator.
        how: Dependencies of the times beside the problem; kept in `resume`.
        num_paced: Number of first settings, without and with another training, that get a steady-state time.
        num_leading: Number of first settings of either training, and of rejected settings, that get exact seconds and
            bytes; others get lower bounds. None: all, as with a `judge` or a file.
        progress: Receives the finished share of the settings.

    Raises:
        ArgumentError: None of the settings is possible.
        RankFailed: With ``measure``, if a rank failed, died or hung.
    """
    who = Evaluator(evaluator)
    measures = who is Evaluator.MEASURE
    depends_on = ", ".join([how, *own_sources(settings)])
    is_quick = len(settings) < _FEW or who is Evaluator.AVGPIPE
    workers = num_workers or (1 if is_quick else num_cores())
    evaluated: frozenset[Setting] | None = None
    if num_leading is None or resume is not None or runner is not None or who in (Evaluator.AVGPIPE, Evaluator.MEASURE):
        outcomes = search_settings(
            problem,
            settings,
            who,
            accounting=Accounting(accounting),
            workers=workers,
            tick=progress,
            judge=judge,
            runner=evaluate_in_turn if measures else runner,
            journal=None if resume is None else setting_journal(Path(resume), problem, depends_on),
        )
    else:
        outcomes, evaluated = search_leading(problem, settings, who, num_leading, workers=workers, tick=progress)
    if all(outcome.seconds is None for outcome in outcomes):
        raise refused_settings(len(outcomes), outcomes[0].reason)
    result = TuneResult(problem, evaluator, ranked(outcomes, who), best_plain(outcomes), averages)
    if measures:
        return result
    known = {outcome.setting: outcome for outcome in outcomes if evaluated is None or outcome.setting in evaluated}
    return replace(result, advanced=_advanced(result, who, known), paces=_paces(result, num_paced))


def _paces(result: TuneResult, count: int) -> dict[Setting, SteadyPace | Inexact]:
    """Return the steady-state times of the first settings of either training; AvgPipe's equations have none."""
    if result.evaluator == Evaluator.AVGPIPE:
        return {}
    trainings: dict[str, list[SettingOutcome]] = {}
    for outcome in result.fitting:
        trainings.setdefault(outcome.setting.training, []).append(outcome)
    first = chain.from_iterable(outcomes[:count] for outcomes in trainings.values())
    return {outcome.setting: pace_of_setting(result.problem, outcome) for outcome in first}


def _advanced(result: TuneResult, who: Evaluator, known: Mapping[Setting, SettingOutcome]) -> SettingOutcome | None:
    if result.chosen is None or result.chosen.setting.advance is None:
        return None
    known = {} if who is Evaluator.AVGPIPE else known  # the equations' are not our model's
    return smallest_advance(
        lambda setting: known.get(setting) or evaluate_setting(result.problem, setting), result.chosen.setting
    )
