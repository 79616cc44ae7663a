"""What typer finds wrong with a command line, in one line."""

from __future__ import annotations

from typing import Any

import typer


def complaint(error: typer.TyperException) -> str:
    """Return what was got, what was expected, and where to read on."""
    text = error.format_message().replace("Value error, ", "got ").replace(" is not one of ", ", expected one of ")
    cause: Any = error.__cause__  # pydantic's, where a value does not fit its option; it knows the value
    if hasattr(cause, "errors"):
        text = text.replace("Input should be ", f"got {cause.errors()[0]['input']!r}, expected ")
    context = getattr(error, "ctx", None)
    command = "pipesched" if context is None else context.command_path
    return f"{text.rstrip('.')}; see '{command} --help'"
