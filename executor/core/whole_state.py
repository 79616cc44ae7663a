"""The state of the whole model: its weights and buffers by name, in and out of the stages that have them.

A name is the name in the state dict of the whole module: `Model.state_names` has these names, else it is ``3.weight``
for ``weight`` of layer 3, as in ``torch.nn.Sequential(*layers)``. A tensor that has several names is in a state under
each of them; one of them is enough to load it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias, final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from pipesched.executor import ExecutionError
from pipesched.executor.core.stage_state import StateError, layer_number, shifted_name, tensor_form
from pipesched.profiles.models import Model
from pipesched.schedules.common import shown

_Bounds: TypeAlias = Sequence[tuple[int, int]]
"""Half-open range of layers of each stage."""


def whole_state(model: Model, bounds: _Bounds, stages: Mapping[int, nn.Module]) -> dict[str, Tensor]:
    """Return the part of the whole model's state that `stages` have, without copies.

    Args:
        model: The model.
        bounds: Half-open range of layers of each stage.
        stages: Some or all stages, by number.

    Raises:
        ExecutionError: A layer keeps state other than tensors.
    """
    held = _tensors_of(model, bounds, stages)
    names = {name: name for name in held} if model.state_names is None else model.state_names
    return {name: held[own][0] for name, own in names.items() if own in held}


def load_whole_state(
    model: Model, bounds: _Bounds, stages: Mapping[int, nn.Module], state: Mapping[str, Tensor]
) -> None:
    """Load the weights and buffers of `stages` from the state of the whole model; other tensors are not read.

    Numbers get the types that the stages have.

    Args:
        model: The model.
        bounds: Half-open range of layers of each stage.
        stages: Some or all stages, by number.
        state: The state of the whole module; a `WeightFile` reads only the tensors of these stages.

    Raises:
        StateError: A tensor is missing, unexpected, or has another shape, or two names of one tensor have different
            numbers. Some tensors may be loaded then.
    """
    held = _tensors_of(model, bounds, stages)
    _require_known(model, bounds, stages, held, state)
    for own, names in _names_of(model, held).items():
        given = [name for name in names if name in state]
        if not given:
            raise StateError(own, f"got no tensor of this name, expected {tensor_form(held[own][0])}")
        first = state[given[0]]
        for name in given[1:]:
            if not torch.equal(state[name], first):
                raise StateError(
                    name,
                    (
                        f"got other numbers than in {shown(given[0])}, expected equal numbers, as the model "
                        "ties the two; untie them"
                    ),
                )
        for tensor in held[own]:
            if tensor.shape != first.shape:
                raise StateError(given[0], f"got {tensor_form(first)}, expected {tensor_form(tensor)}")
            tensor.copy_(first)  # a state dict has detached tensors


def _tensors_of(model: Model, bounds: _Bounds, stages: Mapping[int, nn.Module]) -> dict[str, list[Tensor]]:
    """Return the tensors of `stages` by their names in layers; a tensor of several layers may have copies."""
    held = defaultdict[str, list[Tensor]](list)
    for number, module in stages.items():
        for name, tensor in module.state_dict().items():
            if not isinstance(tensor, Tensor):
                raise ExecutionError(
                    f"{name}: got {type(tensor).__name__}, expected a tensor, the only kind of value in such a file"
                )
            held[_in_model(model, shifted_name(name, bounds[number][0]))].append(tensor)
    return held


def _in_model(model: Model, name: str) -> str:
    """Return the name in the model of ``LAYER.NAME``."""
    return name if model.state_names is None else name.partition(".")[2]


def _names_of(model: Model, held: Collection[str]) -> Mapping[str, Sequence[str]]:
    """Return, for each tensor of layers, all names in the state of the model that it may have, its own first."""
    names = {own: [own] for own in held if model.state_names is None}
    for name, own in (model.state_names or {}).items():
        if own in held:
            names.setdefault(own, []).append(name)
    for tie in model.ties:
        places = [_in_model(model, f"{layer}.{name}") for layer, name in tie]
        for own in {*places} & names.keys():
            aliases = (
                places if model.state_names is None else [n for n, to in model.state_names.items() if to in places]
            )
            names[own] = list(dict.fromkeys([*names[own], *aliases]))
    return names


def _require_known(
    model: Model, bounds: _Bounds, stages: Mapping[int, nn.Module], held: Collection[str], state: Collection[str]
) -> None:
    """Refuse names that the model does not have, as far as the layers of `stages` show that."""
    own = {layer for number in stages for layer in range(*bounds[number])}
    for name in state:
        if model.state_names is not None:
            is_known = name in model.state_names
        else:
            number = layer_number(name.partition(".")[0])
            is_known = name in held if number in own else number is not None and number < len(model.layers)
        if not is_known:
            missing = next((other for other in held if other not in state), None)
            hint = "" if missing is None else f"; the state lacks {shown(missing)}: is the name misspelled?"
            raise StateError(name, f"got a tensor of this name, expected none{hint}")


@final
class WeightFile(Mapping[str, Tensor]):
    """The tensors of an open safetensors file; each is read when it is looked up. See `weight_file`.

    Args:
        file: An open file, as by ``safetensors.safe_open``.
    """

    def __init__(self, file: safe_open) -> None:
        self._file = file
        self._names = dict.fromkeys(file.keys())  # type: ignore[no-untyped-call]  # safetensors leaves it untyped

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        tensor: Tensor = self._file.get_tensor(name)  # type: ignore[no-untyped-call]
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@contextmanager
def weight_file(path: Path | str) -> Iterator[WeightFile]:
    """Open a safetensors file; errors inside the block, and of the file, name it.

    Raises:
        ExecutionError: The file is missing or damaged, or a tensor does not fit.
    """
    try:
        with safe_open(path, framework="pt") as file:
            yield WeightFile(file)
    except (OSError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise ExecutionError(f"weights: {path}: got {reason}, expected a safetensors file; check the path") from error
    except StateError as error:
        raise ExecutionError(f"weights: {path}: {error}; try the state dict of the same model") from error
