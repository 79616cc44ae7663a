"""Settings: the type, meaning, limits and default of a value, each declared once, on a field of a dataclass.

    lr: Annotated[float, Description("Learning rate.", least=0.0, most=1e6)] = 1e-3

The command line makes an option of such a field, and the library checks its value.
"""

from __future__ import annotations

import collections.abc
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache
from numbers import Real
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from pipesched.schedules.common.limits import integer
from pipesched.schedules.common.quoting import said, shown

Counts: TypeAlias = int | Sequence[int]
"""The type of a setting with one integer or several."""

Names: TypeAlias = Sequence[str | Callable[..., Any]]
"""The type of a setting with schedules: names in the catalogue, builders, or names of builders."""


@dataclass(frozen=True, slots=True)
class Description:
    """The annotation of a setting, beside its type.

    Attributes:
        text: A sentence for people. Names of other settings stand between backticks.
        least: Smallest number, or None without a limit.
        most: Largest number, or None without a limit.
        option: Option of the command line, or None for the name of the field, as `option_name` writes it.
        short: Short option of the command line, as ``-p``, or None without one.
        turned_off: Description of the option that turns the setting off, for a flag that is on by default.
        panel: Heading of the option in the help, or None for the heading of its group.
        has_option: Whether the command line has an option for the setting.
        metavar: Placeholder of the value in the help, or None for the placeholder of its type.
        more: A further sentence in the help of the command line, about the command; empty without one.
    """

    text: str
    least: float | None = None
    most: float | None = None
    option: str | None = None
    short: str | None = None
    turned_off: str | None = None
    panel: str | None = None
    has_option: bool = True
    metavar: str | None = None
    more: str = ""


@dataclass(frozen=True, slots=True)
class Declared:
    """A declared setting of a dataclass.

    Attributes:
        name: Name of the field.
        kind: Type of the field.
        default: Default of the field, or `dataclasses.MISSING`.
        description: The annotation of the field.
    """

    name: str
    kind: Any
    default: Any
    description: Description

    @property
    def option(self) -> str:
        """The option of the command line."""
        return self.description.option or option_name(self.name)

    @property
    def is_list(self) -> bool:
        """Whether the setting is `Counts`: one integer or several."""
        return Sequence[int] in _alternatives(self.kind) and int in _alternatives(self.kind)

    @property
    def is_names(self) -> bool:
        """Whether the setting is `Names`: schedules or builders."""
        return Names in _alternatives(self.kind)

    @property
    def is_layers(self) -> bool:
        """Whether the setting is a cut of layers: a word or text, or the number of layers of each stage."""
        return Sequence[int] in _alternatives(self.kind) and str in _alternatives(self.kind)

    @property
    def is_repeatable(self) -> bool:
        """Whether the setting is a list of texts, and its option may be repeated."""
        return bool(self.kind == Sequence[str])

    def plain(self, value: Any) -> Any:
        """Return a valid value with Python's own numbers, `Counts` as a tuple, and layers of stages as ``3,3,4``."""
        if self.is_list and value is not None:
            return tuple_of(value)
        if self.is_layers and not isinstance(value, str | None):
            return ",".join(map(str, tuple_of(value)))
        number = _number(value)
        return value if number is None else number

    def fault(self, value: object) -> str | None:
        """Return the fault of a value, ``got .., expected ..``, or None for a valid value."""
        kinds = _alternatives(self.kind)
        if value is None and NoneType in kinds:
            return None
        words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
        if words:
            is_word = isinstance(value, str) and value in words
            choices = [*words, *([None] if NoneType in kinds else [])]
            return None if is_word else f"got {said(value)}, expected one of {', '.join(map(str, choices))}"
        if bool in kinds:
            return None if isinstance(value, bool) else f"got {said(value)}, expected True or False"
        if self.is_list and isinstance(value, Iterable) and not isinstance(value, str) and integer(value) is None:
            return self._fault_of_list(value)
        if self.is_layers:
            return None if isinstance(value, str) else self._fault_of_layers(value)
        if int in kinds:
            return self._fault_of_integer(value)
        if float in kinds:
            return self._fault_of_number(value)
        if self.is_repeatable:
            return _fault_of_texts(value)
        return self._fault_of_kind(value, kinds)

    @staticmethod
    def _fault_of_kind(value: object, kinds: tuple[Any, ...]) -> str | None:
        origins = [get_origin(kind) for kind in kinds]
        if collections.abc.Mapping in origins:
            return _fault_of_mapping(value)
        if collections.abc.Callable in origins:
            return None if callable(value) else f"got {said(value)}, expected a function"
        types = tuple(map(_plain_type, kinds))
        expected = " or ".join(name for kind in types for name in _names(kind))
        return None if isinstance(value, types) else f"got {said(value)}, expected {expected}"

    def _fault_of_list(self, values: object) -> str | None:
        items = _items(values)
        if items is None:
            return f"got {said(values)}, expected a list"
        if not items:
            return f"got an empty list, expected at least one; try [{self.description.least or 0:g}]"
        return next(filter(None, map(self._fault_of_integer, items)), None)

    def _fault_of_layers(self, values: object) -> str | None:
        items = _items(values)
        if items is None:
            return f"got {said(values)}, expected balanced, uniform or layers per stage; try [3, 3, 4]"
        for num_layers in items:
            number = integer(num_layers)
            if number is None:
                return f"got {said(num_layers)}, expected an integer of at least 1"
            if number < 1:
                return f"got {shown(number)}, expected at least 1"
        return None

    def _fault_of_integer(self, value: object) -> str | None:
        least, most = self.description.least, self.description.most
        number = integer(value)
        if number is None:
            advice = ", in bytes; try 14 * 10**9" if self.name.endswith("_bytes") and isinstance(value, str) else ""
            return f"got {said(value)}, expected an integer{'' if least is None else f' of at least {least}'}{advice}"
        if least is not None and number < least:
            return f"got {shown(number)}, expected at least {least}"
        if most is not None and number > most:
            return f"got {shown(number)}, expected at most {most}"
        return None

    def _fault_of_number(self, value: object) -> str | None:
        least, most = self.description.least, self.description.most
        lowest, highest = -sys.float_info.max if least is None else least, sys.float_info.max if most is None else most
        number = _number(value)
        if number is not None and lowest <= number <= highest:
            return None
        if most is not None and least is not None:
            return f"got {said(value)}, expected a number from {least:g} to {most:g}"
        return f"got {said(value)}, expected a finite number{'' if least is None else f' of at least {least:g}'}"


