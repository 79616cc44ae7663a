"""A user's own builder as an entry of the catalogue: a function of (num_ranks, num_microbatches, ...).

A builder is given as a function or by name: ``package.module:builder`` or ``path.py:builder``. Only a command line or
an argument may name code to import; a name in a file is looked up in the catalogue alone.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final, get_args

from pipesched.profiles.processes import prints_to_stderr, users_folders, users_module
from pipesched.schedules import Schedule, ScheduleError, ScheduleTraits, make_schedule
from pipesched.schedules.builders import Entry, OwnName, Parameter, lookup
from pipesched.schedules.check import require_runnable
from pipesched.schedules.common import MAX_CELLS, MAX_NUMBER, error_text, integer, shown, users_lines
from pipesched.schedules.ops import (
    STAGE_WORDS,
    Compute,
    Message,
    Op,
    Overlap,
    Payload,
    Phase,
    Recv,
    Reduce,
    Send,
    StageOp,
    Summed,
    stages_of_op,
)
from pipesched.schedules.transforms import microbatches_per_step, with_steps
from pipesched.simulator import search
from pipesched.workflows import ArgumentError

if TYPE_CHECKING:
    from pipesched.questions import SearchSettings
    from pipesched.simulator.search import Runner

Builder: TypeAlias = Callable[..., Any]
"""Called with (num_ranks, num_microbatches) and keywords; returns a Schedule, or the ops of each rank."""

_FORM = "package.module:builder or path.py:builder"
_NONE = inspect.Parameter.empty
_UNNAMED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def names_builder(schedule: object) -> bool:
    """Return whether `schedule` is a text that names a builder, and no schedule of the catalogue."""
    return isinstance(schedule, str) and ":" in schedule


def own_entry(builder: Builder | str) -> Entry:
    """Return a user's own builder as an entry; its parameters follow the first two of its signature.

    Args:
        builder: A function, or the name of one.

    Raises:
        ScheduleError: The function does not exist, or does not take (num_ranks, num_microbatches).
    """
    if isinstance(builder, OwnName):
        return builder.entry
    folder = Path.cwd()
    label = builder if isinstance(builder, str) else _label(builder)
    function = _imported(builder, folder) if isinstance(builder, str) else builder
    try:
        first, second, *others = inspect.signature(function).parameters.values()
        counts_are_taken = all(parameter.kind <= parameter.POSITIONAL_OR_KEYWORD for parameter in (first, second))
    except (TypeError, ValueError):
        counts_are_taken = False
    if not counts_are_taken:
        raise ScheduleError(
            f"schedule {label}: got a function with other parameters, expected num_ranks and num_microbatches first; "
            "add them"
        )
    named = {parameter.name: parameter for parameter in others if parameter.kind not in _UNNAMED}
    needed = tuple(name for name, parameter in named.items() if parameter.default is _NONE)
    importable = builder if isinstance(builder, str) else _importable(builder)
    state = _state(function)
    chunks = named.pop("num_chunks", None)
    return Entry(
        label,
        _OwnBuilder(label, importable, folder, state, needed, id(function) if importable is None else 0, function),
        text=(inspect.getdoc(function) or "a builder of your own").splitlines()[0],
        source=f"{label}, SHA-256 {state}",
        traits=ScheduleTraits(takes_chunks=chunks is not None),
        parameters=tuple(_parameter(parameter) for parameter in named.values()),
        chunks=1 if chunks is None else integer(chunks.default) or 1,
        is_own=True,
    )


def searched_entry(entry: Entry, require: Callable[[Schedule], None]) -> Entry:
    """Return `entry`, with `require` applied to the lists of a user's own builder; the catalogue builds valid lists."""
    if not entry.is_own:
        return entry
    assert isinstance(entry.build, _OwnBuilder), "it is a user's own"
    return replace(entry, build=replace(entry.build, require=require))


