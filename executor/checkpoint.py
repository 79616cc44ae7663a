"""The weights of every stage as files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_model

from executor.errors import ExecutionError
from executor.stage import ModuleStage, Stage


def save_stages(folder: Path, stages: Mapping[int, Stage]) -> None:
    """Write the newest weights of every stage to ``folder/stage<index>.safetensors``.

    Raises:
        ExecutionError: A stage has no weights, or the folder cannot be written.
    """
    for index, stage in stages.items():
        if not isinstance(stage, ModuleStage):
            raise ExecutionError(f"save: got {folder}, expected none: stage {index} is emulated and has no weights")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            save_model(stage.module, str(folder / f"stage{index}.safetensors"))
        except OSError as error:
            raise ExecutionError(f"save: {folder}: {error.strerror or error}; try another folder") from error
