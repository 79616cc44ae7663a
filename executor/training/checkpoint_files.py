"""The contents of a checkpoint's files: the states of a rank's stages, and the scores of all steps, as safetensors."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TypeAlias

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save as save_arrays
from safetensors.torch import load, save
from torch import Tensor, float64

from pipesched.executor import ExecutionError
from pipesched.executor.core import ModuleStage, Stage, StateError, load_stage_state, stage_state
from pipesched.executor.training.checkpoint_index import (
    INDEX,
    LOSSES,
    CheckpointIndex,
    FileDigest,
    read_file,
    write_lasting,
)
from pipesched.executor.training.scores import ScoreTable
from pipesched.schedules.common import shown

_STAGE_FILE = re.compile(r"rank\d+-stage(\d+)\.safetensors")


StageStates: TypeAlias = Mapping[str, Mapping[str, Tensor]]
"""The states of stages: the tensors of each file, by its name."""


def copy_states(rank: int, stages: Mapping[int, Stage], bounds: Sequence[tuple[int, int]]) -> StageStates:
    """Return copies of the states of the stages of `rank`.

    Args:
        rank: The rank.
        stages: Its stages.
        bounds: Half-open range of layers of every stage.

    Raises:
        ExecutionError: A stage is in the middle of a computation.
    """
    states = {}
    for number, stage in stages.items():
        assert isinstance(stage, ModuleStage), "what trains has weights"
        states[_stage_file(rank, number)] = stage_state(stage, bounds[number][0])
    return states


def write_states(checkpoint: Path, states: StageStates) -> dict[str, FileDigest]:
    """Write states of stages, a file each; return the digests of the files.

    Raises:
        ExecutionError: A file cannot be written.
    """
    return {name: write_lasting(checkpoint / name, save(dict(state))) for name, state in states.items()}


def load_stages(
    checkpoint: Path,
    index: CheckpointIndex,
    rank: int,
    stages: Mapping[int, Stage],
    bounds: Sequence[tuple[int, int]],
    *,
    is_dealt: bool = False,
    references: Container[int] = (),
) -> None:
    """Load the stages of `rank` from a checkpoint.

    Args:
        checkpoint: Folder of the checkpoint.
        index: Its index.
        rank: The rank.
        stages: Its stages.
        bounds: Half-open range of layers of every stage.
        is_dealt: Whether the checkpoint may have another cut into stages.
        references: Stages whose reference model is with this rank.

    Raises:
        ExecutionError: A file is damaged, or its tensors do not fit the stage; names the first tensor that differs.
    """
    for number, stage in stages.items():
        assert isinstance(stage, ModuleStage), "what trains has weights"
        names = _files_with(checkpoint, index, range(*bounds[number])) if is_dealt else [_stage_file(rank, number)]
        files = {file: _loaded(checkpoint, index, file) for file in names}
        tensors = {name: tensor for held in files.values() for name, tensor in held.items()}
        try:
            load_stage_state(stage, bounds[number][0], tensors, has_reference=number in references)
        except StateError as error:
            file = next((file for file, held in files.items() if error.name in held), names[0])
            raise ExecutionError(f"{checkpoint / file}: {error}") from error


def _files_with(checkpoint: Path, index: CheckpointIndex, layers: range) -> list[str]:
    """Return a file for each stage with some of these layers; the files of replicas are equal.

    Raises:
        ExecutionError: The stages in the index do not match its files.
    """
    files: dict[int, str] = {}
    for name in sorted(index.files, reverse=True):  # the file of the lowest rank stays
        if parts := _STAGE_FILE.fullmatch(name):
            files[int(parts[1])] = name
    ends = list(accumulate(map(int, index.run.partition.split(","))))
    if sorted(files) != [*range(len(ends))] or ends[-1] < layers.stop:
        raise ExecutionError(
            f"{checkpoint / INDEX}: run.partition: got {shown(index.run.partition)}, expected the layers of each "
            f"of the {len(files)} stages whose files are there, and {layers.stop} or more in all; it is damaged"
        )
    held = [range(first, end) for first, end in zip([0, *ends], ends, strict=False)]
    return [files[stage] for stage, own in enumerate(held) if own.start < layers.stop and layers.start < own.stop]


def write_scores(checkpoint: Path, steps: ScoreTable) -> dict[str, FileDigest]:
    """Write the scores of all steps so far: (loss, accuracy) as float64, shape (steps, 2); NaN for a missing value.

    Raises:
        ExecutionError: The file cannot be written.
    """
    table = np.array(steps.numbers).reshape(-1, 2)
    # not as a tensor of torch, which leaves some kB behind for each size that is ever saved
    return {LOSSES: write_lasting(checkpoint / LOSSES, save_arrays({"scores": table}))}


def read_scores(checkpoint: Path, index: CheckpointIndex) -> ScoreTable:
    """Return the scores of all steps before a checkpoint.

    Raises:
        ExecutionError: The file is damaged, or has another number of steps.
    """
    table = _loaded(checkpoint, index, LOSSES).get("scores")
    if table is None or table.shape != (index.steps, 2) or table.dtype != float64:
        raise ExecutionError(
            f"{checkpoint / LOSSES}: got other tensors than it should have, expected 'scores', float64 of shape "
            f"{(index.steps, 2)}; it is damaged"
        )
    return ScoreTable(table.flatten().tolist())


def _stage_file(rank: int, stage: int) -> str:
    return f"rank{rank}-stage{stage}.safetensors"


def _loaded(checkpoint: Path, index: CheckpointIndex, name: str) -> dict[str, Tensor]:
    try:
        return load(read_file(checkpoint, index, name))
    except SafetensorError as error:
        raise ExecutionError(f"{checkpoint / name}: got {error}, expected safetensors; it is damaged") from error