def require_one_step(lists: Schedule) -> None:
    """Refuse lists that cannot run, or that are not one batch of one pipeline with one Step of every stage at its end.

    Raises:
        ScheduleError: The lists are refused.
    """
    require_runnable(lists)
    traits = lists.traits
    if traits.is_asynchronous or traits.averages or microbatches_per_step(lists) != lists.num_microbatches:
        raise ScheduleError(
            f"schedule {lists.name}: got lists that step before their end, expected one Step of every stage after all "
            "micro-batches; try pipesched.sweep, which takes any lists"
        )


def workers_for(schedules: Sequence[str], num_workers: int | None) -> int | None:
    """Return the processes of a search: one if another process cannot import a function among the `schedules`.

    Raises:
        ArgumentError: There is such a function, and several processes are asked for.
    """
    own_builders = [entry.build for entry in map(lookup, schedules) if entry is not None and entry.is_own]
    hidden = [build for build in own_builders if isinstance(build, _OwnBuilder) and build.importable is None]
    if hidden and num_workers not in (None, 1):
        raise ArgumentError(
            f"num_workers: got {num_workers} with {hidden[0].label}, a function that no other process can import, "
            "expected 1; leave `num_workers` out, or put the function into a module of its own"
        )
    return 1 if hidden else num_workers


def read_workers(settings: SearchSettings, schedules: Sequence[str]) -> tuple[int | None, Runner | None]:
    """Return the number of processes of a search, None for one per core, and its runner on a Ray cluster.

    Raises:
        ArgumentError: The settings contradict each other, or another process cannot import one of the `schedules`.
        ModuleNotFoundError: Ray is not installed.
    """
    if settings.ray is None:
        return workers_for(schedules, settings.num_workers), None
    if settings.num_workers is not None:
        raise ArgumentError(
            "ray: got `num_workers` too, expected only one of them: a cluster has its own workers; leave one out"
        )
    if workers_for(schedules, None) is not None:
        raise ArgumentError(
            "ray: got a schedule by a function that no other process can import, expected an importable function; put "
            "the function into a module of its own"
        )
    return None, search.make_ray_runner(settings.ray)


def _label(builder: Builder) -> str:
    name = getattr(builder, "__qualname__", type(builder).__qualname__)
    return f"{getattr(builder, '__module__', None) or '?'}:{name}"


def _importable(builder: Builder) -> str | None:
    """Return the name by which another process imports a function, or None if none can."""
    label = _label(builder)
    module, _, name = label.rpartition(":")
    is_there = module != "__main__" and getattr(sys.modules.get(module), name, None) is builder
    return label if is_there else None


def _state(builder: Builder) -> str:
    """Return the SHA-256 of the file of a builder, or of its own source where it has none, as in a notebook."""
    try:
        file = Path(inspect.getsourcefile(inspect.unwrap(builder)) or "")
        source = file.read_bytes() if file.is_file() else inspect.getsource(builder).encode()
    except (OSError, TypeError):
        return "unknown"
    from hashlib import sha256

    return sha256(source).hexdigest()


def _imported(name: str, folder: Path) -> Builder:
    """Return the function of this name, looked for in `folder` first."""
    module_name, _, function_name = name.rpartition(":")
    is_file = module_name.endswith(".py")
    parts = [function_name] if is_file else [*module_name.split("."), function_name]
    if not all(part.isidentifier() for part in parts):
        raise ScheduleError(
            f"schedule: got {shown(name)}, expected {_FORM}; try mine.py:builder, and give the rest as `parameters`"
        )
    if is_file and not (folder / module_name).is_file():
        raise ScheduleError(f"schedule {name}: got no file {module_name}, expected {_FORM}; check the path")
    with _users_code(name, Path(os.path.realpath(folder / module_name)).parent if is_file else folder):
        module = users_module(str(folder / module_name) if is_file else module_name)
    function = getattr(module, function_name, None)
    if not callable(function):
        functions = inspect.getmembers(module, inspect.isfunction)
        names = [key for key, value in functions if value.__module__ == module.__name__ and key[0] != "_"]
        near = get_close_matches(function_name, names, n=1)
        expected = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(names) or _FORM};"
        raise ScheduleError(
            f"schedule {name}: got no function {function_name!r} in {module_name}, {expected} check its spelling"
        )
    return function  # type: ignore[no-any-return]  # _read checks the result


