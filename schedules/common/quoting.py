"""Quoting users' text in messages: in one line, short, and without control characters of a terminal."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from traceback import walk_tb

_SHOWN_CHARACTERS = 60


def shown(value: object) -> str:
    """Return `value` as text for a message: in one line, and short."""
    try:
        text = repr(value[: _SHOWN_CHARACTERS + 1] if isinstance(value, str) else value)
    except ValueError:  # Python writes no integer of more than 4300 digits
        text = f"<{type(value).__name__}, too long to be written>"
    text = printable(text)  # other objects may print in several lines
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


def said(value: object) -> str:
    """Return a value as one line of source, or only its type if the value is large (a list of ops)."""
    return shown(value) if isinstance(value, str | int | float | None) else f"{type(value).__name__}(..)"


def error_text(error: BaseException) -> str:
    """Return the text of an error of a user's code or of another library: in one line, and at most 200 characters.

    Its backticks become quotes, as in messages of this package they mark arguments, which may be printed as options.
    """
    return " ".join(str(error).split())[:200].replace("`", "'")


def guess(name: str, names: Iterable[str]) -> str:
    """Return ``did you mean latency_s? `` if one of `names` resembles `name` apart from its unit, or an empty text."""
    stems = {_UNIT.sub("", known): known for known in names}
    near = get_close_matches(_UNIT.sub("", name[:_SHOWN_CHARACTERS]), stems, n=1, cutoff=0.7)
    return f"did you mean {stems[near[0]]}? " if near else ""


_UNIT = re.compile("_(bytes_per_s|bytes|s|ms|us|time)$")


def shortened(text: str, most: int) -> str:
    """Return `text`, without its middle if it has more than `most` characters."""
    end = most // 4
    return text if len(text) <= most else f"{text[: most - end - 5]} ... {text[-end:]}"


def users_lines(error: BaseException) -> list[tuple[str, int, str]]:
    """Return the stack of a user's code at an error: (file, line, function) of its calls, the innermost call last.

    Frames of Python, PyTorch and this package are left out. An error raised in them alone has no lines.
    """
    lines: list[tuple[str, int, str]] = []
    for frame, line in walk_tb(error.__traceback__):
        call = None
        if USERS_LINE in frame.f_globals:
            call = frame.f_globals[USERS_LINE](line)
        elif str(frame.f_globals.get("__name__")).partition(".")[0] not in _NOT_THE_USERS:
            call = frame.f_code.co_filename, line, frame.f_code.co_name
        if call is not None:
            lines.append((Path(call[0]).name, *call[1:]))
    return lines


def users_place(error: BaseException) -> str:
    """Return `` at net.py:12 in forward`` for the innermost call in a user's code at an error, or an empty text."""
    return next((f" at {file}:{line} in {function}" for file, line, function in users_lines(error)[::-1]), "")


USERS_LINE = "__users_line__"
"""Global of generated code: a function from its line to the user's (file, line, function) behind it, or None."""
_NOT_THE_USERS = {"pipesched", "torch", *sys.stdlib_module_names} - {"__main__"}


class OneLineError(ValueError):
    """An error whose message stays in one line, even if it quotes names or values with line breaks."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def printable(text: str) -> str:
    """Return `text` in one line, with control and invisible characters escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
