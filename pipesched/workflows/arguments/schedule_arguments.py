"""Reading and checking of the schedule that a caller gives.

A schedule is a Schedule, a Plan, a name of the catalogue or a builder of your own with its counts, or a file of lists
or of a plan (.json, .csv).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from pipesched.profiles import models
from pipesched.profiles.io import PLAN_FORMAT, Plan, costs_file_of, is_built_in, load_plan
from pipesched.questions import RecomputeChoice, ScheduleCounts
from pipesched.schedules import Schedule, ScheduleError
from pipesched.schedules.builders import Entry, ParameterValue, build_entry, build_generated, find, lookup
from pipesched.schedules.check import require_runnable
from pipesched.schedules.common import values_of
from pipesched.schedules.formats import format_of, read_schedule, suffix_of
from pipesched.schedules.transforms import RecomputeWhen, runs_without_flush, with_step_barrier, with_tied_sum
from pipesched.workflows import ArgumentError, require_kind, require_names
from pipesched.workflows.arguments.own_builder import Builder, names_builder, own_entry, searched_entry

_STEPS_PER_RANK = 4
"""Steps of a planned list without a flush, for each rank of a copy: enough for every measurement to settle."""


@dataclass(frozen=True, slots=True)
class ScheduleSource:
    """A schedule and its origin.

    Attributes:
        schedule: The lists of one batch, or of a run without a flush.
        longer: Makes a run without a flush that is a given number of times as long, also in another process; None for a
            batch, which is repeated.
        plan: The plan of the schedule, or None without one.
    """

    schedule: Schedule
    longer: Callable[[int], Schedule] | None = None
    plan: Plan | None = None


NamedSchedule: TypeAlias = str | Builder
"""A schedule that is built from counts: a name of the catalogue, or a builder of the user's own, or its name."""
ListsArgument: TypeAlias = Schedule | Plan | ScheduleSource | str | Path
"""Lists of ops: a Schedule, a Plan, a source, or a file."""
ScheduleArgument: TypeAlias = ListsArgument | Builder


def read_schedule_argument(
    schedule: ScheduleArgument,
    counts: ScheduleCounts = ScheduleCounts(),  # noqa: B008 -- frozen
    *,
    is_held: bool = True,
) -> ScheduleSource:
    """Return the lists of `schedule`.

    Args:
        schedule: A schedule, a plan, a name of the catalogue, a function of (num_ranks, num_microbatches, ...) or its
            name (``package.module:builder``), or a file of lists (``.json``, ``.csv``) or of a plan.
        counts: The counts and parameters of a schedule given by name.
        is_held: Whether the lists are held in memory; if not, lists of a `Schedule` or of a name may be generated.

    Raises:
        ArgumentError: `schedule` is another object, a name lacks its counts, or lists come with counts.
        ScheduleError: No such schedule, counts that it cannot have, or a bad file.
        ProfileError: The file of a plan is bad, or its parts do not fit together.
    """
    if not callable(schedule):
        require_kind("schedule", schedule, ListsArgument, "a Schedule, a Plan, a name, a builder or a file")
    named = named_schedule(schedule)
    if named is not None:
        return build_source(named, counts, is_held=is_held)
    for name, value in values_of(counts, ScheduleCounts).items():
        if value:
            raise ArgumentError(
                f"{name}: got {value} with a schedule that already has its counts, expected the name of a schedule; "
                f"leave `{name}` out"
            )
    match schedule:
        case ScheduleSource():
            return schedule
        case Schedule():
            return ScheduleSource(schedule.held() if is_held else schedule)
        case Plan():
            return _planned(schedule)
        case _:
            assert isinstance(schedule, str | Path), "it is not called"
            plan = given_plan(schedule)
            return ScheduleSource(read_schedule(schedule)) if plan is None else _planned(plan)


