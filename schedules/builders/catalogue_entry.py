"""What the catalogue knows of a schedule, and of the parameters that it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from numbers import Real
from typing import Literal, TypeAlias

from pipesched.schedules import Schedule, ScheduleError, ScheduleTraits, integer, shown

ParameterValue: TypeAlias = int | float | tuple[int, ...] | None
"""What a parameter can be set to; None: what the builder finds from the counts."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One ``key=value`` that a builder takes beyond ranks, micro-batches and chunks.

    Attributes:
        default: None where the builder finds it from the counts, as `text` says.
        text: What it does, in a few words.
        type: Of a None default, what is taken: a whole number, any number, or whole numbers (``2:1:1``).
        counts_run: Whether it counts micro-batches of the whole run, so that there can be no more of them.
        multiplies_chunks: Whether a rank holds so many times as many stages.
    """

    name: str
    default: int | float | None
    text: str
    type: Literal["integer", "number", "integers"] = "number"
    counts_run: bool = False
    multiplies_chunks: bool = False

    @property
    def takes(self) -> Literal["integer", "number", "integers"]:
        """What is taken: of the default's type, if there is one."""
        return "integer" if isinstance(self.default, int) else self.type

    def read(self, value: object) -> ParameterValue:
        """Return `value` as a builder takes it.

        Raises:
            ScheduleError: It is of another type.
        """
        if value is None and self.default is None:
            return None
        reader, expected = _READERS[self.takes]
        found = reader(value)
        if found is None:
            raise ScheduleError(f"{self.name}: got {shown(value)}, expected {expected}")
        return found


def _number(value: object) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _integers(value: object) -> tuple[int, ...] | None:
    found = [integer(each) for each in value] if isinstance(value, Iterable) and not isinstance(value, str) else [None]
    known = tuple(number for number in found if number is not None)
    return known if len(known) == len(found) else None


_READERS: Mapping[str, tuple[Callable[[object], ParameterValue], str]] = {
    "integer": (integer, "an integer; try 1"),
    "number": (_number, "a number; try 1.0"),
    "integers": (_integers, "integers; try (2, 1, 1)"),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One schedule of the catalogue.

    Attributes:
        build: Called with (num_ranks, num_microbatches), and with keywords num_chunks and `parameters`.
        text: What it is, in a line.
        source: Paper and section.
        traits: What it is by nature; they travel with each schedule that is made from it.
        aliases: Other names of it, as papers, PyTorch and Megatron-LM write them.
        chunks: Stages that a rank holds; unless others are asked for, where it takes them.
        replicas: Ranks that hold the same stage, where that is in the schedule's nature.
        lazy: Builds the same without holding its lists, for a run of any length; None where a run repeats a batch.
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
    lazy: Callable[..., Schedule] | None = None

    def stamped(self, schedule: Schedule) -> Schedule:
        """Return `schedule`, which was made from this entry, knowing so."""
        return replace(schedule, origin=self.name, traits=self.traits)

    def chunks_with(self, num_chunks: int | None, settings: Mapping[str, ParameterValue]) -> int:
        """Return how many stages a rank holds with these settings, `num_chunks` if that can be chosen."""
        if self.traits.takes_chunks and num_chunks is not None:
            return num_chunks
        factors = (settings.get(each.name, each.default) for each in self.parameters if each.multiplies_chunks)
        return self.chunks * prod(factor for factor in factors if isinstance(factor, int))
