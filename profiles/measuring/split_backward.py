"""A backward in two halves: I for the gradients of the inputs, W for the gradients of the weights.

The split (arXiv:2401.10241, section 2) uses `stage_backward_input` of PyTorch's pipeline runtime. This function is
private: only this file uses it, and the tests of this file pin its behaviour. `run_input_pass` keeps the gradients that
arrive at the ops with parameters; `run_weight_pass` starts from these gradients. Between the two, PyTorch keeps the
graph below the topmost of these ops, with its saved tensors, and frees the graph above. An output that depends on no
input, such as a bias made of parameters, has no part in I: its backward waits for W.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.distributed.pipelining._backward import stage_backward_input

from pipesched.profiles import ProfileError


class Rest(NamedTuple):
    """State from I to W.

    Attributes:
        groups: For each group of parameters the ops that use them, and the gradients that arrived there.
        apart: The outputs that depend on no input, each with its gradient.
    """

    groups: list[dict[str, Any]]
    apart: list[tuple[GradientEdge, Tensor]]


_INDEPENDENT = "the output does not depend on the input, expected an output that does; cut the stage elsewhere"


class _Output(GradientEdge):
    """An edge that acts as the stage's output for PyTorch, so that the output itself need not be kept."""

    requires_grad = True

    @property
    def grad_fn(self) -> torch.autograd.graph.Node:
        return self.node

    def detach_(self) -> None:
        """Do nothing: the caller drops the edge."""


def run_input_pass(
    outputs: Sequence[Tensor | GradientEdge],
    gradients: Sequence[Tensor],
    xs: Sequence[Tensor],
    parameters: Sequence[nn.Parameter],
) -> Rest:
    """Run I: set the gradients of `xs`, and return the rest for `run_weight_pass`.

    The gradient of an input on which no output depends stays None.

    Args:
        outputs: The stage's outputs that require gradients, or the edges at the start of their graphs.
        gradients: Gradient of each output.
        xs: The stage's inputs that require gradients; leaves.
        parameters: Parameters of the stage that require gradients.

    Raises:
        ProfileError: No output depends on an input, or PyTorch cannot split this graph.
    """
    edges = [_Output(*(get_gradient_edge(y) if isinstance(y, Tensor) else y)) for y in outputs]
    arrived, apart, reached = [*zip(edges, gradients, strict=True)], [], list(xs)
    if len(edges) + len(xs) > 2:
        below = _depending(edges, {get_gradient_edge(x).node for x in xs})
        apart = [(GradientEdge(*edge), gradient) for edge, gradient in arrived if edge.node not in below]
        arrived = [(edge, gradient) for edge, gradient in arrived if edge.node in below]
        reached = [x for x in xs if get_gradient_edge(x).node in below]  # torch before 2.13 fails at any other
    if not reached:
        raise ProfileError(_INDEPENDENT)
    try:
        _, groups = stage_backward_input(
            cast("list[Tensor]", [edge for edge, _ in arrived]),  # as good as tensors here
            [gradient for _, gradient in arrived],
            reached,
            iter(parameters),
        )
    except RuntimeError as error:  # PyTorch's message has the reason and many lines of its own arguments
        reason = str(error.__cause__ or error).strip().partition("\n")[0]
        raise ProfileError(f"the backward for the input failed: {reason}") from error
    if all(x.grad is None for x in xs):
        raise ProfileError(_INDEPENDENT)
    _require_possible(groups)
    return Rest(groups, apart)


def run_weight_pass(rest: Rest, parameters: Sequence[nn.Parameter]) -> None:
    """Run W: add to the gradients of `parameters`; `rest`, from `run_input_pass`, cannot be used again."""
    fresh = [parameter for parameter in parameters if parameter.grad is None]
    foreign = {_address(gradient) for gradient in kept_gradients(rest)} if fresh else set()
    groups, apart = rest
    # a group may need tensors saved by another group's ops if ops share a parameter, or an output is apart
    is_shared = bool(apart) or any(len(group["intermediates"]) > 1 for group in groups)
    owners = {get_gradient_edge(parameter).node: parameter for parameter in parameters}
    while groups:
        _run_group(groups.pop(), owners, is_shared)
    _own(fresh, foreign)
    if apart:
        edges, gradients = zip(*apart, strict=True)
        late = [parameter for parameter in parameters if parameter.grad is None]
        _add(parameters, torch.autograd.grad(edges, parameters, gradients, allow_unused=True))
        _own(late, foreign)


def _run_group(group: dict[str, Any], owners: Mapping[Node, nn.Parameter], keeps_graph: bool) -> None:
    """Add to the gradients of a group's parameters, from the gradients that arrived at its ops."""
    arrived = [*zip(group["intermediates"], group["grads"], strict=True)]
    starts = [
        (GradientEdge(op, place), gradient)
        for op, kept in arrived
        for place, gradient in enumerate(kept)
        if gradient is not None
    ]
    if not starts:
        return
    edges, gradients = zip(*starts, strict=True)
    # what arrived in I is complete: users' hooks have changed it, and it contains the gradients from the other ops
    hooks = [op.register_prehook(lambda _, kept=kept: kept) for op, kept in arrived]
    try:
        ends = [GradientEdge(node, 0) for node in group["params"]]
        added = torch.autograd.grad(edges, ends, gradients, retain_graph=keeps_graph, allow_unused=True)
        _add([owners[node] for node in group["params"]], added)
    finally:
        for hook in hooks:
            hook.remove()


def _add(parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor | None]) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None and parameter.grad is not None:
            parameter.grad += gradient
        elif gradient is not None:
            parameter.grad = gradient


def kept_gradients(rest: Rest) -> Iterator[Tensor]:
    """Yield the gradients that wait for W."""
    for group in rest.groups:
        yield from (gradient for arrived in group["grads"] for gradient in arrived if gradient is not None)
    yield from (gradient for _, gradient in rest.apart)


def _depending(edges: Sequence[GradientEdge], targets: set[Node]) -> set[Node]:
    """Return the nodes of the graph behind `edges` from which a path leads to one of `targets`."""
    above: dict[Node, list[Node]] = {edge.node: [] for edge in edges}
    left = [*above]
    while left:
        node = left.pop()
        for following, _ in node.next_functions:
            if following is None:
                continue
            if following not in above:
                above[following] = []
                left.append(following)
            above[following].append(node)
    depending = targets & above.keys()
    left = [*depending]
    while left:
        new = set(above[left.pop()]) - depending
        depending |= new
        left += new
    return depending


def _require_possible(groups: Sequence[dict[str, Any]]) -> None:
    """Refuse the graphs for which W would be wrong: PyTorch has then put a parameter into several groups."""
    uses = Counter(parameter for group in groups for parameter in group["params"])
    if any(count > 1 for count in uses.values()):
        raise ProfileError(
            "a parameter is used by several ops in a way that PyTorch cannot split into I and W; use a schedule with B"
        )


def _own(parameters: Sequence[nn.Parameter], foreign: set[int]) -> None:
    """Give each of `parameters` a separate gradient to add to.

    The gradients of W may share memory: one may be the gradient that arrived, another parameter's, or a view.
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