def read_lists_argument(schedule: ListsArgument) -> ScheduleSource:
    """Return the lists of a Schedule, a Plan, or a file of either.

    Raises:
        ArgumentError: None of these; a name, or a builder, needs its counts.
        ScheduleError: A bad file.
        ProfileError: The file of a plan is bad, or its parts do not fit together.
    """
    named = named_schedule(schedule)
    if named is not None:
        is_own = callable(named) or names_builder(named)
        call = f"{'build_own' if is_own else 'build'}({'builder' if callable(named) else repr(named)},"
        raise ArgumentError(
            f"schedule: got {label_of(schedule)}, expected a Schedule with its counts; try "
            f"pipesched.{call} num_ranks=4, num_microbatches=8)"
        )
    return read_schedule_argument(schedule)


def build_own(
    builder: NamedSchedule,
    num_ranks: int,
    num_microbatches: int,
    num_chunks: int | None = None,
    **parameters: ParameterValue,
) -> ScheduleSource:
    """Return the lists of a builder of your own, and how to make a longer run; `build` has the catalogue.

    Args:
        builder: A function of (num_ranks, num_microbatches, ...), or its name, ``package.module:builder`` or
            ``path.py:builder``.
        num_ranks: Ranks of the pipeline.
        num_microbatches: Micro-batches.
        num_chunks: Stages per rank, where the builder takes them.
        parameters: Further arguments of the builder.

    Raises:
        ScheduleError: No such builder or parameter, or the builder returns no lists.
    """
    return source_of_entry(entry_of(builder), num_ranks, num_microbatches, num_chunks, parameters)


def as_clipped(source: ScheduleSource, max_norm: float | None) -> ScheduleSource:
    """Return `source`, with Steps that wait for the norm of all gradients if `max_norm` is given.

    Raises:
        ScheduleError: The schedule has no flush, or averages pipelines.
    """
    return source if max_norm is None else replace(source, schedule=with_step_barrier(source.schedule), longer=None)


def as_tied(source: ScheduleSource, model: models.Model, bounds: Sequence[tuple[int, int]]) -> ScheduleSource:
    """Return `source`, with Steps that wait for the gradients of parameters that stages share, if there are any.

    Args:
        source: The schedule.
        model: The model.
        bounds: Half-open range of layers of each stage.

    Raises:
        ScheduleError: Stages share parameters, and the schedule has no flush, or averages pipelines.
    """
    stages = models.tied_stages(model, bounds) if model.ties else ()
    if not stages:
        return source
    with naming_ties(model, bounds):
        return replace(source, schedule=with_tied_sum(source.schedule, stages), longer=None)


@contextmanager
def naming_ties(model: models.Model, bounds: Sequence[tuple[int, int]]) -> Iterator[None]:
    """Name a parameter that stages share in an error about tied stages inside the block.

    Raises:
        ScheduleError: The error raised inside.
    """
    try:
        yield
    except ScheduleError as error:
        layer, name = models.ties_between(model, bounds)[0][0]
        raise ScheduleError(f"model {model.name}: layer {layer} shares {name} with another stage: {error}") from error


def named_schedule(schedule: object) -> NamedSchedule | None:
    """Return `schedule` if it is built from counts: a builder, or a name, known or not.

    Lists, plans and files give None. A text with the suffix of a file of lists or of a plan (``.json``, ``.csv``) is a
    file.
    """
    if callable(schedule) or (isinstance(schedule, str) and suffix_of(schedule) not in (".json", ".csv")):
        return schedule
    return None


def entry_of(schedule: NamedSchedule) -> Entry:
    """Return the catalogue entry of a schedule that is built from counts.

    Raises:
        ScheduleError: The schedule or the builder does not exist.
    """
    if isinstance(schedule, str) and not names_builder(schedule):
        return find(schedule)
    return own_entry(schedule)


def known_entry(schedule: object) -> Entry | None:
    """Return the entry of a schedule, or None for lists, plans, files and names outside the catalogue.

    Raises:
        ScheduleError: The named builder does not exist.
    """
    named = named_schedule(schedule)
    if named is None or (isinstance(named, str) and not names_builder(named)):
        return None if named is None else lookup(named)
    return own_entry(named)


