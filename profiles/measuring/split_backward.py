"""A backward in two halves: I for the gradient of the input, W for the gradients of the weights.

The split (arXiv:2401.10241, section 2) uses two functions of PyTorch's pipeline runtime. They are private, so only this
file uses them, and its tests pin their behaviour. `run_input_pass` keeps the gradients that arrive at the ops with
parameters; `run_weight_pass` starts from these gradients. Between the two, PyTorch keeps the graph below the topmost of
these ops, with its saved tensors, and frees the graph above.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from pipesched.profiles import ProfileError

Rest: TypeAlias = list[dict[str, Any]]
"""State from I to W: for each group of parameters the ops that use them, and the gradients that arrived there."""

_IS_RIGHT_FOR_REUSE = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
"""Earlier versions of torch sum wrongly in W if a parameter has several ops, or an op several outputs."""


class _Output(GradientEdge):
    """An edge that acts as the stage's output for PyTorch, so that the output itself need not be kept."""

    requires_grad = True

    @property
    def grad_fn(self) -> torch.autograd.graph.Node:
        return self.node

    def detach_(self) -> None:
        """Do nothing: the caller drops the edge."""


def run_input_pass(
    output: Tensor | GradientEdge, gradient: Tensor, x: Tensor, parameters: Sequence[nn.Parameter]
) -> Rest:
    """Run I: set the gradient of `x`, and return the rest for `run_weight_pass`.

    Args:
        output: The stage's output for `x`, or the edge at the start of its graph.
        gradient: Gradient of the stage's output.
        x: The stage's input; a leaf that requires a gradient.
        parameters: Parameters of the stage.

    Raises:
        ProfileError: The output does not depend on `x`, or PyTorch cannot split this graph.
    """
    edge = _Output(*(get_gradient_edge(output) if isinstance(output, Tensor) else output))
    try:
        _, rest = stage_backward_input([edge], [gradient], [x], iter(parameters))  # type: ignore[list-item]  # as good as one
    except RuntimeError as error:  # PyTorch's message has the reason and many lines of its own arguments
        reason = str(error.__cause__ or error).strip().partition("\n")[0]
        raise ProfileError(f"the backward for the input failed: {reason}") from error
    if x.grad is None:
        raise ProfileError("the output does not depend on the input, expected it to; a stage cannot be cut off there")
    _require_possible(rest)
    return rest


def run_weight_pass(rest: Rest, parameters: Sequence[nn.Parameter]) -> None:
    """Run W: add to the gradients of `parameters`; `rest`, from `run_input_pass`, cannot be used again."""
    fresh = [parameter for parameter in parameters if parameter.grad is None]
    foreign = {_address(gradient) for gradient in kept_gradients(rest)} if fresh else set()
    # a group may need tensors saved by another group's ops if ops share a parameter
    is_shared = any(len(group["intermediates"]) > 1 for group in rest)
    stage_backward_weight(iter(parameters), rest, retain_graph=is_shared)
    _own(fresh, foreign)


def kept_gradients(rest: Rest) -> Iterator[Tensor]:
    """Yield the gradients that wait for W."""
    for group in rest:
        yield from (gradient for arrived in group["grads"] for gradient in arrived if gradient is not None)


def _require_possible(rest: Rest) -> None:
    """Refuse the graphs for which PyTorch's W would be wrong."""
    uses = Counter(parameter for group in rest for parameter in group["params"])
    is_possible = all(count == 1 for count in uses.values())
    if not _IS_RIGHT_FOR_REUSE:
        for group in rest:
            many = len(group["intermediates"]) > 1 or any(
                g is not None for arrived in group["grads"] for g in arrived[1:]
            )
            is_possible = is_possible and not many
            group["grads"] = [arrived[:1] for arrived in group["grads"]]  # torch 2.6 accepts no further ones, even None
    if not is_possible:
        raise ProfileError(
            f"a parameter is used by several ops in a way that torch {torch.__version__} cannot split into I and W; "
            "use a schedule with B" + ("" if _IS_RIGHT_FOR_REUSE else ", or torch 2.13")
        )


def _own(parameters: Sequence[nn.Parameter], foreign: set[int]) -> None:
    """Give each of `parameters` a separate gradient to add to.

    The gradients of PyTorch's W may share memory: one may be the gradient that arrived, another parameter's, or a view.
    """
    taken = set(foreign)
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if _address(parameter.grad) in taken or parameter.grad.stride() != parameter.stride():
            parameter.grad = torch.empty_like(parameter).copy_(parameter.grad).detach()
        taken.add(_address(parameter.grad))


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
