"""The errors of estimates as JSON: ``{"A100": {"gpus": ["a100"], "time": {"count": 72, "median": 0.06, ..}, ..}, ..}``.

`benchmarks/published.py` writes the file of the package, with the page of the same figures.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

from pipesched.profiles.costs import EstimateErrors
from pipesched.profiles.io.validation import parse_record


def read_estimate_errors(text: str, file: str) -> dict[str, EstimateErrors]:
    """Return the errors in `text` by family of GPUs.

    Raises:
        ProfileError: The text has no errors; the message names `file`, the place, the actual and the expected value.
    """
    return parse_record(dict[str, EstimateErrors], text, file, "write it again, with benchmarks/published.py")


def estimate_errors_text(families: Mapping[str, EstimateErrors]) -> str:
    """Return errors by family of GPUs as JSON for `read_estimate_errors`."""
    return json.dumps({name: asdict(errors) for name, errors in families.items()}, indent=1) + "\n"
