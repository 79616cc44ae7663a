"""Checkpoints: the weights of every stage as files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_model

from pipesched.executor import ExecutionError
from pipesched.executor.core import ModuleStage, Stage


def save_stages(folder: Path, stages: Mapping[int, Stage]) -> None:
    """Write the newest weights of every stage to ``folder/stage<index>.safetensors``, each whole or not at all.

    Raises:
        ExecutionError: A stage has no weights, or the folder cannot be written.
    """
    for index, stage in stages.items():
        if not isinstance(stage, ModuleStage):
            raise ExecutionError(f"save: got {folder}, expected none: stage {index} is emulated and has no weights")
        target = folder / f"stage{index}.safetensors"
        temporary = target.with_name(f".{target.name}.tmp")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            try:
                save_model(stage.module, str(temporary))
                temporary.replace(target)
            finally:
                temporary.unlink(missing_ok=True)
        except (OSError, SafetensorError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise ExecutionError(f"save: {target}: got {reason!r}, expected to write it; try another folder") from error