@contextlib.contextmanager
def _users_code(label: str, *folders: Path) -> Iterator[None]:
    """Run a user's code: its prints go to stderr, and its exceptions become errors of one line."""
    try:
        with prints_to_stderr(), users_folders(*folders):
            yield
    except ScheduleError as error:
        raise ScheduleError(f"schedule {label}: {error}") from error
    except (Exception, SystemExit) as error:
        message = error_text(error)
        raise ScheduleError(
            f"schedule {label}: got {type(error).__name__}{_place(error)}: {message}, expected a schedule; correct the "
            "function"
        ) from error


def _place(error: BaseException) -> str:
    """Return the line of the user's code that raised, if it is known."""
    return next((f" in line {line} of {file}" for file, line, _ in users_lines(error)[::-1]), "")


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


@final
@dataclass(frozen=True, slots=True)
class _OwnBuilder:
    """Calls a builder and makes a Schedule of the result; another process imports the builder again by its name.

    Attributes:
        label: Name of the builder, and of its schedules.
        importable: The name by which another process imports it, or None if none can.
        folder: Folder that imports search first.
        state: SHA-256 of the source, from `_state`.
        needed: Parameters without a default.
        identity: Distinguishes functions that cannot be imported; 0 for others.
        function: The builder; None in another process.
        require: Refuses lists that a search cannot use; None: all lists are accepted.
    """

    label: str
    importable: str | None
    folder: Path
    state: str
    needed: tuple[str, ...]
    identity: int
    function: Builder | None = field(compare=False, repr=False)
    require: Callable[[Schedule], None] | None = None

    def __reduce__(self) -> tuple[type[_OwnBuilder], tuple[object, ...]]:
        if self.importable is None:
            raise ScheduleError(
                f"schedule {self.label}: got a function that no other process can import, expected a function of a "
                "module; try `num_workers=1`, or put the function into a module of its own"
            )
        named = (self.label, self.importable, self.folder, self.state, self.needed, self.identity)
        return _OwnBuilder, (*named, None, self.require)

    def __call__(self, num_ranks: int, num_microbatches: int, **keywords: Any) -> Schedule:
        """Return the schedule of `num_ranks` ranks and `num_microbatches` micro-batches, under the label.

        Raises:
            ScheduleError: The builder lacks a parameter, raises, or returns something else.
        """
        label = self.label
        missing = [name for name in self.needed if name not in keywords]
        if missing:
            where = "`num_chunks`" if missing == ["num_chunks"] else "it in `parameters`, or a default"
            raise ScheduleError(f"schedule {label}: got no {', '.join(missing)}, expected a value; give {where}")
        function = self.function or _imported_again(self)
        with _users_code(label):
            made = function(num_ranks, num_microbatches, **keywords)
            rows = builder_rows(made, num_ranks)
        schedule = builder_schedule(label, made, rows, num_ranks, num_microbatches)
        if self.require is not None:
            self.require(schedule)
        return schedule


@lru_cache(maxsize=64)
def _imported_again(builder: _OwnBuilder) -> Builder:
    """Return the function of a builder that comes from another process.

    Raises:
        ScheduleError: The function is missing, or has changed.
    """
    assert builder.importable is not None, "it could be sent"
    function = _imported(builder.importable, builder.folder)
    if _state(function) != builder.state:
        raise ScheduleError(
            f"schedule {builder.label}: got a source that has changed since the search began, expected the same "
            "source; search again"
        )
    return function


def builder_rows(made: Any, num_ranks: int) -> list[list[Op]]:
    """Return the ops of each rank: at most `num_ranks` + 1 ranks, and at most `MAX_CELLS` ops of each.

    Args:
        made: The result of the builder: None, a Schedule, or an iterable of iterables, in which code of the user runs.
        num_ranks: Requested ranks.
    """
    rows = () if made is None else made.lists if isinstance(made, Schedule) else made
    return [list(islice(iter(row), MAX_CELLS)) for row in islice(iter(rows), num_ranks + 1)]