def searched_entries(
    schedules: Sequence[NamedSchedule], example: str, require: Callable[[Schedule], None] = require_runnable
) -> tuple[Entry, ...]:
    """Return the entries of the schedules of a search, each once by `Entry.searched_name`.

    Args:
        schedules: Names of the catalogue, and builders of a user's own or their names.
        example: Valid names, for messages.
        require: Refuses lists of a user's own that the search cannot use.

    Raises:
        ArgumentError: `schedules` is no list of these.
        ScheduleError: A schedule or a builder does not exist.
    """
    if not require_names("schedules", schedules):
        raise ArgumentError(f"schedules: got none, expected names; try {example}")
    for schedule in schedules:
        if not callable(schedule):
            require_kind("schedules", schedule, str, f"names; try {example}")
    entries = [searched_entry(entry_of(schedule), require) for schedule in schedules]
    return tuple({entry.searched_name: entry for entry in entries}.values())


def read_recomputes(
    choice: RecomputeChoice,
    when: RecomputeWhen | None,
    usual: RecomputeWhen = "early",
    *,
    is_inside: bool = False,
) -> tuple[RecomputeWhen | None, ...]:
    """Return when the settings of a search recompute; None stands for settings that do not.

    Args:
        choice: Whether settings recompute.
        when: When they do; None: `usual`.
        usual: The default.
        is_inside: Whether layers recompute inside their backward, so that no setting does it again.

    Raises:
        ArgumentError: `when` is given, but nothing recomputes; or layers recompute anyway.
    """
    if is_inside and choice == "yes":
        raise ArgumentError(
            "recompute: got yes for layers that recompute inside their backward, expected no; try `recompute=no`"
        )
    if choice == "no" and when is not None:
        raise ArgumentError(
            f"recompute_when: got {when} with `recompute=no`, expected yes or both; try `recompute=both`"
        )
    known = when or usual
    return {"no": (None,), "yes": (known,), "both": (None,) if is_inside else (None, known)}[choice]


def label_of(schedule: ScheduleArgument) -> str:
    """Return the display name of a schedule, which may not have been read or built yet."""
    match schedule:
        case str() | Path():
            return str(schedule)
        case Schedule():
            return schedule.name
        case ScheduleSource():
            return schedule.schedule.name
        case Plan():
            return "a plan"
        case _:
            return "a builder"


def require_taken(entries: Sequence[Entry], num_chunks: object, parameters: Iterable[str]) -> None:
    """Refuse chunks, or names of parameters, that none of several schedules takes.

    Args:
        entries: Entries of the schedules.
        num_chunks: Requested stages per rank, or None.
        parameters: Names of the given parameters.

    Raises:
        ArgumentError: None of the schedules takes them.
    """
    if num_chunks is not None and not any(entry.traits.takes_chunks for entry in entries):
        raise ArgumentError(f"num_chunks: got {num_chunks}, expected a schedule that takes chunks; try interleaved")
    known = {parameter.name for entry in entries for parameter in entry.parameters}
    for name in parameters:
        if name not in known:
            expected = ", ".join(sorted(known)) or "none"
            raise ArgumentError(
                f"parameters: got {name}, expected parameters of the schedules in this call: {expected}"
            )


def build_source(named: NamedSchedule, counts: ScheduleCounts, *, is_held: bool = True) -> ScheduleSource:
    """Return the lists of a schedule that is built from counts.

    Args:
        named: A name of the catalogue, a builder, or the name of one.
        counts: Its counts and parameters.
        is_held: As for `read_schedule_argument`.

    Raises:
        ArgumentError: A count is missing.
        ScheduleError: No such schedule, or counts or parameters that it cannot have.
    """
    entry = entry_of(named)
    require_counted(entry, counts)
    given = values_of(counts, ScheduleCounts)
    parameters = dict(given.pop("parameters") or {})
    if not is_held and not entry.is_own:
        return ScheduleSource(build_generated(entry.name, **given, **parameters))
    return source_of_entry(entry, **given, parameters=parameters)


def require_counted(entry: Entry, counts: ScheduleCounts) -> None:
    """Refuse missing counts of a schedule that is built.

    Raises:
        ArgumentError: The number of ranks or of micro-batches is missing.
    """
    missing = [name for name in ("num_ranks", "num_microbatches") if getattr(counts, name) is None]
    if missing:
        also = "".join(f" and `{name}`" for name in missing[1:])
        raise ArgumentError(
            f"{missing[0]}: got none with schedule {entry.name}, expected a number{also}; try `num_ranks=4` "
            "`num_microbatches=8`"
        )


