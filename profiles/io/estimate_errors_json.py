"""The errors of estimates as JSON: ``{"A100": {"gpus": ["a100"], "time": {"count": 72, "median": 0.06, ..}, ..}, ..}``.

`benchmarks/published.py` writes the file of the package, with the page of the same figures.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, ClassVar

from pydantic import Field

from pipesched.profiles.costs import ErrorRange, EstimateErrors
from pipesched.profiles.io.validation import Count, Record, Text, parse_record

_Error = Annotated[float, Field(ge=0, le=1e6)]


class _Range(Record):
    becomes: ClassVar[type] = ErrorRange

    count: Count
    median: _Error
    ninth: _Error


class _Errors(Record):
    becomes: ClassVar[type] = EstimateErrors

    gpus: tuple[Text, ...]
    time: _Range | None
    memory: _Range | None


def read_estimate_errors(text: str, file: str) -> dict[str, EstimateErrors]:
    """Return the errors in `text` by family of GPUs.

    Raises:
        ProfileError: The text has no errors; the message names `file`, the place, the actual and the expected value.
    """
    families = parse_record(dict[str, _Errors], text, file, "write it again, with benchmarks/published.py")
    return {name: record.value() for name, record in families.items()}


def estimate_errors_text(families: Mapping[str, EstimateErrors]) -> str:
    """Return errors by family of GPUs as JSON for `read_estimate_errors`."""
    return json.dumps({name: asdict(errors) for name, errors in families.items()}, indent=1) + "\n"
