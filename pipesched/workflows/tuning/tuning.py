"""Tuning: find the micro-batches, pipelines and more to train with, for a model, a batch and a memory limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Annotated

from pipesched.executor import Repetitions, RunSettings
from pipesched.profiles.costs import Profile
from pipesched.profiles.io import machine_name_of
from pipesched.profiles.partitioning import parse_partition
from pipesched.profiles.processes import num_cores
from pipesched.questions import OnShare, TuneSettings, unheard
from pipesched.schedules.common import MAX_NUMBER, Description, tuple_of, values_of
from pipesched.simulator import Inexact
from pipesched.simulator.search import Outcome, Setting, divisors, evaluate_in_turn, nearest_batch, own_sources
from pipesched.simulator.tuner import (
    Accounting,
    Evaluator,
    Problem,
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
    ArgumentError,
    asks,
    estimate_notes,
    given_stages,
    other_device,
    refused_settings,
    require_kind,
    require_rate,
    require_settings,
    unknown_bytes,
    unknown_to_equations,
)
from pipesched.workflows.arguments import (
    NamedSchedule,
    read_devices_argument,
    read_recomputes,
    read_workers,
    require_one_step,
    searched_entries,
)
from pipesched.workflows.simulating import SetupArgument, read_setup_argument, require_table_size, require_unused
from pipesched.workflows.tuning.setting_race import CONTENDERS, contenders_of, race_settings
from pipesched.workflows.tuning.setting_runs import Measurement, measure_settings, require_same_layers
from pipesched.workflows.tuning.tune_result import TuneResult

_FEW = 2000
"""Number of settings below which starting processes takes longer than the work."""


@dataclass(frozen=True)
class TuneQuestion(TuneSettings, Repetitions):
    """The question of `tune`; its fields are the arguments of that function."""

    setup: SetupArgument
    num_contenders: Annotated[
        int, Description("Number of the best settings in the race, beside plain 1F1B.", least=1, most=MAX_NUMBER)
    ] = field(default=CONTENDERS, kw_only=True)
    run_settings: RunSettings = field(default=RunSettings(), kw_only=True)
    is_exact: Annotated[
        bool,
        Description(
            "Whether every setting gets exact seconds and bytes. Otherwise settings after the first `top` (of each "
            "training, and of the rejected) may have only lower bounds."
        ),
    ] = field(default=True, kw_only=True)
    progress: OnShare = field(default=unheard, kw_only=True)


@asks(TuneQuestion)
def tune(question: TuneQuestion) -> TuneResult:
    """Choose micro-batches M, pipelines N and more for a model, a batch and the memory of the devices.

    The batch and its M micro-batches are of one pipeline. N pipelines process N batches at once, and times are of one
    batch. Several pipelines are averaged elastically, which changes the training result. Unless `pipelines` asks for
    it, the answer is a setting with plain training.

    Args:
        setup: The profile of the model, machines and other conditions, a `Setup`; or the profile alone. Without a
            cluster there are `num_devices` equal devices whose links take no time.
        run_settings: Settings of the runs here, with ``evaluator="measure"`` or `budget_s`. Runs of several pipelines
            have 20 more iterations of warm-up, in which the pipelines drift apart.

    Raises:
        ArgumentError: No devices, an unknown word, or numbers that do not divide the batch or that the profile does not
            cover; or none of the settings is possible.
        ModuleNotFoundError: Ray is not installed.
        ProfileError: A file is bad, or the model has fewer layers than stages.
        ScheduleError: A schedule does not exist.
        SimulationError: The Ray cluster fails.
        RankFailed: With ``measure`` or `budget_s`, if a rank failed, died or hung.
    """
    require_tuning(question, question.run_settings)
    setup = read_setup_argument(question.setup)
    unused = "compression", "convert_bytes_per_s", "jitter", "seed", "engine", "buffers", "tied_bytes"
    require_unused(setup, "tune", *unused)
    require_table_size(setup, "tune")
    machines, profile = setup.limited(read_devices_argument(setup.cluster, question.num_devices)), setup.profile
    parse_partition(setup.partition_text or "balanced", (1.0,) * len(profile.layers), len(machines.devices))
    problem = Problem(profile, question.batch_size, machines, setup.partition_text, setup.network)
    schedules = tunable_schedules(question.schedules)
    asked = None if question.microbatches is None else tuple_of(question.microbatches)
    space = Space(
        num_ranks=len(machines.devices),
        microbatches=covered_microbatches(problem, asked),
        pipelines=tuple_of(question.pipelines or (1, 2, 3, 4)),
        advances=tuple_of(question.advances),
        schedules=schedules,
        chunks=tuple_of(question.chunks),
        recomputes=read_recomputes(question.recompute, question.recompute_when, is_inside=profile.is_recomputed),
    )
    measurement = _measurement(question, problem)
    result = _searched(question, problem, space, measurement)
    notes = [*estimate_notes(profile), *other_device(profile, machine_name_of(machines)), *unknown_bytes(profile)]
    notes += given_stages(profile, len(machines.devices)) if setup.partition is None else []
    notes += unknown_to_equations(setup.network, question.evaluator)
    result = replace(result, notes=(*notes, *result.notes))
    if question.budget_s is None or measurement is None or not result.candidates:
        return result
    contenders = contenders_of(result.candidates, result.plain, question.num_contenders)
    return replace(result, race=race_settings(contenders, measurement, question.budget_s, question.progress))


def require_tuning(settings: TuneSettings, runs: RunSettings) -> None:
    """Refuse settings that are invalid or contradict each other, whatever the profile.

    Raises:
        ArgumentError: A setting is invalid, or two contradict each other.
        ScheduleError: A schedule does not exist.
    """
    require_settings(settings)
    require_kind("run_settings", runs, RunSettings, "RunSettings")
    if runs.clip_grad_norm is not None:
        raise ArgumentError(
            "clip_grad_norm: got a norm with tune, whose settings step without a barrier, expected none; leave it out"
        )
    measures = settings.evaluator == "measure"
    if settings.resume is not None and settings.evaluator == "avgpipe":
        raise ArgumentError(
            "resume: got a journal with `evaluator=avgpipe`, whose equations take no time, expected none; leave it out"
        )
    for name in ("num_workers", "ray"):
        if getattr(settings, name) is not None and measures:
            raise ArgumentError(
                f"{name}: got this setting with `evaluator=measure`, which runs one setting after the other, expected "
                "no such setting; leave it out"
            )
    if settings.budget_s is not None:
        require_rate("budget_s", settings.budget_s)
        if measures:
            raise ArgumentError(
                "budget_s: got a budget with `evaluator=measure`, which runs every setting, expected only one of them; "
                "leave one out"
            )
    tunable_schedules(settings.schedules)


def _measurement(question: TuneQuestion, problem: Problem) -> Measurement | None:
    """Return the judge that runs settings here, or None if nothing runs.

    Raises:
        ArgumentError: The model has other layers than its profile, or this machine cannot run it.
        ProfileError: The model does not exist, or the profile is not trusted.
    """
    if question.evaluator != "measure" and question.budget_s is None:
        return None
    from pipesched.workflows.arguments import require_epsilon, require_possible  # load torch, as runs need it

    require_possible(question.run_settings)
    require_epsilon((), question.run_settings)
    require_same_layers(problem.profile)
    return Measurement(problem, measure_settings(question.run_settings, question))


def _searched(question: TuneQuestion, problem: Problem, space: Space, measurement: Measurement | None) -> TuneResult:
    """Evaluate the settings of a space and rank them.

    Raises:
        ArgumentError: None of the settings is possible.
        RankFailed: With ``measure``, if a rank failed, died or hung.
    """
    settings, who = space.settings(), Evaluator(question.evaluator)
    measures = who is Evaluator.MEASURE
    runs = values_of(question.run_settings, RunSettings), question.iterations, question.warmup, question.is_checked
    how = f"measure, {runs}" if measures else "simulate"
    num_workers, ray_runner = read_workers(question, space.schedules)
    is_quick = len(settings) < _FEW or who is Evaluator.AVGPIPE
    workers = num_workers or (1 if is_quick else num_cores())
    evaluated: frozenset[Setting] | None = None
    if question.is_exact or question.resume is not None or ray_runner or who in (Evaluator.AVGPIPE, Evaluator.MEASURE):
        depends_on = ", ".join([how, *own_sources(settings)])
        outcomes = search_settings(
            problem,
            settings,
            who,
            accounting=Accounting(question.accounting),
            workers=workers,
            tick=question.progress,
            judge=measurement if measures else None,
            runner=evaluate_in_turn if measures else ray_runner,
            journal=None if question.resume is None else setting_journal(question.resume, problem, depends_on),
        )
    else:
        outcomes, evaluated = search_leading(
            problem, settings, who, question.top, workers=workers, tick=question.progress
        )
    if all(outcome.seconds is None for outcome in outcomes):
        raise refused_settings(len(outcomes), outcomes[0].reason)
    averages = question.pipelines is not None
    result = TuneResult(problem, question.evaluator, ranked(outcomes, who), best_plain(outcomes), averages)
    if measures:
        return result
    known = {outcome.setting: outcome for outcome in outcomes if evaluated is None or outcome.setting in evaluated}
    result = replace(result, advanced=_advanced(result, who, known))
    return result if who is Evaluator.AVGPIPE else _paced(result, question.top)


def _paced(result: TuneResult, count: int) -> TuneResult:
    """Return the result with steady-state times for the first settings, with and without elastic averaging.

    A time may be the reason why it is unknown.
    """
    trainings: dict[str, list[Outcome]] = {}
    for outcome in result.fitting:
        trainings.setdefault(outcome.setting.training, []).append(outcome)
    first = chain.from_iterable(outcomes[:count] for outcomes in trainings.values())
    paces = {outcome.setting: pace_of_setting(result.problem, outcome) for outcome in first}
    reasons = dict.fromkeys(pace.reason for pace in paces.values() if isinstance(pace, Inexact))
    outcomes = tuple(outcome.at_pace(paces.get(outcome.setting)) for outcome in result.outcomes)
    plain = None if result.plain is None else result.plain.at_pace(paces.get(result.plain.setting))
    notes = tuple(f"steady time: {reason}" for reason in reasons)
    return replace(result, outcomes=outcomes, plain=plain, notes=notes)


def _advanced(result: TuneResult, who: Evaluator, known: Mapping[Setting, Outcome]) -> Outcome | None:
    if result.chosen is None or result.chosen.setting.advance is None:
        return None
    known = {} if who is Evaluator.AVGPIPE else known  # the equations' are not our model's
    return smallest_advance(
        lambda setting: known.get(setting) or evaluate_setting(result.problem, setting), result.chosen.setting
    )


def tunable_schedules(schedules: Sequence[NamedSchedule]) -> tuple[str, ...]:
    """Return the names, as a search knows them, of schedules that train batch by batch, each once.

    Raises:
        ArgumentError: `schedules` is empty, or a schedule steps without a flush.
        ScheduleError: A schedule does not exist.
    """
    entries = searched_entries(schedules, "['avgpipe', 'zb_h1']", require_one_step)
    for entry in entries:
        if entry.traits.is_asynchronous:
            raise ArgumentError(
                f"schedules: got {entry.name}, which steps without a flush, expected schedules that train batch by "
                "batch; try avgpipe,zb_h1"
            )
    return tuple(entry.searched_name for entry in entries)


def covered_microbatches(problem: Problem, asked: Sequence[int] | None) -> tuple[int, ...]:
    """Return the possible numbers of micro-batches: the given ones, or all that the profile covers.

    Raises:
        ArgumentError: The profile covers no number, or not a given number; the message has the nearest covered number.
    """
    size = problem.batch_size
    covered = [count for count in divisors(size) if problem.covers(count)]
    if not covered:
        raise ArgumentError(
            f"batch_size: got {size}, expected a multiple of a micro-batch that {_covered(problem.profile)}; "
            f"try {nearest_batch(problem.profile, size)}, or profile the model again with other sizes"
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
        there: Valid numbers.

    Raises:
        ArgumentError: A number does not divide the batch.
    """
    for count in asked:
        if count < 1 or batch_size % count:
            raise ArgumentError(
                f"microbatches: got {count}, expected divisors of the batch of {batch_size}; "
                f"try `microbatches={_nearest(count, there)}`"
            )


def _nearest(wanted: int, there: Sequence[int]) -> str:
    return " or ".join(map(str, sorted(sorted(there, key=lambda count: abs(count - wanted))[:2])))


def _covered(profile: Profile) -> str:
    sizes = profile.microbatch_sizes
    return f"the profile covers, {sizes[0]} to {sizes[-1]}"
