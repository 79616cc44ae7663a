"""What the files of a checkpoint hold: the state of a rank's stages, and the scores of all steps, as safetensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from pipesched.executor import ExecutionError
from pipesched.executor.core import ModuleStage, Stage, load_stage_state, stage_state
from pipesched.executor.training.checkpoint_index import (
    LOSSES,
    CheckpointIndex,
    FileDigest,
    read_file,
    write_lasting,
)
from pipesched.executor.training.loss_history import Scores


def write_stages(checkpoint: Path, rank: int, stages: Mapping[int, Stage]) -> dict[str, FileDigest]:
    """Write the state of the stages of `rank`, a file each; return what each holds.

    Raises:
        ExecutionError: A file cannot be written, or a stage is in the middle of something.
    """
    digests = {}
    for index, stage in stages.items():
        assert isinstance(stage, ModuleStage), "what trains has weights"
        name = _stage_file(rank, index)
        digests[name] = write_lasting(checkpoint / name, save(stage_state(stage)))
    return digests


def load_stages(checkpoint: Path, index: CheckpointIndex, rank: int, stages: Mapping[int, Stage]) -> None:
    """Let the stages of `rank` go on from a checkpoint.

    Raises:
        ExecutionError: A file is damaged, or it is the state of another stage.
    """
    for number, stage in stages.items():
        assert isinstance(stage, ModuleStage), "what trains has weights"
        name = _stage_file(rank, number)
        tensors = _loaded(checkpoint, index, name)
        try:
            load_stage_state(stage, tensors)
        except ExecutionError as error:
            raise ExecutionError(
                f"{checkpoint / name}: got the state of another stage ({error}), expected that of stage {number}; try "
                "the model that the checkpoint was made with"
            ) from error


def write_scores(checkpoint: Path, steps: Sequence[Scores]) -> dict[str, FileDigest]:
    """Write the scores of all steps so far: (loss, accuracy) as float64, shape (steps, 2); NaN stands for none.

    Raises:
        ExecutionError: The file cannot be written.
    """
    rows = [(scores.loss, math.nan if scores.accuracy is None else scores.accuracy) for scores in steps]
    table = torch.tensor(rows, dtype=torch.float64).reshape(-1, 2)
    return {LOSSES: write_lasting(checkpoint / LOSSES, save({"scores": table}))}


def read_scores(checkpoint: Path, index: CheckpointIndex) -> list[Scores]:
    """Return the scores of all steps before a checkpoint.

    Raises:
        ExecutionError: The file is damaged, or does not have as many.
    """
    table = _loaded(checkpoint, index, LOSSES).get("scores")
    if table is None or table.shape != (index.steps, 2):
        raise ExecutionError(f"{checkpoint / LOSSES}: got other scores, expected those of {index.steps} steps")
    return [Scores(loss, None if math.isnan(accuracy) else accuracy) for loss, accuracy in table.tolist()]


def _stage_file(rank: int, stage: int) -> str:
    return f"rank{rank}-stage{stage}.safetensors"


def _loaded(checkpoint: Path, index: CheckpointIndex, name: str) -> dict[str, Tensor]:
    try:
        return load(read_file(checkpoint, index, name))
    except SafetensorError as error:
        raise ExecutionError(f"{checkpoint / name}: got {error}, expected safetensors; it is damaged") from error
