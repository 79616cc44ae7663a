"""Validation of JSON files: strict records, and pydantic's faults in one line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from pipesched.profiles import BYTES_LIMIT, ProfileError
from pipesched.profiles.io.faults import STRICT, in_our_words, one_line
from pipesched.schedules.common import shown

Seconds = Annotated[float, Field(ge=0, le=1e12)]
"""Seconds, limited so that the square of a sum is finite."""
Bytes = Annotated[int, Field(ge=0, lt=BYTES_LIMIT)]
Count = Annotated[int, Field(ge=0, lt=2**31)]
Text = Annotated[str, Field(max_length=2000)]


class Record(BaseModel):
    """A JSON object, read without type conversion, unknown fields and infinite numbers.

    If a record has ``becomes``, the class that it is read as, that class documents its fields.
    """

    model_config: ClassVar[ConfigDict] = {**STRICT, "frozen": True}


_R = TypeVar("_R")


_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def record_adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the cached adapter for `kind`; making one takes longer than reading a line."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def parse_record(kind: type[_R], text: str, file: str, advice: str) -> _R:
    """Return `text` as a record, or as a dataclass whose ``__pydantic_config__`` is `STRICT`.

    Raises:
        ProfileError: The text is not one; every fault as `<file>: <place>: got <x>, expected <y>; <advice>`.
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
    """Return a fault for each place, with all accepted values."""
    details = error.errors(include_url=False)
    if any(detail["type"] == "json_invalid" for detail in details):
        return [f"got {' '.join(details[0]['msg'].split())}, expected JSON"]
    document = json.loads(text, parse_int=str)  # of however many digits; no deeper than pydantic has read it
    faults: dict[tuple[str, ...], tuple[str, list[str]]] = {}
    for detail in details:
        if detail["type"] == "value_error":  # a dataclass reports its own fault
            return [str(detail["ctx"]["error"])]
        place = _place(detail, document)
        got = _GOT.get(detail["type"]) or shown(detail["input"])
        faults.setdefault(place, (got, []))[1].append(_expected(detail))
    # pydantic also reports a list with a faulty member as too short, and as none of the alternatives
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
        case _:
            return in_our_words(detail["msg"])


def _unquoted(limits: Mapping[str, str]) -> str:
    """Return the name of the field that distinguishes the alternatives of a union."""
    return limits["discriminator"].strip("'")
