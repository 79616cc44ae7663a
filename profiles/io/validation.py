"""Validation of JSON files: strict records, pydantic's faults in one line, and the records that several files share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from pipesched.profiles import STRICT, ProfileError
from pipesched.profiles.costs import LayerSharding
from pipesched.profiles.io.faults import in_our_words, one_line
from pipesched.schedules.common import faults, shown


class Record(BaseModel):
    """A JSON object, read without type conversion, unknown fields and infinite numbers, with dataclasses as its parts.

    A record with the class ``becomes`` is converted to an object of this class, which documents the fields. A class has
    a record only if its file has other fields, as a format and a version.
    """

    model_config: ClassVar[ConfigDict] = {**STRICT, "frozen": True}
    becomes: ClassVar[type | None] = None

    def parts(self) -> dict[str, Any]:
        """Return the fields by name, without format and version; records in them become their objects."""
        return {name: _object_of(field) for name, field in self if name not in ("format", "version")}

    def value(self) -> Any:
        """Return the record as an object of the class ``becomes``."""
        assert self.becomes is not None, "each record with an object names its class"
        return self.becomes(**self.parts())


def _object_of(field: Any) -> Any:
    match field:
        case Record():
            return field.value()
        case tuple():
            return tuple(map(_object_of, field))
        case dict():
            return {key: _object_of(item) for key, item in field.items()}
    return field


_R = TypeVar("_R")


_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def record_adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the adapter for `kind`, from a cache: making one takes longer than reading a line."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def parse_record(kind: type[_R], text: str, file: str, advice: str) -> _R:
    """Return `text` as a record, or as a dataclass whose ``__pydantic_config__`` is `STRICT`.

    Raises:
        ProfileError: The text does not fit `kind`; the message is `<file>: <place>: got <x>, expected <y>; <advice>`.
    """
    try:
        record: _R = record_adapter(kind).validate_json(text)
    except ValidationError as error:
        raise ProfileError(f"{file}: {one_line(_told(error, text))}; {advice}") from error
    return record


_GOT = {
    "missing": "nothing",
    "extra_forbidden": "an unknown field",
    "unexpected_keyword_argument": "an unknown field",
}


def _told(error: ValidationError, text: str) -> list[str]:
    """Return a fault for each invalid place, with all accepted values."""
    details = error.errors(include_url=False)
    if any(detail["type"] == "json_invalid" for detail in details):
        return [f"got {' '.join(details[0]['msg'].split())}, expected JSON"]
    document = json.loads(text, parse_int=str)  # integers of any length; pydantic has limited the depth
    faults: dict[tuple[str, ...], tuple[str, list[str]]] = {}
    for detail in details:
        if detail["type"] == "value_error":  # a dataclass reports its own fault
            return [str(detail["ctx"]["error"])]
        place = _place(detail, document)
        got = _GOT.get(detail["type"]) or shown(detail["input"])
        faults.setdefault(place, (got, []))[1].append(_expected(detail))
    # for a faulty member of a list, pydantic also reports that the list is too short, or fits no alternative
    inner = {place[:length] for place in faults for length in range(1, len(place))}
    return [
        f"{_shown(place)}: got {got}, expected {' or '.join(dict.fromkeys(expected))}"
        for place, (got, expected) in faults.items()
        if place not in inner
    ]


def _place(detail: ErrorDetails, document: Any) -> tuple[str, ...]:
    """Return the place in the document, without pydantic's names for the alternatives of a union."""
    place = []
    last = len(detail["loc"]) - 1
    for index, part in enumerate(detail["loc"]):
        if isinstance(document, list) and isinstance(part, int):
            document = document[part] if part < len(document) else None  # too short for a pair
        elif isinstance(document, dict) and (part in document or (detail["type"] == "missing" and index == last)):
            document = document.get(str(part))
        else:
            continue
        place.append(str(part))
    return tuple(place)


def _shown(place: Sequence[str]) -> str:
    text = ascii(".".join(place))[1:-1] or "top"
    return text if len(text) <= 100 else f"{text[:97]}..."


def _expected(detail: ErrorDetails) -> str:
    limits = detail.get("ctx", {})
    match detail["type"]:
        case "missing":
            return "this field"
        case "extra_forbidden" | "unexpected_keyword_argument":
            return "only the known ones"
        case "too_short":
            return f"{limits['min_length']} or more entries"
        case "too_long":
            return f"{limits['max_length']} or fewer entries"
        case "string_too_long":
            return f"{limits['max_length']} or fewer characters"
        case "union_tag_not_found":
            return f"an object with {_unquoted(limits)}"
        case "union_tag_invalid":
            return f"{_unquoted(limits)} {limits['expected_tags'].replace(', ', ' or ')}"
        case "int_parsing_size":
            return "fewer digits"
        case "predicate_failed":  # of `Deciles`
            return "rising numbers"
        case _:
            return in_our_words(detail["msg"])


def _unquoted(limits: Mapping[str, str]) -> str:
    """Return the name of the field that distinguishes the alternatives of a union."""
    return limits["discriminator"].strip("'")


def _in_range(sharding: LayerSharding) -> LayerSharding:
    """Return `sharding` if its numbers are in range.

    Raises:
        ValueError: A number is out of range; pydantic reports it as a fault of the file.
    """
    for fault in faults(sharding):
        raise ValueError(f"sharding: {fault}")
    return sharding


Sharding = Annotated[LayerSharding, AfterValidator(_in_range)]
"""The split of the layers of an estimated profile."""