def source_of_entry(
    entry: Entry, num_ranks: int, num_microbatches: int, num_chunks: int | None, parameters: dict[str, ParameterValue]
) -> ScheduleSource:
    """Return the lists of an entry of the catalogue, or of a user's own builder.

    Raises:
        ScheduleError: The schedule does not take a parameter or these counts.
    """
    longer = partial(_lists_of_entry, entry.searched_name, num_ranks, num_microbatches, num_chunks, parameters)
    lists = longer(1)
    return ScheduleSource(lists, longer if runs_without_flush(lists) else None)


def _lists_of_entry(
    name: str,
    num_ranks: int,
    num_microbatches: int,
    num_chunks: int | None,
    parameters: Mapping[str, ParameterValue],
    times: int,
) -> Schedule:
    return build_entry(find(name), num_ranks, times * num_microbatches, num_chunks, **parameters)


def _planned(plan: Plan) -> ScheduleSource:
    """Return the lists of one step; without a flush, of `_STEPS_PER_RANK` steps per rank."""
    is_asynchronous = find(plan.schedule_spec.name).traits.is_asynchronous if plan.schedule_spec.name else False
    num_steps = _STEPS_PER_RANK * plan.schedule_spec.num_ranks if is_asynchronous else 1
    longer = partial(_lists_of_plan, plan, num_steps)
    return ScheduleSource(longer(1), longer if is_asynchronous else None, plan)


def _lists_of_plan(plan: Plan, num_steps: int, times: int) -> Schedule:
    return plan.run(times * num_steps).lists(times * num_steps).held()


def given_plan(schedule: object) -> Plan | None:
    """Return `schedule` if it is a plan, the plan of its file, or None for anything else.

    Raises:
        ProfileError: The plan is bad, or its parts do not fit together.
        ScheduleError: The schedule of the plan does not exist.
    """
    if not isinstance(schedule, Plan | str | Path) or named_schedule(schedule) is not None:
        return None
    is_plan = isinstance(schedule, Plan) or format_of(schedule) == PLAN_FORMAT
    return read_plan_argument(schedule) if is_plan else None


def read_plan_argument(plan: Plan | str | Path) -> Plan:
    """Return a plan whose parts fit together.

    Raises:
        ProfileError: The parts do not fit together, or the file is no plan.
        ScheduleError: The schedule does not exist.
    """
    loaded = plan if isinstance(plan, Plan) else load_plan(plan)
    loaded.run(1)
    return loaded


def require_as_planned(plan: Plan, *, model: str | None = None, compression: object = None, **others: object) -> None:
    """Refuse arguments that contradict a plan or repeat a choice of the plan.

    Args:
        plan: The plan, which fixes partition, micro-batches, batches and messages.
        model: Name of the model that runs, or None without one.
        compression: Requested compression of messages; None: as planned.
        others: Arguments that the plan decides, by their names; None is an argument that is not given.

    Raises:
        ArgumentError: There is such an argument, or the model is another.
    """
    given = [f"`{name}`" for name, value in others.items() if value is not None]
    if given:
        raise ArgumentError(
            f"plan: got {' and '.join(given)} too, expected only the plan, which has all settings of the run; leave "
            "the others out"
        )
    if compression not in (None, plan.compression):
        raise ArgumentError(
            f"plan: got `compression={compression}` too, expected none: the plan has no compression; leave it out"
        )
    if model is not None and not is_same_model(model, plan.model):
        raise ArgumentError(
            f"model: got {model}, expected {plan.model}, the model of the plan; try this model, or plan again"
        )


def is_same_model(model: str, planned: str) -> bool:
    """Return whether `model` is the planned model; a graph may have moved to another file."""
    if model == planned:
        return True
    if costs_file_of(planned) is not None:
        return costs_file_of(model) == costs_file_of(planned)
    if not is_built_in(planned):
        return False  # names are compared, without an import
    return model == models.resolve_model(planned).name
