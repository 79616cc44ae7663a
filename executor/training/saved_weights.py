"""The final weights as files: of every stage one, or of the whole model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file, save_model
from torch import nn

from pipesched.executor import ExecutionError
from pipesched.executor.core import ModuleStage, Stage, shifted_name
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


def export_weights(path: Path | str, modules: Iterable[nn.Module], bounds: Sequence[tuple[int, int]]) -> None:
    """Write the weights of the whole model as one file: the state dict of all its layers in a row.

    A tensor is called as in ``torch.nn.Sequential(*layers).state_dict()``: ``3.weight`` is the weight of layer 3.

    Args:
        path: A ``.safetensors`` file.
        modules: The stages, in order; each a row of layers.
        bounds: Half-open range of layers of every stage.

    Raises:
        ExecutionError: The file cannot be written.
    """
    tensors = {}
    for module, (first, _) in zip(modules, bounds, strict=True):
        for name, tensor in module.state_dict().items():
            tensors[shifted_name(name, first)] = tensor.detach().to("cpu", copy=True).contiguous()
    try:
        with whole_file(path) as temporary:
            save_file(tensors, str(temporary))
    except (ScheduleError, SafetensorError) as error:
        raise ExecutionError(f"export: {error}") from error
