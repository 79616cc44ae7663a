"""Common machines, one node each, with the public source of every number in the file's `origin`."""

from __future__ import annotations

from pathlib import Path

from pipesched.profiles import ProfileError
from pipesched.profiles.clusters import Cluster
from pipesched.profiles.io.loading import load_cluster

_FOLDER = Path(__file__).parents[1] / "data" / "machines"


def machine_names() -> tuple[str, ...]:
    """Return the machines that there are."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


def load_machine(name: str) -> Cluster:
    """Return one node: its devices, its links inside and to other nodes, its network interfaces.

    Raises:
        ProfileError: There is none of this name.
    """
    if name not in machine_names():
        raise ProfileError(f"machine {name[:60]!r}: got an unknown one, expected one of {', '.join(machine_names())}")
    return load_cluster(_FOLDER / f"{name}.json")