def _fault_of_texts(value: object) -> str | None:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return f"got {said(value)}, expected a list of texts{f'; try [{value!r}]' if isinstance(value, str) else ''}"
    others = [item for item in value if not isinstance(item, str)]
    return f"got {said(others[0])}, expected a text" if others else None


def _fault_of_mapping(value: object) -> str | None:
    if not isinstance(value, Mapping):
        return f"got {said(value)}, expected names with their values; try {{'pipelines': 2}}"
    others = [name for name in value if not isinstance(name, str)]
    return f"got {said(others[0])}, expected names; try {{'pipelines': 2}}" if others else None


def _items(values: object) -> tuple[object, ...] | None:
    """Return the items of a collection, or None for any other value, such as an array without dimensions."""
    with suppress(TypeError):
        return tuple(values) if isinstance(values, Collection) else None
    return None


def _number(value: object) -> float | None:
    """Return a number of Python, numpy or torch as a Python integer or float, or None for any other value."""
    number = integer(value)
    return float(value) if number is None and isinstance(value, Real) and not isinstance(value, bool) else number


def tuple_of(counts: Counts) -> tuple[int, ...]:
    """Return one integer, or several, as a tuple of Python's integers."""
    number = integer(counts)
    if number is not None:
        return (number,)
    assert not isinstance(counts, int), "it is no integer"
    return tuple(map(int, counts))


def option_name(name: str) -> str:
    """Return the usual option of an argument: ``num_runs`` is ``--runs``, ``timeout_s`` is ``--timeout``."""
    words = name.removeprefix("num_").removeprefix("is_").removeprefix("has_")
    words = words if words.endswith("_per_s") else words.removesuffix("_s")
    return "--" + words.replace("_", "-")


@cache
def declared(record: type) -> Mapping[str, Declared]:
    """Return the declared settings of a dataclass, by name; fields without a `Description` are left out."""
    defaults = {field.name: field.default for field in fields(record)}
    hints = get_type_hints(record, include_extras=True)
    settings = {name: declaration(name, hints[name], default) for name, default in defaults.items()}
    return {name: setting for name, setting in settings.items() if setting is not None}


def declaration(name: str, hint: Any, default: Any) -> Declared | None:
    """Return the setting that an annotated type declares, or None for a type without a `Description`."""
    details = [detail for detail in getattr(hint, "__metadata__", ()) if isinstance(detail, Description)]
    return Declared(name, hint.__origin__, default, details[0]) if details else None


def values_of(record: Any, kind: type | None = None) -> dict[str, Any]:
    """Return the declared settings of a dataclass as keywords; of a base class `kind` alone, if given."""
    return {name: getattr(record, name) for name in declared(record.__class__ if kind is None else kind)}


def faults(record: Any) -> Iterator[str]:
    """Yield a fault, ``name: got .., expected ..``, for each invalid setting of a dataclass."""
    for name, setting in declared(record.__class__).items():
        fault = setting.fault(getattr(record, name))
        if fault is not None:
            yield f"{name}: {fault}"


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _names(kind: type) -> list[str]:
    """Return the members of an enumeration in words, or the name of another type."""
    if issubclass(kind, Enum):
        return [f"{kind.__name__}.{member.name}" for member in kind]
    return ["None" if kind is NoneType else kind.__name__]


def _plain_type(kind: Any) -> type:
    plain: type = get_origin(kind) or kind
    return plain
