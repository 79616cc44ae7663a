"""Values of options as people write them: ``1min``, ``50%``, ``bf16``."""

from __future__ import annotations

import math
from typing import Any

from pipesched.cli.options.key_values import in_si

_ALSO_CALLED = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "fp64": "float64"}
"""Synonyms of choices."""
_KEYS = dict.fromkeys(("time_limit", "budget", "bound_seconds", "seconds"), "_s") | {"convert": "_bytes_per_s"}
"""Units that the names of options lack."""


def plain_value(value: Any, name: str, kind: str) -> Any:
    """Return a value as its option takes it; an unreadable value stays as it is, and its option refuses it.

    Args:
        value: The written value; the values of a repeatable option are left alone.
        name: The option, as its function calls it.
        kind: Its type, as typer shows it: ``<float>``, ``<float range>``, ``<sgd|adam>``.
    """
    if not isinstance(value, str):
        return value
    if kind.startswith(("<float>", "<float ")):
        number = in_si(value, _KEYS.get(name, name))
        return value if math.isnan(number) else f"{number:.17g}"
    words = kind.strip("<>").split("|")
    meant = _ALSO_CALLED.get(value.lower(), value)
    return meant if value not in words and meant in words else value
