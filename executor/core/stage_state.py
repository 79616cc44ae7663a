"""The state of a stage between two runs of lists, as tensors by name, for checkpoints.

    weights.NAME             parameter or buffer NAME, as ``torch.nn.Sequential`` of all the model's layers names it
    optimizer.NAME.KEPT      state KEPT of the optimizer for parameter NAME
    predictor.KEPT.I         other state KEPT of the predictor, for parameter I of the stage
    learning_rate.KEPT       number KEPT of the scheduler of the learning rate
    reference.I              parameter I of the reference model; with the first rank that averages the stage

Between two runs no micro-batch and no gradient is in flight, and the weights have one version. Names refer to the whole
model, so that weights and optimizer can be dealt to other stages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pipesched.executor import ExecutionError
from pipesched.executor.core.stage import ModuleStage
from pipesched.executor.core.weight_predictor import twin_of
from pipesched.schedules.common import shown

_OF_LAYERS = ("weights", "optimizer")
_LONGEST_NUMBER = 10
"""Digits of a layer number that is read."""


class StateError(ExecutionError):
    """A tensor of a state does not fit the stage.

    Args:
        name: Name of the tensor.
        problem: The actual and the expected tensor.
    """

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"tensor {shown(name)}: {problem}")
        self.name = name


class _Expected(NamedTuple):
    """An expected tensor and its group; tensors of a group are all present or all absent. Group None: required."""

    tensor: Tensor
    group: str | None


def stage_state(stage: ModuleStage, first_layer: int) -> dict[str, Tensor]:
    """Return copies, on the CPU, of all state that affects the further run of `stage`.

    Args:
        first_layer: The number of its first layer in the model.

    Raises:
        ExecutionError: The stage is in the middle of a computation, or its layers keep state other than tensors.
    """
    if any(parameter.grad is not None for parameter in stage.parameters):
        raise ExecutionError("got gradients that no Step has applied, expected none between two runs of the lists")
    weights = stage.module.state_dict().items()
    state: dict[str, object] = {f"weights.{shifted_name(name, first_layer)}": value for name, value in weights}
    if stage.optimizer is not None:
        numbers = _parameter_numbers(stage.module)
        kept = stage.optimizer.state_dict()["state"]
        for name, number in numbers.items():
            own = {key: value for key, value in kept.get(number, {}).items() if value is not None}
            state |= {f"optimizer.{shifted_name(name, first_layer)}.{key}": value for key, value in own.items()}
    if stage.weights.predictor is not None:
        state |= {f"predictor.{name}": value for name, value in stage.weights.predictor.state().items()}
    if stage.learning_rate is not None:
        state |= {f"learning_rate.{name}": value for name, value in stage.learning_rate.state().items()}
    if stage.averager is not None:
        state |= {f"reference.{number}": value for number, value in enumerate(stage.averager.held_reference())}
    return {name: _copied(name, value) for name, value in state.items()}


def shifted_name(name: str, by: int) -> str:
    """Return the name of a tensor with its layer number increased by `by`: ``3.weight`` for ``0.weight``."""
    layer, _, rest = name.partition(".")
    return f"{int(layer) + by}.{rest}"


def _copied(name: str, value: object) -> Tensor:
    if not isinstance(value, Tensor):
        raise ExecutionError(
            f"{name}: got {type(value).__name__}, expected a tensor, the only kind of value in such a file"
        )
    return value.detach().to("cpu", copy=True).contiguous()


def load_stage_state(
    stage: ModuleStage, first_layer: int, state: Mapping[str, Tensor], *, has_reference: bool = False
) -> None:
    """Load `state`, from `stage_state` of this stage or of all stages that have its layers.

    Args:
        first_layer: The number of its first layer in the model.
        state: The state; layers that the stage does not have are left out.
        has_reference: Whether it contains the reference model of the stage.

    Raises:
        StateError: A tensor is missing, unexpected, or has another shape or type; nothing is loaded.
    """
    own = {name: tensor for name, tensor in state.items() if not _is_elsewhere(name, stage, first_layer)}
    _require_expected(own, _expected_state(stage, first_layer, has_reference=has_reference))
    parts: defaultdict[str, dict[str, Tensor]] = defaultdict(dict)
    kept: defaultdict[int, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in own.items():
        part, _, rest = name.partition(".")
        parts[part][shifted_name(rest, -first_layer) if part in _OF_LAYERS else rest] = tensor
    stage.module.load_state_dict(parts["weights"])
    numbers = _parameter_numbers(stage.module)
    for name, tensor in parts["optimizer"].items():
        parameter, _, key = name.rpartition(".")
        kept[numbers[parameter]][key] = tensor
    if stage.optimizer is not None:
        groups = stage.optimizer.state_dict()["param_groups"]
        stage.optimizer.load_state_dict({"state": dict(kept), "param_groups": groups})
    if stage.weights.predictor is not None:
        stage.weights.predictor.load_state(parts["predictor"])
    if stage.learning_rate is not None:
        stage.learning_rate.load_state(parts["learning_rate"])
    references = parts["reference"]
    stage.first_reference = [references[str(number)] for number in range(len(references))] or None


def _parameter_numbers(module: nn.Module) -> dict[str, int]:
    """Return the number of each parameter in the optimizer, by name; a shared parameter has several names."""
    numbers = {parameter: number for number, parameter in enumerate(module.parameters())}
    return {name: numbers[parameter] for name, parameter in module.named_parameters(remove_duplicate=False)}


def _is_elsewhere(name: str, stage: ModuleStage, first_layer: int) -> bool:
    """Return whether a tensor belongs to a layer that the stage does not have."""
    part, layer = (*name.split("."), "")[:2]
    number = layer_number(layer) if part in _OF_LAYERS else None
    return number is not None and not 0 <= number - first_layer < len(list(stage.module.children()))


def layer_number(text: str) -> int | None:
    """Return the number of a layer in the name of a tensor, or None for another text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < _LONGEST_NUMBER else None


