"""Write what readers make of a Timeline: the whole file, or nothing."""

from __future__ import annotations

from pathlib import Path

from pipesched.schedules.formats import replace_whole
from pipesched.simulator import SimulationError


def suffix_of(path: Path | str, known: tuple[str, ...]) -> str:
    """Return the suffix of `path` in small letters.

    Raises:
        SimulationError: It is none of `known`.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in known:
        raise SimulationError(f"{path}: got suffix {suffix!r}, expected {' or '.join(known)}; try {path}{known[0]}")
    return suffix


def write_bytes(path: Path | str, data: bytes) -> None:
    """Write `data` to `path`: all of it, or nothing.

    Raises:
        SimulationError: It cannot be written.
    """
    try:
        replace_whole(Path(path).resolve(), data)
    except OSError as error:
        reason = error.strerror or str(error)
        raise SimulationError(
            f"{path}: got {reason!r}, expected a file that can be written; try another path"
        ) from error
