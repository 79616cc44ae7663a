"""The catalogue finds a schedule by its name and builds it, up to a limit on its size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from pipesched.schedules import Schedule, ScheduleError, repeat
from pipesched.schedules.builders.catalogue_entries import ENTRIES
from pipesched.schedules.builders.catalogue_entry import Entry, OwnName, ParameterValue
from pipesched.schedules.common import integer, positive, require_cells, shown

_MAX_GENERATED_STAGES = 100_000
"""Most stages of a run with generated lists, which has an object for each rank."""
_MAX_GENERATED_MICROBATCHES = 10**15
"""Most micro-batches of a run with generated lists; no run gets as far."""

_LONGEST = 100
"""Number of characters of a name that are compared with the known names."""

_BETWEEN_WORDS = dict.fromkeys(map(ord, "-_ "))


def _plain(name: str) -> str:
    """Return a name in small letters, without marks between words: ``1F1B-interleaved`` becomes ``1f1binterleaved``."""
    return name.lower().translate(_BETWEEN_WORDS)


CATALOGUE: Mapping[str, Entry] = {entry.name: entry for entry in ENTRIES}

_BY_ANY_NAME: Mapping[str, Entry] = {_plain(name): entry for entry in ENTRIES for name in (entry.name, *entry.aliases)}


def build(
    name: str, num_ranks: int, num_microbatches: int, num_chunks: int | None = None, **parameters: ParameterValue
) -> Schedule:
    """Build the schedule `name`.

    Raises:
        ScheduleError: The schedule or a parameter is unknown, or a count is invalid for it.
    """
    return build_entry(find(name), num_ranks, num_microbatches, num_chunks, **parameters)


def build_entry(
    entry: Entry,
    num_ranks: int,
    num_microbatches: int,
    num_chunks: int | None = None,
    /,
    **parameters: ParameterValue,
) -> Schedule:
    """Build the schedule of an entry.

    Raises:
        ScheduleError: A parameter is unknown, or a count is invalid for the schedule.
    """
    p, m, keywords = _arguments(entry, num_ranks, num_microbatches, num_chunks, parameters)
    num_stages = _num_stages(entry, p, keywords)
    require_cells(f"schedule {entry.name}", p, num_stages, m, are_columns=entry.build_generated is None)
    return entry.stamped(entry.build(p, m, **keywords), keywords)


def build_generated(
    name: str, num_ranks: int, num_microbatches: int, num_chunks: int | None = None, **parameters: ParameterValue
) -> Schedule:
    """Build the schedule `name` with generated lists; a synchronous one has the lists of one batch.

    Raises:
        ScheduleError: The schedule or a parameter is unknown, or a count is invalid for it.
    """
    entry = find(name)
    if entry.build_generated is None:
        return repeat(build(name, num_ranks, num_microbatches, num_chunks, **parameters), 1)
    p, m, keywords = _arguments(entry, num_ranks, num_microbatches, num_chunks, parameters)
    num_stages = _num_stages(entry, p, keywords)
    if num_stages > _MAX_GENERATED_STAGES:
        raise ScheduleError(
            f"schedule {entry.name}: got {shown(num_stages)} stages, expected at most {_MAX_GENERATED_STAGES}; "
            "try fewer ranks"
        )
    if m > _MAX_GENERATED_MICROBATCHES:
        most = _MAX_GENERATED_MICROBATCHES
        raise ScheduleError(f"schedule {entry.name}: got {shown(m)} micro-batches, expected at most {most}; try {most}")
    return entry.stamped(entry.build_generated(p, m, **keywords), keywords)


def _num_stages(entry: Entry, num_ranks: int, keywords: Mapping[str, ParameterValue]) -> int:
    num_chunks = keywords.get("num_chunks")
    assert num_chunks is None or isinstance(num_chunks, int), "as its type says"
    return num_ranks * entry.chunks_with(num_chunks, keywords) // entry.replicas


def _arguments(
    entry: Entry, num_ranks: object, num_microbatches: object, num_chunks: object, parameters: Mapping[str, object]
) -> tuple[int, int, dict[str, ParameterValue]]:
    """Return ranks, micro-batches and keywords as the builder of `entry` takes them.

    Raises:
        ScheduleError: A value has another type, a count is below 1, or the schedule has no such parameter or chunks.
    """
    given = {"num_ranks": num_ranks, "num_microbatches": num_microbatches}
    given |= {} if num_chunks is None else {"num_chunks": num_chunks}
    counts: dict[str, Any] = {
        key: value if (number := integer(value)) is None else number for key, value in given.items()
    }
    positive(**counts)
    keywords = _settings(entry, parameters)
    if num_chunks is not None:
        _require_chunks(entry, counts["num_chunks"], keywords)
        keywords |= {"num_chunks": counts["num_chunks"]} if entry.traits.takes_chunks else {}
    return counts["num_ranks"], counts["num_microbatches"], keywords


def _settings(entry: Entry, parameters: Mapping[str, object]) -> dict[str, ParameterValue]:
    if not parameters:
        return {}
    require_known(entry, parameters)
    known = {parameter.name: parameter for parameter in entry.parameters}
    try:
        settings = {key: known[key].read(value) for key, value in parameters.items()}
    except ScheduleError as error:
        raise ScheduleError(f"schedule {entry.name}: {error}") from None
    return {key: value for key, value in settings.items() if value != known[key].default}


def require_known(entry: Entry, parameters: Iterable[str]) -> None:
    """Refuse names that are not parameters of the schedule.

    Raises:
        ScheduleError: A name is not a parameter.
    """
    known = [parameter.name for parameter in entry.parameters]
    unknown = [key for key in parameters if key not in known]
    if unknown:
        expected = f"expected {', '.join(known)}" if known else "it takes none"
        raise ScheduleError(f"schedule {entry.name}: got unknown parameter {', '.join(unknown)}, {expected}")


def _require_chunks(entry: Entry, num_chunks: int, settings: Mapping[str, ParameterValue]) -> None:
    """Refuse a wrong number of stages per rank, if the number is fixed."""
    expected = entry.chunks_with(num_chunks, settings)
    if num_chunks == expected:
        return
    factors = [f"{parameter.name}={settings.get(parameter.name, parameter.default)}" for parameter in entry.parameters
               if parameter.multiplies_chunks]  # fmt: skip
    where = f" with {', '.join(factors)}" if factors else ""
    takers = ", ".join(other.name for other in ENTRIES if other.traits.takes_chunks)
    raise ScheduleError(
        f"schedule {entry.name}: got {num_chunks} chunks, expected {expected}{where}: its stages per rank are fixed; "
        f"leave out `num_chunks`, or try {takers}"
    )


def lookup(name: str) -> Entry | None:
    """Return the entry with this name or alias, or None; capitals and marks between words do not matter."""
    if isinstance(name, OwnName):
        return name.entry
    return CATALOGUE.get(name) or _BY_ANY_NAME.get(_plain(name))


def simplest_case(name: str, settings: Mapping[str, int]) -> tuple[Entry, dict[str, int]]:
    """Return the entry with the fewest parameters whose lists equal the lists of `name` with these settings.

    Returns:
        The entry, and the settings that it takes.

    Raises:
        ScheduleError: The schedule is unknown.
    """
    cases = [
        (entry, entry.case_of.settings)
        for entry in ENTRIES
        if entry.case_of and entry.case_of.name == name and entry.case_of.settings.items() <= settings.items()
    ]
    entry, fixed = max(cases, key=lambda case: len(case[1]), default=(find(name), {}))
    return entry, {key: value for key, value in settings.items() if key not in fixed}


def find(name: str) -> Entry:
    """Return the entry with this name or alias, as `lookup` does.

    Raises:
        ScheduleError: No entry has the name; the message has the nearest name, or all names.
    """
    entry = lookup(name) if isinstance(name, str) else None
    if entry is None:
        own = ", a builder of your own," if isinstance(name, str) and ":" in name else ","
        near = get_close_matches(_plain(name[:_LONGEST]), _BY_ANY_NAME, n=1) if isinstance(name, str) else []
        expected = f"did you mean {_BY_ANY_NAME[near[0]].name}?" if near else f"expected one of {', '.join(CATALOGUE)};"
        if isinstance(name, str) and name.endswith(".py"):
            expected = f"expected a builder in it; try {name}:builder;"
        raise ScheduleError(f"schedule: got {shown(name)}{own} {expected} see pipesched.CATALOGUE")
    return entry
