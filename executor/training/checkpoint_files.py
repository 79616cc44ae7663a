"""The files of a run: states of stages and scores of all steps in a checkpoint, and the final weights."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import TypeAlias, final

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save as save_arrays
from safetensors.torch import load, save, save_file
from torch import Tensor, float64, nn

from pipesched.executor import ExecutionError
from pipesched.executor.core import ModuleStage, Stage, StateError, load_stage_state, stage_state, whole_state
from pipesched.executor.training.checkpoint_index import (
    INDEX,
    LOSSES,
    CheckpointIndex,
    FileDigest,
    read_file,
    write_lasting,
)
from pipesched.executor.training.scores import ScoreTable
from pipesched.profiles.models import Model
from pipesched.schedules import ScheduleError
from pipesched.schedules.common import shown
from pipesched.schedules.formats import whole_file

_STAGE_FILE = re.compile(r"rank\d+-stage(\d+)\.safetensors")


StageStates: TypeAlias = Mapping[str, Mapping[str, Tensor]]
"""The states of stages: the tensors of each file, by its name."""


def copy_states(rank: int, stages: Mapping[int, ModuleStage], bounds: Sequence[tuple[int, int]]) -> StageStates:
    """Return copies of the states of the stages of `rank`.

    Args:
        bounds: Half-open range of layers of every stage.

    Raises:
        ExecutionError: A stage is in the middle of a computation.
    """
    return {_stage_file(rank, number): stage_state(stage, bounds[number][0]) for number, stage in stages.items()}


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
    stages: Mapping[int, ModuleStage],
    bounds: Sequence[tuple[int, int]],
    *,
    is_dealt: bool = False,
    references: Container[int] = (),
) -> None:
    """Load the stages of `rank` from a checkpoint.

    Args:
        checkpoint: Folder of the checkpoint.
        bounds: Half-open range of layers of every stage.
        is_dealt: Whether the checkpoint may have another cut into stages.
        references: Stages whose reference model is with this rank.

    Raises:
        ExecutionError: A file is damaged, or its tensors do not fit the stage; names the first tensor that differs.
    """
    for number, stage in stages.items():
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
            f"{checkpoint / INDEX}: run.partition: got {shown(index.run.partition)}, expected {len(files)} stages, one "
            f"for each file of weights, with {layers.stop} layers or more in all; the checkpoint is damaged"
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
            f"{checkpoint / LOSSES}: got other tensors, expected 'scores', float64 of shape {(index.steps, 2)}; the "
            "checkpoint is damaged"
        )
    return ScoreTable(table.flatten().tolist())


def _stage_file(rank: int, stage: int) -> str:
    return f"rank{rank}-stage{stage}.safetensors"


def _loaded(checkpoint: Path, index: CheckpointIndex, name: str) -> dict[str, Tensor]:
    try:
        return load(read_file(checkpoint, index, name))
    except SafetensorError as error:
        raise ExecutionError(
            f"{checkpoint / name}: got {error}, expected safetensors; the checkpoint is damaged"
        ) from error


@final
class BackgroundWriter:
    """Writes checkpoints in a thread during training: one at a time, from the copy made at its step.

    An error is raised when the run next checks: before the next write, after a pass of its lists, or at its end.
    Leaving the block waits for the write, except after an interrupt.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def __enter__(self) -> BackgroundWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.wait()
        elif not issubclass(kind, KeyboardInterrupt) and self._thread is not None:
            self._thread.join()

    def start(self, write: Callable[[], None]) -> None:
        """Begin to write, after the previous write has ended.

        Raises:
            ExecutionError: The previous write has failed.
        """
        self.wait()
        # an interrupt does not wait for a daemon: an incomplete checkpoint does not count
        self._thread = threading.Thread(target=self._run, args=(write,), name="checkpoint", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise the error of the last write, if it has failed.

        Raises:
            ExecutionError: The last write has failed.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error

    def wait(self) -> None:
        """Wait for the end of the current write.

        Raises:
            ExecutionError: The last write has failed.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def _run(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as error:  # noqa: BLE001 -- raised again where the run asks
            self._error = error


def save_stages(
    folder: Path, model: Model | None, bounds: Sequence[tuple[int, int]], stages: Mapping[int, Stage]
) -> None:
    """Write the newest weights of every stage to ``folder/stage<index>.safetensors``, each whole or not at all.

    Args:
        folder: The folder, which is made.
        model: The model, or None if it is emulated.
        bounds: Half-open range of layers of every stage.
        stages: The stages, by number.

    Raises:
        ExecutionError: A stage has no weights, or the folder or its parent cannot be written.
    """
    for index, stage in stages.items():
        if model is None or not isinstance(stage, ModuleStage):
            raise ExecutionError(f"save: got {folder}, expected none: stage {index} is emulated and has no weights")
        state = whole_state(model, bounds, {index: stage.module})
        try:
            with whole_file(folder / f"stage{index}.safetensors", makes_folder=True) as temporary:
                _write_weights(state, temporary)
        except ScheduleError as error:
            raise ExecutionError(f"save: {error}") from error


def _write_weights(state: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors to a file; a tensor of several names is copied, as a file has no shared tensors."""
    written = set[int]()
    tensors = {}
    for name, tensor in state.items():
        address = tensor.untyped_storage().data_ptr()
        tensors[name] = tensor.clone() if address in written else tensor.contiguous()
        written.add(address)
    try:
        save_file(tensors, str(path))
    except SafetensorError as error:
        raise OSError(str(error)) from error


def export_weights(
    path: Path | str, model: Model, modules: Iterable[nn.Module], bounds: Sequence[tuple[int, int]]
) -> None:
    """Write the weights of the whole model as one file, with the names of `whole_state`.

    Args:
        path: A ``.safetensors`` file.
        model: The model.
        modules: The stages, in order; each a row of layers.
        bounds: Half-open range of layers of every stage.

    Raises:
        ExecutionError: The file cannot be written.
    """
    state = whole_state(model, bounds, dict(enumerate(modules)))
    try:
        with whole_file(path) as temporary:
            _write_weights(state, temporary)
    except ScheduleError as error:
        raise ExecutionError(f"export: {error}") from error
