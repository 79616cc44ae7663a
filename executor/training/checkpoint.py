"""Checkpoints: the weights of every stage as files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_model

from pipesched.executor import ExecutionError
from pipesched.executor.core import ModuleStage, Stage
from pipesched.schedules import ScheduleError
from pipesched.schedules.formats import whole_file


def save_stages(folder: Path, stages: Mapping[int, Stage]) -> None:
    """Write the newest weights of every stage to ``folder/stage<index>.safetensors``, each whole or not at all.

    Raises:
        ExecutionError: A stage has no weights, or the folder, or the one around it, cannot be written.
    """
    for index, stage in stages.items():
        if not isinstance(stage, ModuleStage):
            raise ExecutionError(f"save: got {folder}, expected none: stage {index} is emulated and has no weights")
        try:
            with whole_file(folder / f"stage{index}.safetensors", makes_folder=True) as temporary:
                _write_weights(stage, temporary)
        except ScheduleError as error:
            raise ExecutionError(f"save: {error}") from error


def _write_weights(stage: ModuleStage, path: Path) -> None:
    try:
        save_model(stage.module, str(path))
    except SafetensorError as error:
        raise OSError(str(error)) from error
