"""Faults of an input, in messages of one line."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pipesched.profiles import ProfileError

_SHOWN = 3
_WORDS = {
    "Input should be ": "",
    "a valid integer": "an integer",
    "a valid number": "a number",
    "a valid string": "a text",
    "a valid array": "a list",
    "a valid boolean": "true or false",
    "a dictionary or an instance of": "an object, a",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
}
"""Words of pydantic's messages, and their replacements."""


def in_our_words(message: str) -> str:
    """Return a message of pydantic in one line, with words as in other messages."""
    for pydantics, words in _WORDS.items():
        message = message.replace(pydantics, words)
    return " ".join(re.sub(r", unable to parse string as an? \w+", "", message).split())


def require_no_faults(origin: str, faults: Sequence[str], advice: str = "") -> None:
    """Raise an error if there are faults.

    Args:
        origin: The file, or another name of the input.
        faults: The faults.
        advice: Advice at the end of the message, or empty.

    Raises:
        ProfileError: There are faults; the message is one line.
    """
    if faults:
        raise ProfileError(f"{origin}: {one_line(faults)}{advice and f'; {advice}'}")


def one_line(faults: Sequence[str]) -> str:
    """Return the first three faults and the number of the others, in one line."""
    text = "; ".join(faults[:_SHOWN])
    return text if len(faults) <= _SHOWN else f"{text}; and {len(faults) - _SHOWN} more"
