"""Values of a traced graph that share memory, and the operations that change them in place."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Final, cast, final

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import Argument

from pipesched.profiles.models.cut_points import is_part

_MAY_RETURN_INPUT: Final = tuple(
    getattr(torch.ops.aten, name).default
    for name in ("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout")
)
"""Ops whose result may be their input, though their signature does not say so: in eval mode, or with probability 0."""


@final
class Aliases:
    """The aliases among the values of a graph, also through blocks without gradients or with another precision.

    Args:
        module: The traced module.

    Attributes:
        roots: For each node, the node that made the memory of its value.
    """

    def __init__(self, module: GraphModule) -> None:
        self._module = module
        self._blocks: dict[Node, _Block] = {}
        self.roots: dict[Node, Node] = {}
        for node in module.graph.nodes:
            if (block := self._block(node)) is not None:
                self._blocks[node] = block
            self.roots[node] = self._root(node)

    def changed_by(self, node: Node) -> set[Node]:
        """Return the roots of the values that an operation changes in place."""
        if node in self._blocks:
            block = self._blocks[node]
            changed = {root for inner in block.aliases.roots for root in block.aliases.changed_by(inner)}
            written = [block.given[root] for root in changed if root in block.given]
        else:
            schema = getattr(node.target, "_schema", None)
            arguments = schema.arguments if schema is not None and schema.is_mutable else ()
            given = {a.name: value for a, value in zip(arguments, node.args, strict=False)} | node.kwargs
            written = [given.get(a.name) for a in arguments if a.alias_info is not None and a.alias_info.is_write]
        return {self.roots[value] for value in written if isinstance(value, Node)}

    def _root(self, node: Node) -> Node:
        maker = node.all_input_nodes[0] if node.all_input_nodes else node
        if is_part(node) and maker in self._blocks:
            block = self._blocks[maker]
            result = block.results[int(str(node.args[1]))]
            value = block.given.get(block.aliases.roots[result]) if isinstance(result, Node) else None
            return self.roots[value] if isinstance(value, Node) else node
        schema = getattr(node.target, "_schema", None)
        is_view = is_part(node) or node.target in _MAY_RETURN_INPUT
        is_view = is_view or (schema is not None and any(r.alias_info is not None for r in schema.returns))
        return self.roots[maker] if is_view and maker is not node else node

    def _block(self, node: Node) -> _Block | None:
        """Return the block that a node runs, or None."""
        for index, argument in enumerate(node.args):
            if isinstance(argument, Node) and argument.op == "get_attr":
                body = operator.attrgetter(str(argument.target))(self._module)
                if isinstance(body, GraphModule):
                    return _Block(body, node.args[index + 1 :])
        return None


@final
class _Block:
    """A part of the graph that runs without gradients or with another precision.

    Args:
        body: Its own graph.
        operands: The values that it receives.

    Attributes:
        aliases: The aliases of its graph.
        given: The operand of each placeholder of its graph.
        results: Its results.
    """

    def __init__(self, body: GraphModule, operands: Sequence[Argument]) -> None:
        self.aliases = Aliases(body)
        self.given = dict(zip(body.graph.find_nodes(op="placeholder"), operands, strict=True))
        self.results = cast(Sequence[Argument], body.graph.output_node().args[0])