def _expected_state(stage: ModuleStage, first_layer: int, *, has_reference: bool) -> dict[str, _Expected]:
    """Return the state that `stage` may have, once all of its parameters have had gradients.

    A twin without memory takes a step, so that PyTorch itself defines the state of the optimizer.
    """
    weights = stage.module.state_dict()
    tensors = {f"weights.{shifted_name(name, first_layer)}": tensor for name, tensor in weights.items()}
    expected = {name: _Expected(tensor, None) for name, tensor in tensors.items()}
    if stage.optimizer is not None:
        copies: dict[Tensor, Tensor] = {
            parameter: _without_memory(parameter) for parameter in stage.module.parameters()
        }
        twin = twin_of(stage.optimizer, copies)
        predictor = None if stage.weights.predictor is None else stage.weights.predictor.twin(twin)
        if predictor is not None:
            predictor.observe()
        twin.step()
        for name, parameter in stage.module.named_parameters(remove_duplicate=False):
            of_parameter = f"optimizer.{shifted_name(name, first_layer)}"
            for key, value in twin.state.get(copies[parameter], {}).items():
                if isinstance(value, Tensor):
                    expected[f"{of_parameter}.{key}"] = _Expected(value, of_parameter)
        for name, tensor in ({} if predictor is None else predictor.state()).items():
            expected[f"predictor.{name}"] = _Expected(tensor, f"predictor.{name.rpartition('.')[2]}")
    if stage.learning_rate is not None:
        rates = stage.learning_rate.state()
        expected |= {f"learning_rate.{name}": _Expected(tensor, None) for name, tensor in rates.items()}
    if has_reference:
        expected |= {f"reference.{i}": _Expected(tensor, None) for i, tensor in enumerate(stage.parameters)}
    return expected


def _without_memory(parameter: nn.Parameter) -> nn.Parameter:
    """Return a parameter of the same shape and type without memory, with a gradient if it learns."""
    twin = nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad)
    if parameter.requires_grad:
        twin.grad = torch.empty_like(twin)
    return twin


def _require_expected(state: Mapping[str, Tensor], expected: Mapping[str, _Expected]) -> None:
    """Refuse a state with other tensors than expected; a group may be absent as a whole.

    Raises:
        StateError: Names the first tensor that differs.
    """
    begun = {expected[name].group for name in state if name in expected}
    for name, tensor in state.items():
        if name not in expected:
            missed = next((other for other in expected if other not in state), None)
            advice = f"; the state lacks {missed}: is the name misspelled?" if missed else ""
            raise StateError(name, f"got a tensor of this name, expected none{advice}")
        right = expected[name].tensor
        if (tensor.shape, tensor.dtype) != (right.shape, right.dtype):
            raise StateError(name, f"got {tensor_form(tensor)}, expected {tensor_form(right)}")
    for name, (tensor, group) in expected.items():
        if name not in state and (group is None or group in begun):
            raise StateError(name, f"got no tensor of this name, expected {tensor_form(tensor)}")


def tensor_form(tensor: Tensor) -> str:
    """Return type and shape of a tensor, for messages."""
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
