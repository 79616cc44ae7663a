"""A builder of the user's own as an entry of the catalogue is: a function of (num_ranks, num_microbatches, ...).

It is given as a function, or by name: ``package.module:builder`` or ``path.py:builder``. What is imported is for people
to say, on a command line or as an argument: a name in a file is looked up in the catalogue, and nowhere else.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from itertools import islice
from pathlib import Path
from traceback import extract_tb
from typing import Any, Literal, TypeAlias, get_args

import pipesched
from pipesched.profiles.processes import prints_to_stderr, users_folders, users_module
from pipesched.schedules import (
    MAX_CELLS,
    MAX_NUMBER,
    Average,
    Compute,
    Message,
    Op,
    Overlap,
    Payload,
    Phase,
    Recv,
    Reduce,
    Reshard,
    Schedule,
    ScheduleError,
    ScheduleTraits,
    Send,
    Step,
    Unshard,
    integer,
    make_schedule,
    shown,
    stages_of_op,
)
from pipesched.schedules.builders import Entry, Parameter
from pipesched.schedules.transforms import with_steps
from pipesched.workflows import ArgumentError

Builder: TypeAlias = Callable[..., Any]
"""Called with (num_ranks, num_microbatches) and keywords; returns a Schedule, or the ops of each rank."""

_FORM = "package.module:builder or path.py:builder"
_NONE = inspect.Parameter.empty
_UNNAMED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_NOT_THE_USERS = ("<frozen", str(Path(pipesched.__file__).parent), str(Path(contextlib.__file__).parent))
"""How the names of files begin in which no code of a user stands."""


def names_builder(schedule: object) -> bool:
    """Return whether `schedule` is a text that names a builder, and no schedule of the catalogue."""
    return isinstance(schedule, str) and ":" in schedule


def require_none_own(schedules: Iterable[object]) -> None:
    """Refuse builders of a user's own where schedules are searched whose bounds must be known.

    Raises:
        ArgumentError: There is one.
    """
    for schedule in schedules:
        if names_builder(schedule):
            raise ArgumentError(
                f"schedules: got {schedule}, a builder of your own, expected schedules of the catalogue, of which a "
                "search knows bounds; try pipesched.sweep, which takes any"
            )


def own_entry(builder: Builder | str) -> Entry:
    """Return a builder of the user's own as an entry; parameters are those behind the first two of its signature.

    Args:
        builder: A function, or the name of one.

    Raises:
        ScheduleError: There is no such function, or it takes no (num_ranks, num_microbatches).
    """
    label = builder if isinstance(builder, str) else _label(builder)
    function = _imported(builder) if isinstance(builder, str) else builder
    try:
        first, second, *others = inspect.signature(function).parameters.values()
        counts_are_taken = all(parameter.kind <= parameter.POSITIONAL_OR_KEYWORD for parameter in (first, second))
    except (TypeError, ValueError):
        counts_are_taken = False
    if not counts_are_taken:
        raise ScheduleError(
            f"schedule {label}: got a function of something else, expected one of (num_ranks, num_microbatches, ...); "
            "add them"
        )
    named = {parameter.name: parameter for parameter in others if parameter.kind not in _UNNAMED}
    needed = [name for name, parameter in named.items() if parameter.default is _NONE]
    chunks = named.pop("num_chunks", None)
    return Entry(
        label,
        partial(_built, label, function, needed),
        text=(inspect.getdoc(function) or "a builder of your own").splitlines()[0],
        source=label,
        traits=ScheduleTraits(takes_chunks=chunks is not None),
        parameters=tuple(_parameter(parameter) for parameter in named.values()),
        chunks=1 if chunks is None else integer(chunks.default) or 1,
        is_own=True,
    )


def _label(builder: Builder) -> str:
    name = getattr(builder, "__qualname__", type(builder).__qualname__)
    return f"{getattr(builder, '__module__', None) or '?'}:{name}"


def _imported(name: str) -> Builder:
    module_name, _, function_name = name.rpartition(":")
    is_file = module_name.endswith(".py")
    parts = [function_name] if is_file else [*module_name.split("."), function_name]
    if not all(part.isidentifier() for part in parts):
        raise ScheduleError(
            f"schedule: got {shown(name)}, expected {_FORM}; try mine.py:builder, and give the rest as `parameters`"
        )
    if is_file and not Path(module_name).is_file():
        raise ScheduleError(f"schedule {name}: got no file {module_name}, expected {_FORM}; check the path")
    with _users_code(name, *([Path(module_name).resolve().parent] if is_file else [])):
        module = users_module(module_name)
    function = getattr(module, function_name, None)
    if not callable(function):
        names = [key for key, value in vars(module).items() if inspect.isfunction(value) and key[0] != "_"]
        near = get_close_matches(function_name, names, n=1)
        expected = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(names) or _FORM};"
        raise ScheduleError(
            f"schedule {name}: got no function {function_name!r} in {module_name}, {expected} check its spelling"
        )
    return function  # type: ignore[no-any-return]  # what it returns is checked by _read


@contextlib.contextmanager
def _users_code(label: str, *folders: Path) -> Iterator[None]:
    """Run what a user wrote: what it prints goes to stderr, and what it raises is told in one line."""
    try:
        with prints_to_stderr(), users_folders(*folders):
            yield
    except ScheduleError as error:
        raise ScheduleError(f"schedule {label}: {error}") from error
    except (Exception, SystemExit) as error:
        message = " ".join(str(error).split())[:200]
        raise ScheduleError(
            f"schedule {label}: got {type(error).__name__}{_place(error)}: {message}, expected a schedule; mend it"
        ) from error


def _place(error: BaseException) -> str:
    """Return the line of the user's code that raised, if it is known."""
    frames = [frame for frame in extract_tb(error.__traceback__) if not frame.filename.startswith(_NOT_THE_USERS)]
    return f" in line {frames[-1].lineno} of {Path(frames[-1].filename).name}" if frames else ""


