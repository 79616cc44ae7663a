"""One stage of the model: its layers, and what its micro-batches left behind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from executor.errors import ExecutionError
from executor.weights import Weights
from schedules.op import Compute, Phase

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Maps (output, target) of one micro-batch to its mean loss, a scalar."""

_BACKWARD_TAKES_EDGES = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 7)


class Stage(ABC):
    """What an interpreter can ask of a stage."""

    @abstractmethod
    def begin(self) -> None:
        """Start the op list anew."""

    @abstractmethod
    def compute(self, op: Compute, received: Tensor | None, target: Tensor | None) -> Tensor | None:
        """Run `op` and return the tensor that it gives.

        Args:
            op: What to run.
            received: For F the stage's input, for B and I the gradient of its output (None on the last stage).
            target: For F of the last stage, what the loss compares with.
        """

    @abstractmethod
    def step(self) -> None:
        """Step the optimizer and drop the gradients."""

    def resident_bytes(self) -> int:
        """Return the bytes of weights, gradients and optimizer state held now."""
        return 0

    def losses(self) -> dict[int, float]:
        """Return the mean loss of every micro-batch since `begin`; empty on all stages but the last."""
        return {}


class ModuleStage(Stage):
    """Layers on tensors.

    Args:
        module: The layers; one tensor in, one tensor out.
        weights: The versions of the module's parameters.
        optimizer: Of the module's parameters; None when it has none.
        loss: On the last stage.
        loss_scale: One over the micro-batches of an optimizer step: gradients are then those of the mean.
        needs_input_gradient: False on the first stage.
    """

    def __init__(
        self,
        module: nn.Module,
        weights: Weights,
        optimizer: torch.optim.Optimizer | None,
        loss: Loss | None,
        loss_scale: float,
        needs_input_gradient: bool,
    ) -> None:
        self.module = module
        self.weights = weights
        self._optimizer = optimizer
        self._loss = loss
        self._loss_scale = loss_scale
        self._needs_input_gradient = needs_input_gradient
        self._saved: dict[int, tuple[Tensor, Tensor | GradientEdge | None]] = {}
        self._losses: dict[int, Tensor] = {}

    def begin(self) -> None:
        self._saved.clear()
        self._losses.clear()
        self.weights.begin()

    def compute(self, op: Compute, received: Tensor | None, target: Tensor | None) -> Tensor | None:
        if op.lookahead:
            raise ExecutionError(f"{op}: weights predicted ahead are not executed yet; name a version that is there")
        match op.phase:
            case Phase.FORWARD:
                assert received is not None, "a forward has an input"
                return self._forward(op, received, target)
            case Phase.BACKWARD:
                return self._backward(op, received)
            case Phase.BACKWARD_INPUT | Phase.BACKWARD_WEIGHT | Phase.RECOMPUTE:
                raise ExecutionError(f"{op}: a backward split into I and W, and recompute, are not executed yet; use B")

    def step(self) -> None:
        self.weights.step(self._optimizer)

    def resident_bytes(self) -> int:
        parameters = list(self.module.parameters())
        tensors = [*parameters, *(p.grad for p in parameters if p.grad is not None)]
        for state in self._optimizer.state.values() if self._optimizer else ():
            tensors += [value for value in state.values() if isinstance(value, Tensor)]
        return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())

    def losses(self) -> dict[int, float]:
        return {microbatch: loss.item() for microbatch, loss in self._losses.items()}

    def _forward(self, op: Compute, x: Tensor, target: Tensor | None) -> Tensor | None:
        x = x.detach()
        if self._needs_input_gradient:
            x.requires_grad_()
        with self.weights.forward(op.version):
            y = self.module(x)
            if not isinstance(y, Tensor):
                raise ExecutionError(f"{op}: the stage returned {type(y).__name__}, expected one tensor")
            if self._loss is not None:
                assert target is not None, "the last stage has a target"
                y = self._loss(y, target)
        if self._loss is not None:
            self._losses[op.microbatch] = y.detach().clone()  # mse_loss leaves a scalar in a storage of all terms
        self._saved[op.microbatch] = (x, _graph_of(y))
        return None if self._loss is not None else y.detach()

    def _backward(self, op: Compute, gradient: Tensor | None) -> Tensor | None:
        if op.microbatch not in self._saved:
            raise ExecutionError(f"{op}: got no forward of this micro-batch, expected one before its backward")
        x, output = self._saved.pop(op.microbatch)
        if self._loss is not None:
            # the mean over the micro-batches: scaled here, where it costs no op of its own
            gradient = torch.full_like(self._losses[op.microbatch], self._loss_scale)
        with self.weights.backward(op.version):
            if output is not None:
                torch.autograd.backward(output, gradient)
        return x.grad


def _graph_of(y: Tensor) -> Tensor | GradientEdge | None:
    """Return what a backward starts from: the graph without the output, which may be freed once it was sent."""
    if not y.requires_grad:
        return None  # a first stage without parameters has nothing to learn
    return get_gradient_edge(y) if _BACKWARD_TAKES_EDGES else y
