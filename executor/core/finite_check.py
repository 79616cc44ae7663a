"""The check that all numbers of a run are finite: activations, losses and gradients, op by op."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from pipesched.executor import ExecutionError
from pipesched.executor.core.stage import ModuleStage, Stage
from pipesched.schedules.ops import Compute, Phase


def check_finite(op: Compute, stage: Stage) -> Callable[[Tensor | None], None]:
    """Return a `Probe` that refuses NaN and infinity in the results of `op`.

    Every op is checked, so the first refused op is the origin. The host waits for a GPU once after each op.

    Raises:
        ExecutionError: By the returned function; names the tensor and the invalid value.
    """

    def check(result: Tensor | None) -> None:
        made = [*_made(op, stage, result)]
        are_finite = torch.stack([torch.isfinite(tensor).all() for _, tensor in made]).tolist() if made else []
        for (name, tensor), is_finite in zip(made, are_finite, strict=True):
            if not is_finite:
                what = "NaN" if bool(torch.isnan(tensor).any()) else "infinity"
                raise ExecutionError(
                    f"got {what} in {name} of stage {op.stage}, the first of this run, expected finite numbers; try a "
                    "smaller lr, or another dtype"
                )

    return check


def _made(op: Compute, stage: Stage, result: Tensor | None) -> Iterator[tuple[str, Tensor]]:
    """Yield the results of `op` with their names."""
    is_forward = op.phase in (Phase.FORWARD, Phase.RECOMPUTE)
    if result is not None and result.is_floating_point():
        yield ("the output" if is_forward else "the gradient of the input"), result.detach()
    if not isinstance(stage, ModuleStage):
        return
    if op.phase is Phase.FORWARD and stage.last_loss is not None:
        yield "the loss", stage.last_loss
    if not is_forward:
        for name, parameter in stage.module.named_parameters():
            if parameter.grad is not None:
                yield f"the gradient of {name}", parameter.grad
