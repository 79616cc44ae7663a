"""Arguments for the checkpoints of a training run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pipesched.workflows import ArgumentError, is_rank, require_at_least, require_optional, require_path

if TYPE_CHECKING:
    from pipesched.executor.launch import CheckpointSettings

_MOST = 2**31 - 1


def checkpoint_settings(
    checkpoint: Path | str | None, every: int | None = None, keep: int | None = None, resume: Path | str | None = None
) -> CheckpointSettings | None:
    """Return the checkpoint settings of a run, or None if no checkpoint is asked for.

    Args:
        checkpoint: Folder of the checkpoints; None: the folder of `resume`.
        every: Steps from one checkpoint to the next; None: as before, or the default of `CheckpointSettings`.
        keep: Number of the newest checkpoints to keep; None: as before, or the default of `CheckpointSettings`.
        resume: A checkpoint, or a folder whose newest checkpoint continues the run; None: the run starts anew.

    Raises:
        ArgumentError: An argument makes no sense, or has no effect.
        ExecutionError: The checkpoint does not exist or is damaged: with the file, and the newest intact checkpoint.
    """
    every = require_optional("every", every, 1, _MOST)
    keep = require_optional("keep", keep, 1, _MOST)
    folder = None if checkpoint is None else require_path(checkpoint, "checkpoint")
    if folder is None and resume is None:
        for name, value in (("every", every), ("keep", keep)):
            if value is not None:
                raise ArgumentError(f"{name}: got {value} without `checkpoint`, expected both; add `checkpoint=steps`")
        return None
    from pipesched.executor.launch import CheckpointSettings

    if resume is None:
        settings = CheckpointSettings(folder=str(folder))
    else:
        from pipesched.executor.training import find_checkpoint

        start, index = find_checkpoint(require_path(resume, "resume"))
        folder = folder or start.parent
        settings = CheckpointSettings(folder=str(folder), every=index.every, keep=index.keep, start=str(start))
    return replace(settings, every=every or settings.every, keep=keep or settings.keep)


def require_restartable(restarts: int, checkpoints: CheckpointSettings | None, *, is_distributed: bool) -> None:
    """Refuse restarts of a run without checkpoints, or without processes of our own.

    Raises:
        ArgumentError: Such a run has restarts.
    """
    restarts = require_at_least("restarts", restarts, 0)
    if restarts and (checkpoints is None or not is_distributed or is_rank()):
        raise ArgumentError(
            f"restarts: got {restarts}, expected `checkpoint` and `is_distributed=True` with it, and no torchrun, "
            "which has restarts of its own; leave it out"
        )


def require_own_folder(checkpoints: CheckpointSettings | None) -> None:
    """Refuse a folder in which a run cannot begin, before any measurement.

    Raises:
        ExecutionError: The folder cannot be made, or has checkpoints of another run.
    """
    if checkpoints is None or is_rank():  # under torchrun another rank may have begun
        return
    from pipesched.executor.training import require_no_checkpoints

    start = None if checkpoints.start is None else Path(checkpoints.start)
    require_no_checkpoints(Path(checkpoints.folder), start)
