"""The name of a model that a file gives: nothing that is read from a file is imported."""

from __future__ import annotations

from pathlib import Path
from typing import final

from pipesched.profiles import ProfileError
from pipesched.schedules import shown

BUILT_IN = ("conv", "digits", "gpt", "lstm", "mlp")
"""The models that come with pipesched."""
TRUST_ADVICE = "try trusted(name) of pipesched.profiles.io if it is yours"


_GRAPH, _LAYERS = "graph ", "layers "
"""Before the file, in the name that stands for a model of which only costs are known."""


def graph_model(file: str) -> str:
    """Return the name of what a graph of PipeDream's profiler is of."""
    return f"{_GRAPH}{file}"


def costs_model(origin: str) -> str:
    """Return the name of what costs of layers are of; `origin` is their file, or a few words."""
    return f"{_LAYERS}{origin}"


def costs_file_of(model: str) -> str | None:
    """Return the name of the file that the costs of `model` were read from; None of one that has more than costs."""
    prefix = next((prefix for prefix in (_GRAPH, _LAYERS) if model.startswith(prefix)), None)
    return None if prefix is None else Path(model.removeprefix(prefix)).name


@final
class NameFromFile(str):
    """The name of a model as a file says it: equal to the same name that a user types, but not to be imported.

    The readers of profiles, plans and jobs return it, so that nobody who is handed a name has to know where it is
    from: `resolve_model` and what starts processes refuse it unless it is built in, or `trusted`.

    Attributes:
        file: The file that says the name.
    """

    __slots__ = ("file",)

    file: str

    def __new__(cls, name: str, file: str) -> NameFromFile:
        """Return `name` as `file` says it."""
        made = super().__new__(cls, name)
        made.file = file
        return made

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]  # str's own is of one argument
        return str(self), self.file


def trusted(name: str) -> str:
    """Return `name` as if the user had typed it: only for who has asked the user."""
    return str(name)


def is_built_in(name: str) -> bool:
    """Return whether a model of that name comes with pipesched, whatever its arguments."""
    return name.partition(":")[0] in BUILT_IN


def imports_of(name: str) -> str | None:
    """Return the file that would have something imported by this name; None where the user has typed it."""
    return name.file if isinstance(name, NameFromFile) and not is_built_in(name) else None


def require_trusted(name: str) -> None:
    """Refuse a name from a file that would have something imported.

    Raises:
        ProfileError: It is one.
    """
    file = imports_of(name)
    if file is not None:
        raise ProfileError(
            f"{file}: model: got {shown(str(name))}, expected one of {', '.join(BUILT_IN)}: what is imported is "
            f"for you to say, not for a file; {TRUST_ADVICE}"
        )
