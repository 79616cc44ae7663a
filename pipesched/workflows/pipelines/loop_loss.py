"""The loss of a loop, as the model of the loop calls it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, final

import torch
from torch import Tensor

from pipesched.executor.core import loss_fault
from pipesched.profiles.models import Structure, flattened, tensors_of
from pipesched.workflows import ArgumentError


@final
class LoopLoss:
    """A loss function that takes the targets in the structure of the batch.

    Args:
        loss: The user's function of (outputs, targets), or None where the outputs contain the loss.
        device: Device of the last stage.
        autocast: Type in which autocast runs the loss, or None without autocast.

    Attributes:
        targets: The structure of the targets of the present batch.
        returns_outputs: Whether a call returns the outputs, as the module gives them, in place of their loss.
    """

    def __init__(
        self, loss: Callable[[Any, Any], Tensor] | None, device: torch.device, autocast: torch.dtype | None
    ) -> None:
        self._loss = loss
        self._casting = torch.autocast(device.type, autocast, enabled=autocast is not None)
        self._casts = autocast is not None
        self.targets = Structure(None)
        self.returns_outputs = False

    @property
    def needs_targets(self) -> bool:
        """Whether a batch has targets."""
        return self._loss is not None

    def __call__(self, outputs: Any, targets: Any) -> Any:
        if self.returns_outputs:
            return outputs
        with self._casting if self._casts else nullcontext():
            loss = own_loss(outputs) if self._loss is None else self._loss(outputs, self.targets.restored(targets))
        if (fault := loss_fault(loss)) is not None:
            raise ArgumentError(fault)
        if torch.is_grad_enabled() and not loss.requires_grad and requires_gradient(outputs):
            raise ArgumentError(
                "loss: got a tensor without a gradient, expected a loss that depends on the outputs; leave out "
                "detach() and no_grad()"
            )
        return loss


def requires_gradient(outputs: Any) -> bool:
    """Return whether a tensor among the outputs of a module requires a gradient."""
    return any(tensor.requires_grad for tensor in tensors_of(flattened(outputs)[0]))


def own_loss(outputs: Any) -> Any:
    """Return the loss among the outputs of a module: its ``loss``, or the outputs themselves."""
    return outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", outputs)
