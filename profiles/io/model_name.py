"""The name of a model in a file: names that are read from files are not imported."""

from __future__ import annotations

from pathlib import Path
from typing import final

from pipesched.profiles import ProfileError
from pipesched.schedules.common import shown

BUILT_IN = ("conv", "digits", "gpt", "lstm", "mlp")
"""The models that come with pipesched."""
TRUST_ADVICE = "try trusted(name) of pipesched.profiles.io if it is yours"


_GRAPH, _LAYERS = "graph ", "layers "
"""Prefixes of the file in the name of a model of which only costs are known."""


def graph_model(file: str) -> str:
    """Return the model name for a graph of PipeDream's profiler."""
    return f"{_GRAPH}{file}"


def costs_model(origin: str) -> str:
    """Return the model name for costs of layers; `origin` is their file, or a few words."""
    return f"{_LAYERS}{origin}"


def costs_file_of(model: str) -> str | None:
    """Return the name of the file with the costs of `model`, or None for a model with more than costs."""
    prefix = next((prefix for prefix in (_GRAPH, _LAYERS) if model.startswith(prefix)), None)
    return None if prefix is None else Path(model.removeprefix(prefix)).name


@final
class NameFromFile(str):
    """The name of a model from a file: equal to the same name typed by a user, but not to be imported.

    The readers of profiles, plans and jobs return it, so that the origin of a name is always known. `resolve_model` and
    the functions that start processes refuse it unless it is built in, or `trusted`.

    Attributes:
        file: The file that contains the name.
    """

    __slots__ = ("file",)

    file: str

    def __new__(cls, name: str, file: str) -> NameFromFile:
        """Return `name` with its file."""
        made = super().__new__(cls, name)
        made.file = file
        return made

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]  # str's own is of one argument
        return str(self), self.file


def trusted(name: str) -> str:
    """Return `name` as if the user had typed it; use it only after asking the user."""
    return str(name)


def is_built_in(name: str) -> bool:
    """Return whether a model of that name is part of pipesched, whatever its arguments."""
    return name.partition(":")[0] in BUILT_IN


def imports_of(name: str) -> str | None:
    """Return the file whose name would cause an import, or None for built-in names and names typed by the user."""
    return name.file if isinstance(name, NameFromFile) and not is_built_in(name) else None


def require_trusted(name: str) -> None:
    """Refuse a name from a file that would cause an import.

    Raises:
        ProfileError: The name would cause an import.
    """
    file = imports_of(name)
    if file is not None:
        raise ProfileError(
            f"{file}: model: got {shown(str(name))}, expected one of {', '.join(BUILT_IN)}: what is imported is "
            f"for you to say, not for a file; {TRUST_ADVICE}"
        )
