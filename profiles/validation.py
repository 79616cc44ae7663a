"""What the readers of JSON files share: strict records, and pydantic's findings told in one line."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from profiles.errors import ProfileError
from profiles.faults import one_line, shown

Seconds = Annotated[float, Field(ge=0)]
Bytes = Annotated[int, Field(ge=0, lt=2**63)]
Count = Annotated[int, Field(ge=0, lt=2**31)]
Text = Annotated[str, Field(max_length=2000)]


class Record(BaseModel):
    """A JSON object: no type is guessed, no field is unknown, no number is infinite."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)


R = TypeVar("R", bound=Record)


def parse_record(kind: type[R], text: str, file: str, advice: str) -> R:
    """Return `text` as a record.

    Raises:
        ProfileError: It is not one; every fault as `<file>: <place>: got <x>, expected <y>; <advice>`.
    """
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise ProfileError(_told(error, file, advice)) from error


def _told(error: ValidationError, file: str, advice: str) -> str:
    faults = []
    for detail in error.errors(include_url=False, include_context=False):
        place = ".".join(str(part) for part in detail["loc"]) or "top"
        place = place if len(place) <= 100 else f"{place[:97]}..."
        message = " ".join(detail["msg"].split())
        match detail["type"]:
            case "missing":
                faults.append(f"{place}: got nothing, expected this field")
            case "extra_forbidden":
                faults.append(f"{shown(place)}: got an unknown field, expected only the known ones")
            case "json_invalid":
                faults.append(f"got {message}, expected JSON")
            case _:
                faults.append(
                    f"{place}: got {shown(detail['input'])}, expected {message.removeprefix('Input should be ')}"
                )
    return f"{file}: {one_line(faults)}; {advice}"
