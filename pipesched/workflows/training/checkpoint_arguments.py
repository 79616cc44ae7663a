"""Arguments for the checkpoints of a training run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pipesched.questions import TrainSettings
from pipesched.workflows import ArgumentError, is_rank, require_path

if TYPE_CHECKING:
    from pipesched.executor.launch import CheckpointSettings


def checkpoint_settings(question: TrainSettings) -> CheckpointSettings | None:
    """Return the checkpoint settings of a run, or None if no checkpoint is asked for.

    Without `every` or `keep`, the values of the resumed run count, or the defaults of `CheckpointSettings`. Without
    `checkpoint`, the folder of the resumed checkpoint counts.

    Raises:
        ArgumentError: An argument has no effect.
        ExecutionError: The checkpoint does not exist, or is damaged. The message names the damaged file and the newest
            intact checkpoint.
    """
    folder = None if question.checkpoint is None else require_path(question.checkpoint, "checkpoint")
    if folder is None and question.resume is None:
        for name in ("every", "keep"):
            value = getattr(question, name)
            if value is not None:
                raise ArgumentError(f"{name}: got {value} without `checkpoint`, expected both; add `checkpoint=steps`")
        return None
    from pipesched.executor.launch import CheckpointSettings

    if question.resume is None:
        settings = CheckpointSettings(folder=str(folder))
    else:
        from pipesched.executor.training import find_checkpoint

        start, index = find_checkpoint(require_path(question.resume, "resume"))
        folder = folder or start.parent
        settings = CheckpointSettings(folder=str(folder), every=index.every, keep=index.keep, start=str(start))
    return replace(settings, every=question.every or settings.every, keep=question.keep or settings.keep)


def require_restartable(question: TrainSettings, checkpoints: CheckpointSettings | None) -> None:
    """Refuse restarts of a run without checkpoints, or without processes of our own.

    Raises:
        ArgumentError: Such a run has restarts.
    """
    if question.restarts and (checkpoints is None or not question.is_distributed or is_rank()):
        raise ArgumentError(
            f"restarts: got {question.restarts}, expected `checkpoint` and `is_distributed=True` too, and no torchrun, "
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
