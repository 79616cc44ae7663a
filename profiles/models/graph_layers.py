"""A traced graph, cut into layers: the values that cross each cut, and a compiled function for each layer."""

from __future__ import annotations

import copy
import hashlib
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, cast, final

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate

from pipesched.profiles import ProfileError
from pipesched.profiles.models.aliases import Aliases
from pipesched.profiles.models.constants import Constants, placed_on
from pipesched.profiles.models.cut_points import MARK, CutRule, is_part, state_name
from pipesched.profiles.models.traced_lines import keep_users_lines

_DROPPED: Final = (MARK, torch.ops.aten._assert_tensor_metadata.default)  # noqa: SLF001 -- the op's name
"""Ops of a traced graph that no layer needs: marks, and checks of types that autocast may change."""
_GIVEN: Final = -1
"""The layer number of the inputs of the module: before the first."""

LayerFunction = Callable[..., tuple[Tensor, ...]]
"""A function of the tensors that enter a layer, then of the tensors of its state; the tensors that leave it."""


@final
class CutGraph:
    """The graph of a module for one batch size, number type and mode, cut into layers.

    Values that depend on no input and no state, such as position numbers, are computed once for each device.

    Args:
        module: The traced module.
        rule: Where to cut.
        state_names: The names of the parameters and buffers of the module.

    Attributes:
        names: The names of the layers.

    Raises:
        ProfileError: The graph cannot be cut.
    """

    def __init__(self, module: GraphModule, rule: CutRule, state_names: Iterable[str]) -> None:
        self._module = module
        self._state_names = frozenset(state_names)
        for node in module.graph.find_nodes(op="call_module", target="_guards_fn"):
            module.graph.erase_node(node)  # checks of the shapes of the inputs, which the tracer compares itself
        nodes = [node for node in module.graph.nodes if node.op == "call_function"]
        starts = rule.starts(nodes)
        self.names = tuple(start.name for start in starts)
        self._output = next(node for node in module.graph.nodes if node.op == "output")
        self._order = {node: index for index, node in enumerate(module.graph.nodes)}
        self._aliases = Aliases(module)
        changed = {root for node in nodes for root in self._aliases.changed_by(node)}
        self._constants = Constants(node for node in nodes if self._aliases.roots[node] not in changed)
        self._constants.use_causal_attention(nodes)
        self._layer_of = self._layers([start.node for start in starts], nodes)
        self._nodes: list[list[Node]] = [[] for _ in starts]
        for node in nodes:
            if node.target not in _DROPPED and node not in self._constants:
                self._nodes[self._layer_of[node]].append(node)
        self.entering = [self._entering(layer) for layer in range(len(starts))]
        self._require_own_buffers(changed)

    def _layers(self, starts: Sequence[int], nodes: Sequence[Node]) -> dict[Node, int]:
        layer_of = {node: _GIVEN for node in self._module.graph.nodes if node.op == "placeholder"}
        layer = -1
        for index, node in enumerate(nodes):
            layer += layer + 1 < len(starts) and index == starts[layer + 1]
            # the parts of a tuple belong to the layer that makes the tuple
            layer_of[node] = layer_of[node.all_input_nodes[0]] if is_part(node) else layer
        return layer_of

    def _require_own_buffers(self, changed: Iterable[Node]) -> None:
        """Refuse a buffer that a layer changes and another uses: the stages of the layers may have a copy each."""
        for root in changed:
            if root.op == "get_attr":
                views = [node for node, other in self._aliases.roots.items() if other is root]
                users = {user for view in views for user in view.users if user in self._layer_of}
                layers = sorted({self._layer_of[user] for user in users})
                if len(layers) > 1:
                    raise ProfileError(
                        f"buffer {state_name(root)}: got changes in place that layers {self.names[layers[0]]} and "
                        f"{self.names[layers[1]]} share, expected a buffer of one layer; give each layer a buffer of "
                        "its own, or cut elsewhere"
                    )

    def _entering(self, layer: int) -> list[Node]:
        """Return the values that a layer receives: all that it or a later layer uses, in the order of the graph."""
        if layer == 0:
            return [node for node in self._module.graph.nodes if node.op == "placeholder"]
        last = len(self._nodes) - 1
        return [
            node
            for node, maker in self._layer_of.items()
            if maker < layer
            and node not in self._constants
            and any(self._layer_of.get(user, last) >= layer for user in node.users if user.target not in _DROPPED)
        ]

    def shapes(self, layer: int) -> list[torch.Size]:
        """Return the shapes of the tensors that enter a layer."""
        return [node.meta["val"].shape for node in self.entering[layer]]

    def restored_output(self, leaves: Sequence[Tensor]) -> Any:
        """Return the output of the module from the tensors that leave the last layer."""
        left = iter(leaves)
        flat = [next(left) if isinstance(item, Node) else item for item in cast(Sequence[Any], self._output.args[0])]
        return self._module.graph.process_outputs(flat)

    @property
    def num_outputs(self) -> int:
        """The number of tensors of the output of the module."""
        return len(self._leaving(len(self._nodes) - 1))

    def _leaving(self, layer: int) -> list[Node]:
        if layer + 1 < len(self._nodes):
            return self.entering[layer + 1]
        return [item for item in cast(Sequence[Any], self._output.args[0]) if isinstance(item, Node)]

    def uses(self, layer: int) -> list[tuple[Node, Node]]:
        """Return (reading node, get_attr node) for each use of a parameter or buffer in a layer."""
        last = [self._output] if layer == len(self._nodes) - 1 else []
        return [
            (node, used)
            for node in [*self._nodes[layer], *last]
            for used in node.all_input_nodes
            if used.op == "get_attr" and state_name(used) in self._state_names
        ]

    def kind(self, layer: int) -> str:
        """Return a hash of the operations of a layer, without names; equal layers have the same.

        Entering values, results and state tensors are numbered within the layer. Only the shape, dtype
        and `requires_grad` of a state tensor count.
        """
        texts = {node: f"entering {number}" for number, node in enumerate(self.entering[layer])}
        states: dict[str, int] = {}

        def text(node: Node) -> str:
            if node not in texts and node.op == "get_attr":
                texts[node] = str(node.target)  # the body of a block in another mode has no equal
                value = operator.attrgetter(str(node.target))(self._module)
                if isinstance(value, Tensor) and state_name(node) in self._state_names:
                    number = states.setdefault(state_name(node), len(states))
                    texts[node] = f"state {number}: {[*value.shape]}, {value.dtype}, {value.requires_grad}"
            elif node not in texts:  # a constant
                texts[node] = operation(node)
            return texts[node]

        def operation(node: Node) -> str:
            arguments = map_aggregate(
                (node.args, node.kwargs), lambda item: text(item) if isinstance(item, Node) else item
            )
            return f"{node.target}{arguments}"

        operations = []
        for number, node in enumerate(self._nodes[layer]):
            operations.append(operation(node))
            texts[node] = f"result {number}"
        whole = "\n".join([*operations, *map(text, self._leaving(layer))])
        return hashlib.blake2b(whole.encode(), digest_size=16).hexdigest()

    def compiled(self, layer: int, device: torch.device) -> tuple[LayerFunction, list[str]]:
        """Return the function of a layer on `device`, and the names of the state tensors that it takes.

        Raises:
            ProfileError: The layer changes a value in place that another value shares.
        """
        graph, root, made = Graph(), nn.Module(), dict[Node, Node]()
        entering, leaving = self.entering[layer], self._leaving(layer)
        for node in entering:
            made[node] = graph.placeholder(node.name)
        states = {state_name(used): used for _, used in self.uses(layer)}
        by_name = {name: graph.placeholder(used.name) for name, used in states.items()}
        self._protect(layer, graph, made)

        def of(node: Node) -> Node:
            if node not in made:
                name = state_name(node)
                if node.op == "get_attr" and name in by_name:
                    made[node] = by_name[name]
                else:  # a constant, or the body of a block in another mode
                    kept = f"kept_{len(made)}"
                    setattr(root, kept, self._kept(node, device))
                    made[node] = graph.get_attr(kept)
            return made[node]

        for node in self._nodes[layer]:
            made[node] = graph.node_copy(node, of)
            made[node].args, made[node].kwargs = placed_on(device, (made[node].args, made[node].kwargs))
        graph.output(tuple(of(node) for node in leaving))
        made_module = GraphModule(root, graph)
        keep_users_lines(made_module)
        return cast(LayerFunction, made_module.forward), list(states)

    def _protect(self, layer: int, graph: Graph, made: dict[Node, Node]) -> None:
        """Copy the entering values that a layer changes in place: they belong to the layer before."""
        changed = {root for node in self._nodes[layer] for root in self._aliases.changed_by(node)}
        for root in changed:
            shared = [node for node in self.entering[layer] if self._aliases.roots[node] is root]
            if len(shared) > 1:
                raise ProfileError(
                    f"layer {self.names[layer]}: got a change in place of a value whose views cross the cut, expected "
                    "a new tensor; write x = x + y in forward, or cut elsewhere"
                )
            for node in shared:
                made[node] = graph.call_function(torch.ops.aten.clone.default, (made[node],))

    def _kept(self, node: Node, device: torch.device) -> Tensor | nn.Module:
        """Return the value on `device` of a node that depends on no input."""
        if node.op != "get_attr":
            return self._constants.value(node, device)
        value = operator.attrgetter(str(node.target))(self._module)
        return _moved(value, device) if isinstance(value, GraphModule) else value.to(device)


def _moved(body: GraphModule, device: torch.device) -> GraphModule:
    body = copy.deepcopy(body).to(device)
    for module in body.modules():
        if isinstance(module, GraphModule):
            for node in module.graph.nodes:
                node.args, node.kwargs = placed_on(device, (node.args, node.kwargs))
            module.recompile()
    return body