def _parameter(parameter: inspect.Parameter) -> Parameter:
    default = parameter.default if isinstance(parameter.default, int | float) else None
    annotation = parameter.annotation
    text = getattr(annotation, "__name__", "") + str(annotation) if annotation is not _NONE else ""
    kind: Literal["integer", "number", "integers"] = "number"
    if isinstance(parameter.default, tuple | list) or any(word in text for word in ("tuple", "Sequence", "list")):
        kind = "integers"
    elif "int" in text:
        kind = "integer"
    return Parameter(parameter.name, default, "of a builder of your own", kind)


def _built(
    label: str, builder: Builder, needed: list[str], num_ranks: int, num_microbatches: int, **keywords: Any
) -> Schedule:
    """Call the builder, and return what it says as a Schedule that is called `label`.

    Raises:
        ScheduleError: It lacks a parameter, raises, or returns something else.
    """
    missing = [name for name in needed if name not in keywords]
    if missing:
        where = "`num_chunks`" if missing == ["num_chunks"] else "it in `parameters`"
        raise ScheduleError(f"schedule {label}: got no {', '.join(missing)}, expected a value; give {where}")
    with _users_code(label):
        made = builder(num_ranks, num_microbatches, **keywords)
        lists = [] if made is None else _lists(made, num_ranks)
    problem = _problem(made, lists, num_ranks, num_microbatches)
    if problem is not None:
        raise ScheduleError(f"schedule {label}: {problem}")
    if isinstance(made, Schedule):
        schedule = replace(made, name=label, lists=tuple(map(tuple, lists)), origin=None, layout=None)
    else:
        num_stages = 1 + max((stage for ops in lists for op in ops for stage in stages_of_op(op)), default=-1)
        schedule = make_schedule(label, num_stages, num_microbatches, lists)
    if schedule.num_stages * num_microbatches > MAX_CELLS:
        raise ScheduleError(
            f"schedule {label}: got {schedule.num_stages} stages of {num_microbatches} micro-batches, expected at most "
            f"{MAX_CELLS} in all; number the stages from 0 without gaps"
        )
    return with_steps(schedule)


def _lists(made: Any, num_ranks: int) -> list[list[Op]]:
    """Return the ops of each rank, of one rank too many at most, and no more of them than can be held."""
    rows = made.lists if isinstance(made, Schedule) else made
    return [list(islice(iter(row), MAX_CELLS)) for row in islice(iter(rows), num_ranks + 1)]


def _problem(made: Any, lists: list[list[Op]], num_ranks: int, num_microbatches: int) -> str | None:
    """Return why `made` is no schedule of so many ranks and micro-batches, with rank and op; None where it is one."""
    if made is None or isinstance(made, str):
        return f"got {shown(made)}, expected a Schedule, or a list of ops for each rank; return it"
    if isinstance(made, Schedule) and made.num_microbatches != num_microbatches:
        return (
            f"got a Schedule of {shown(made.num_microbatches)} micro-batches, expected {num_microbatches}; make so many"
        )
    if isinstance(made, Schedule) and not _are_numbers(made.num_stages, made.width, *made.rank_to_device):
        return (
            "got a Schedule whose num_stages or rank_to_device are no numbers, expected one of make_schedule; call it"
        )
    if len(lists) != num_ranks:
        count = "more" if len(lists) > num_ranks else len(lists)
        return f"got lists of {count} ranks, expected {num_ranks}; make one for each of num_ranks"
    for rank, ops in enumerate(lists):
        for index, op in enumerate(ops):
            if not _is_op(op):
                got = f"rank {rank}, op {index}: got {_shown(op)}"
                return f"{got}, expected an op of whole numbers; try pipesched.schedules.forward(0, 0)"
    return None


def _shown(op: object) -> str:
    """Return what stands where an op should, with the parts of what is nearly one."""
    if not isinstance(op, get_args(Op)):
        return shown(op)
    parts = (getattr(op, name) for name in type(op).__slots__)
    return f"{type(op).__name__}({', '.join(str(part) if isinstance(part, Phase) else shown(part) for part in parts)})"


def _is_op(op: object) -> bool:
    """Return whether `op` is a word of ours whose numbers are numbers."""
    match op:
        case Compute():
            return isinstance(op.phase, Phase) and _are_numbers(op.stage, op.microbatch, op.version, op.lookahead)
        case Overlap():
            return all(isinstance(part, Compute) and _is_op(part) for part in (op.first, op.second))
        case Send() | Recv():
            message = op.message
            is_message = isinstance(message, Message) and isinstance(message.payload, Payload)
            return is_message and _are_numbers(message.stage, message.microbatch, op.peer)
        case Reduce() | Step() | Average() | Unshard() | Reshard():
            return _are_numbers(op.stage)
    return False


def _are_numbers(*values: object) -> bool:
    numbers = map(integer, values)
    return all(number is not None and 0 <= number <= MAX_NUMBER for number in numbers)
