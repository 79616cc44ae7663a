"""The state of a stage between two runs of lists, as tensors by name: what a checkpoint holds of it.

    weights.NAME             parameter or buffer NAME, as ``torch.nn.Sequential`` of all the model's layers names it
    optimizer.NAME.KEPT      what the optimizer keeps of parameter NAME
    predictor.KEPT.I         what the predictor keeps beside it, of parameter I of the stage
    reference.I              parameter I of the reference model; with the first rank that averages the stage

Nothing is in flight there: no micro-batch, no gradient, and the weights have one version. Names are those of the whole
model, so that weights and optimizer can be dealt to other stages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from torch import Tensor

from pipesched.executor import ExecutionError
from pipesched.executor.core.stage import ModuleStage


def stage_state(stage: ModuleStage, first_layer: int) -> dict[str, Tensor]:
    """Return copies of all that decides how `stage` goes on, on the CPU.

    Args:
        stage: The stage.
        first_layer: The number of its first layer in the model.

    Raises:
        ExecutionError: It is in the middle of something, or its layers keep what is no tensor.
    """
    if any(parameter.grad is not None for parameter in stage.parameters):
        raise ExecutionError("got gradients that no Step has taken, expected none between two runs of the lists")
    weights = stage.module.state_dict().items()
    state: dict[str, object] = {f"weights.{shifted_name(name, first_layer)}": value for name, value in weights}
    if stage.optimizer is not None:
        names = [shifted_name(name, first_layer) for name, _ in stage.module.named_parameters()]
        for number, kept in stage.optimizer.state_dict()["state"].items():
            state |= {f"optimizer.{names[number]}.{key}": value for key, value in kept.items() if value is not None}
    if stage.weights.predictor is not None:
        state |= {f"predictor.{name}": value for name, value in stage.weights.predictor.state().items()}
    if stage.averager is not None:
        state |= {f"reference.{number}": value for number, value in enumerate(stage.averager.held_reference())}
    return {name: _copied(name, value) for name, value in state.items()}


def shifted_name(name: str, by: int) -> str:
    """Return the name of a tensor whose layer has another number, by so much more: ``3.weight`` for ``0.weight``."""
    layer, _, rest = name.partition(".")
    return f"{int(layer) + by}.{rest}"


def _copied(name: str, value: object) -> Tensor:
    if not isinstance(value, Tensor):
        raise ExecutionError(f"{name}: got {type(value).__name__}, expected a tensor, which a file can hold")
    return value.detach().to("cpu", copy=True).contiguous()


def load_stage_state(stage: ModuleStage, first_layer: int, state: Mapping[str, Tensor]) -> None:
    """Let `stage` go on from `state`, which `stage_state` has given, of this stage or of all that have its layers.

    Args:
        stage: The stage.
        first_layer: The number of its first layer in the model.
        state: The state; layers that the stage does not have are left out.

    Raises:
        ExecutionError: It is that of another stage.
    """
    parts: defaultdict[str, dict[str, Tensor]] = defaultdict(dict)
    own = range(first_layer, first_layer + len(list(stage.module.children())))
    kept: defaultdict[int, dict[str, Tensor]] = defaultdict(dict)
    try:
        for name, tensor in state.items():
            part, _, rest = name.partition(".")
            if part not in ("weights", "optimizer"):
                parts[part][rest] = tensor
            elif int(rest.partition(".")[0]) in own:
                parts[part][shifted_name(rest, -first_layer)] = tensor
        stage.module.load_state_dict(parts["weights"])
        numbers = {name: number for number, (name, _) in enumerate(stage.module.named_parameters())}
        for name, tensor in parts["optimizer"].items():
            parameter, _, key = name.rpartition(".")
            kept[numbers[parameter]][key] = tensor
        if stage.optimizer is not None:
            groups = stage.optimizer.state_dict()["param_groups"]
            stage.optimizer.load_state_dict({"state": dict(kept), "param_groups": groups})
        if stage.weights.predictor is not None:
            stage.weights.predictor.load_state(parts["predictor"])
    except (RuntimeError, ValueError, LookupError) as error:
        raise ExecutionError(" ".join(str(error).split())[:300]) from error
    references = parts["reference"]
    stage.first_reference = [references[str(number)] for number in range(len(references))] or None
