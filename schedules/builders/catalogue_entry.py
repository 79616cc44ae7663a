"""An entry of the catalogue: a schedule, its properties, and the parameters that it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import prod
from numbers import Real
from typing import Literal, TypeAlias, final

from pipesched.schedules import Schedule, ScheduleError, ScheduleTraits
from pipesched.schedules.common import integer, shown

ParameterValue: TypeAlias = int | float | tuple[int, ...] | None
"""The value of a parameter; None if the builder derives it from the counts."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One ``key=value`` that a builder takes beyond ranks, micro-batches and chunks.

    Attributes:
        default: Default value; None if the builder derives it from the counts, as `text` explains.
        text: Meaning of the parameter, in a few words.
        type: Kind of values of a parameter with default None: a whole number, any number, or whole numbers
            (``2:1:1``).
        counts_run: Whether the value counts micro-batches of the whole run, and is at most their number.
        multiplies_chunks: Whether the value multiplies the stages of a rank.
    """

    name: str
    default: int | float | None
    text: str
    type: Literal["integer", "number", "integers"] = "number"
    counts_run: bool = False
    multiplies_chunks: bool = False

    @property
    def takes(self) -> Literal["integer", "number", "integers"]:
        """Kind of the parameter's values, by the type of the default if there is one."""
        return "integer" if isinstance(self.default, int) else self.type

    def read(self, value: object) -> ParameterValue:
        """Return `value` as a builder takes it.

        Raises:
            ScheduleError: The value has another type.
        """
        if value is None and self.default is None:
            return None
        reader, expected = _READERS[self.takes]
        parsed = reader(value)
        if parsed is None:
            raise ScheduleError(f"{self.name}: got {shown(value)}, expected {expected}")
        return parsed


def _number(value: object) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _integers(value: object) -> tuple[int, ...] | None:
    numbers = (
        [integer(item) for item in value] if isinstance(value, Iterable) and not isinstance(value, str) else [None]
    )
    known = tuple(number for number in numbers if number is not None)
    return known if len(known) == len(numbers) else None


_READERS: Mapping[str, tuple[Callable[[object], ParameterValue], str]] = {
    "integer": (integer, "an integer; try 1"),
    "number": (_number, "a number; try 1.0"),
    "integers": (_integers, "integers; try (2, 1, 1)"),
}


class InFlightRule(StrEnum):
    """The most micro-batches in flight (between F and B or I) on rank k of p ranks, with one stage per rank.

    ALL    all of a batch: its last F comes before its first B
    DEPTH  p - k, or all if the batch has fewer: F of i + p - k comes after B or I of i
    """

    ALL = "all"
    DEPTH = "depth"

    def most(self, num_ranks: int, rank: int, num_microbatches: int) -> int:
        """Return the micro-batches in flight on `rank` of `num_ranks`."""
        return num_microbatches if self is InFlightRule.ALL else min(num_microbatches, num_ranks - rank)


@dataclass(frozen=True, slots=True)
class SpecialCase:
    """A more general schedule, whose lists are equal if some of its parameters have fixed values.

    Attributes:
        name: Name of the general schedule in the catalogue.
        settings: The fixed values, by parameter; the special schedule has the other parameters.
    """

    name: str
    settings: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the catalogue: one schedule, its builder and its properties.

    Attributes:
        build: Called with (num_ranks, num_microbatches), and with keywords num_chunks and `parameters`.
        text: Description of the schedule, in one line.
        source: Paper and section.
        traits: Traits of each schedule of this entry.
        aliases: Other names of the schedule, in papers, PyTorch and Megatron-LM.
        chunks: Number of stages of a rank; the default, if the schedule takes other numbers.
        replicas: Ranks that hold the same stage, for schedules with replicas.
        build_generated: Builds generated lists of a run of any length, or None if a run repeats its batch.
        in_flight: Rule of micro-batches in flight on a rank, or None if unknown.
        case_of: The general schedule of which this one is a special case, or None.
        is_own: Whether the entry is of a user's builder, outside the catalogue; its schedules have their own traits.
    """

    name: str
    build: Callable[..., Schedule]
    text: str
    source: str
    traits: ScheduleTraits = field(default_factory=ScheduleTraits)
    parameters: tuple[Parameter, ...] = ()
    aliases: tuple[str, ...] = ()
    chunks: int = 1
    replicas: int = 1
    build_generated: Callable[..., Schedule] | None = None
    in_flight: InFlightRule | None = None
    case_of: SpecialCase | None = None
    is_own: bool = False

    @property
    def searched_name(self) -> str:
        """The name by which `find` returns this entry; for a user's builder an `OwnName`."""
        return OwnName(self) if self.is_own else self.name

    def takes(self, parameter: str) -> bool:
        """Whether a parameter of this name can be set."""
        return any(known.name == parameter for known in self.parameters)

    def stamped(self, schedule: Schedule, keywords: Mapping[str, ParameterValue]) -> Schedule:
        """Return `schedule` with this entry as its origin, and with the parameters among the builder's `keywords`."""
        if self.is_own:
            return schedule
        given = ((name, value) for name, value in keywords.items() if value is not None and self.takes(name))
        return schedule.made_from(self.name, self.traits, tuple(given))

    def chunks_with(self, num_chunks: int | None, settings: Mapping[str, ParameterValue]) -> int:
        """Return the number of stages of a rank with these settings: `num_chunks`, if the schedule takes chunks."""
        if self.traits.takes_chunks and num_chunks is not None:
            return num_chunks
        factors = (
            settings.get(parameter.name, parameter.default)
            for parameter in self.parameters
            if parameter.multiplies_chunks
        )
        return self.chunks * prod(factor for factor in factors if isinstance(factor, int))


@final
class OwnName(str):
    """The name of a user's builder, with its entry: a look-up in the catalogue returns this entry.

    Only code with access to the builder makes such a name. A plain text with the same letters, as in a file, has no
    entry.

    Attributes:
        entry: Entry of the builder.
    """

    __slots__ = ("entry",)

    entry: Entry

    def __new__(cls, entry: Entry) -> OwnName:
        """Return the name of `entry`."""
        made = super().__new__(cls, entry.name)
        made.entry = entry
        return made

    def __eq__(self, other: object) -> bool:
        """Return whether the names are equal, and the builders too if both are known."""
        return super().__eq__(other) and (not isinstance(other, OwnName) or self.entry == other.entry)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def __getnewargs__(self) -> tuple[Entry]:  # type: ignore[override]  # str's own is of the text
        return (self.entry,)

    def __deepcopy__(self, memo: object) -> str:
        """Return the text alone, for rows and files (`dataclasses.asdict`)."""
        return str(self)