def builder_schedule(label: str, made: Any, rows: list[list[Op]], num_ranks: int, num_microbatches: int) -> Schedule:
    """Return the rows of a builder's result as a Schedule with the name `label`.

    Raises:
        ScheduleError: The result is no schedule of `num_ranks` ranks and `num_microbatches` micro-batches.
    """
    problem = _problem(made, rows, num_ranks, num_microbatches)
    if problem is not None:
        raise ScheduleError(f"schedule {label}: {problem}")
    if isinstance(made, Schedule):
        schedule = replace(made, name=label, lists=tuple(map(tuple, rows)), origin=None, layout=None)
    else:
        num_stages = 1 + max((stage for ops in rows for op in ops for stage in stages_of_op(op)), default=-1)
        schedule = make_schedule(label, num_stages, num_microbatches, rows)
    if schedule.num_stages * num_microbatches > MAX_CELLS:
        raise ScheduleError(
            f"schedule {label}: got {schedule.num_stages} stages x {num_microbatches} micro-batches, expected a "
            f"product of at most {MAX_CELLS}; number the stages from 0 without gaps"
        )
    return with_steps(schedule)


def _problem(made: Any, lists: list[list[Op]], num_ranks: int, num_microbatches: int) -> str | None:
    """Return why `made` is no schedule of these ranks and micro-batches, with rank and op, or None if it is one."""
    if made is None or isinstance(made, str):
        return f"got {shown(made)}, expected a Schedule, or a list of ops for each rank; change the return value"
    if isinstance(made, Schedule) and made.num_microbatches != num_microbatches:
        got = shown(made.num_microbatches)
        return f"got a Schedule of {got} micro-batches, expected {num_microbatches}; build all num_microbatches"
    if isinstance(made, Schedule) and not _are_numbers(made.num_stages, made.width, *made.rank_to_device):
        return (
            "got a Schedule whose num_stages or rank_to_device are not numbers, expected the result of make_schedule; "
            "call make_schedule"
        )
    if len(lists) != num_ranks:
        count = "more" if len(lists) > num_ranks else len(lists)
        return f"got lists of {count} ranks, expected {num_ranks}; return one list per rank"
    for rank, ops in enumerate(lists):
        for index, op in enumerate(ops):
            if not _is_op(op):
                got = f"rank {rank}, op {index}: got {_shown(op)}"
                return f"{got}, expected an op of whole numbers; try pipesched.schedules.ops.forward(0, 0)"
    return None


def _shown(op: object) -> str:
    """Return a value in the place of an op as text; an op with bad parts shows its parts."""
    if not isinstance(op, get_args(Op)):
        return shown(op)
    parts = (getattr(op, part.name) for part in fields(op))
    return f"{type(op).__name__}({', '.join(str(part) if isinstance(part, Phase) else shown(part) for part in parts)})"


def _is_op(op: object) -> bool:
    """Return whether `op` is an op whose numbers are integers."""
    match op:
        case Compute():
            is_kind = isinstance(op.phase, Phase) and op.is_late in (False, op.phase is Phase.RECOMPUTE)
            return is_kind and _are_numbers(op.stage, op.microbatch, op.version, op.lookahead)
        case Overlap():
            return all(isinstance(part, Compute) and _is_op(part) for part in (op.first, op.second))
        case Send() | Recv():
            message = op.message
            is_message = isinstance(message, Message) and isinstance(message.payload, Payload)
            return is_message and _are_numbers(message.stage, message.microbatch, op.peer)
        case Reduce():
            return isinstance(op.content, Summed) and _are_numbers(op.stage)
        case StageOp() if isinstance(op, STAGE_WORDS):
            return _are_numbers(op.stage)
    return False


def _are_numbers(*values: object) -> bool:
    numbers = map(integer, values)
    return all(number is not None and 0 <= number <= MAX_NUMBER for number in numbers)
