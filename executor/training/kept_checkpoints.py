"""The checkpoints in a folder: search, verification and removal."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pipesched.executor import ExecutionError
from pipesched.executor.training.checkpoint_index import INDEX, STEPS, CheckpointIndex, read_file, read_index

NO_OTHER = "no other checkpoint is intact"
"""Part of the message about a damaged checkpoint if there is no other one."""
_OURS = re.compile(r"\.?([a-z0-9-]+\.safetensors|index\.json)(\.[0-9a-f]{8}\.tmp)?")
"""Names of files that may be removed: files of a checkpoint, also under their temporary names."""


def find_checkpoint(path: Path) -> tuple[Path, CheckpointIndex]:
    """Return the checkpoint in `path`, or the newest one in it, after verifying its files.

    Raises:
        ExecutionError: There is no checkpoint, or the checkpoint is damaged. The message names the damaged file and the
            newest undamaged checkpoint.
    """
    newest = path if has_index(path) else next(iter(_whole_ones(path)[::-1]), None)
    if newest is None:
        name = " ".join(str(path).splitlines())
        raise ExecutionError(
            f"{name}: got no checkpoint there, expected one; try the folder that was given as `checkpoint`"
        )
    try:
        return newest, _required(newest)
    except ExecutionError as error:
        good = last_good(newest)
        raise ExecutionError(f"{error}; {NO_OTHER if good is None else resume_advice(good)}") from None


def newest_good(folder: Path) -> Path:
    """Return the newest undamaged checkpoint in `folder`.

    Raises:
        ExecutionError: All checkpoints are damaged; the message has the faults of the newest one.
    """
    good = next(filter(_is_good, _whole_ones(folder)[::-1]), None)
    return find_checkpoint(folder)[0] if good is None else good


def last_good(damaged: Path, fits: Callable[[Path], bool] = lambda checkpoint: True) -> Path | None:  # noqa: ARG005
    """Return the newest other checkpoint that is undamaged and fits, or None."""
    others = [other for other in _whole_ones(damaged.parent)[::-1] if other != damaged]
    return next((other for other in others if _is_good(other) and fits(other)), None)


def resume_advice(good: Path) -> str:
    """Return the advice to resume from another checkpoint."""
    return f"the last intact checkpoint is {good}; try `resume={good}`"


def _required(checkpoint: Path) -> CheckpointIndex:
    index = read_index(checkpoint)
    for name in index.files:
        read_file(checkpoint, index, name)
    return index


def _is_good(checkpoint: Path) -> bool:
    try:
        _required(checkpoint)
    except ExecutionError:
        return False
    return True


def has_checkpoints(folder: Path) -> bool:
    """Return whether a folder has any checkpoint, damaged or not."""
    return bool(_whole_ones(folder))


def require_no_checkpoints(folder: Path, start: Path | None) -> None:
    """Refuse to begin a run in a folder with checkpoints of another run; a run that resumes from the folder may use it.

    Args:
        folder: Folder for the checkpoints of the run; it need not exist.
        start: The checkpoint to resume from; None to start from the beginning.

    Raises:
        ExecutionError: The folder has checkpoints of another run, or cannot be made.
    """
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        reason = errno.EACCES if there.is_dir() else errno.ENOTDIR
        raise _not_made(folder, OSError(reason, os.strerror(reason)))
    if start is not None and Path(os.path.realpath(start)).parent == Path(os.path.realpath(folder)):
        return
    if has_checkpoints(folder):
        raise ExecutionError(
            f"checkpoint: got {folder}, which has checkpoints, expected a folder without; try `resume={folder}` to "
            "continue from the newest, or another folder"
        )


def clear_after(folder: Path, steps: int) -> None:
    """Make the folder of checkpoints, and remove the checkpoints that a run resumed after `steps` writes again.

    These are the checkpoints of later steps, and the folders without an index.

    Raises:
        ExecutionError: The folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_made(folder, error) from error
    for number, checkpoint in _all(folder):
        if number > steps or not has_index(checkpoint):
            _remove(checkpoint)


def _not_made(folder: Path, error: OSError) -> ExecutionError:
    return ExecutionError(
        f"checkpoint: got {str(folder)!r} ({error.strerror}), expected a folder that can be created; try another folder"
    )


def keep_newest(folder: Path, keep: int) -> None:
    """Remove all but the `keep` newest checkpoints."""
    for checkpoint in _whole_ones(folder)[:-keep]:
        _remove(checkpoint)


def _remove(checkpoint: Path) -> None:
    """Remove the files of a checkpoint, and then its folder if empty; of a symbolic link only the link."""
    with suppress(OSError):
        if checkpoint.is_symlink():
            checkpoint.unlink()
            return
        (checkpoint / INDEX).unlink(missing_ok=True)  # first, so that an incomplete checkpoint does not count
        for path in checkpoint.iterdir():
            if _OURS.fullmatch(path.name):
                path.unlink()
        checkpoint.rmdir()


def _whole_ones(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder that have an index, in the order of their steps."""
    return [checkpoint for _, checkpoint in _all(folder) if has_index(checkpoint)]


def has_index(checkpoint: Path) -> bool:
    """Return whether a folder has the index of a checkpoint, which may be unreadable."""
    return os.path.lexists(checkpoint / INDEX)


def _all(folder: Path) -> list[tuple[int, Path]]:
    """Return (steps, folder) of all checkpoints in a folder, complete or not, in order."""
    entries = folder.iterdir() if folder.is_dir() else ()
    return sorted((int(name[1]), entry) for entry in entries if (name := STEPS.fullmatch(entry.name)))
