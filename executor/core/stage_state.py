"""The state of a stage between two runs of lists, as tensors by name: what a checkpoint holds of it.

    weights.NAME        parameters and buffers, as the module's ``state_dict`` names them
    optimizer.I.NAME    what the optimizer keeps of parameter I
    predictor.NAME.I    what the predictor keeps beside it
    reference.I         parameter I of the reference model; with the first rank that averages the stage

Nothing is in flight there: no micro-batch, no gradient, and the weights have one version.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from torch import Tensor

from pipesched.executor import ExecutionError
from pipesched.executor.core.stage import ModuleStage


def stage_state(stage: ModuleStage) -> dict[str, Tensor]:
    """Return copies of all that decides how `stage` goes on, on the CPU.

    Raises:
        ExecutionError: It is in the middle of something, or its layers keep what is no tensor.
    """
    if any(parameter.grad is not None for parameter in stage.parameters):
        raise ExecutionError("got gradients that no Step has taken, expected none between two runs of the lists")
    state: dict[str, object] = {f"weights.{name}": value for name, value in stage.module.state_dict().items()}
    if stage.optimizer is not None:
        for number, kept in stage.optimizer.state_dict()["state"].items():
            state |= {f"optimizer.{number}.{name}": value for name, value in kept.items() if value is not None}
    if stage.weights.predictor is not None:
        state |= {f"predictor.{name}": value for name, value in stage.weights.predictor.state().items()}
    if stage.averager is not None:
        state |= {f"reference.{number}": value for number, value in enumerate(stage.averager.held_reference())}
    return {name: _copied(name, value) for name, value in state.items()}


def _copied(name: str, value: object) -> Tensor:
    if not isinstance(value, Tensor):
        raise ExecutionError(f"{name}: got {type(value).__name__}, expected a tensor, which a file can hold")
    return value.detach().to("cpu", copy=True).contiguous()


def load_stage_state(stage: ModuleStage, state: Mapping[str, Tensor]) -> None:
    """Let `stage` go on from `state`, which `stage_state` has given.

    Raises:
        ExecutionError: It is that of another stage.
    """
    parts: defaultdict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in state.items():
        part, _, rest = name.partition(".")
        parts[part][rest] = tensor
    kept: defaultdict[int, dict[str, Tensor]] = defaultdict(dict)
    try:
        stage.module.load_state_dict(parts["weights"])
        for name, tensor in parts["optimizer"].items():
            number, _, rest = name.partition(".")
            kept[int(number)][rest] = tensor
        if stage.optimizer is not None:
            groups = stage.optimizer.state_dict()["param_groups"]
            stage.optimizer.load_state_dict({"state": dict(kept), "param_groups": groups})
        if stage.weights.predictor is not None:
            stage.weights.predictor.load_state(parts["predictor"])
    except (RuntimeError, ValueError, LookupError) as error:
        raise ExecutionError(" ".join(str(error).split())[:300]) from error
    references = parts["reference"]
    stage.first_reference = [references[str(number)] for number in range(len(references))] or None
