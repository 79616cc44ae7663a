"""Operations of a traced graph that depend on no input and no state, such as position numbers and causal masks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, cast, final

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_aggregate

_ATTENTION: Final = torch.ops.aten.scaled_dot_product_attention.default


@final
class Constants:
    """The constant operations among nodes; a value that others use is computed once for each device.

    Args:
        nodes: Operations in order, none of which is changed in place.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._nodes: set[Node] = set()
        self._values: dict[tuple[Node, torch.device], Tensor] = {}
        for node in nodes:
            if all(used in self._nodes for used in node.all_input_nodes) and _is_repeatable(node):
                self._nodes.add(node)

    def __contains__(self, node: Node) -> bool:
        return node in self._nodes

    def value(self, node: Node, device: torch.device) -> Tensor:
        """Return the value of a constant on `device`."""
        key = node, device
        if key not in self._values:
            self._values[key] = _computed(node, device)
        return self._values[key]

    def use_causal_attention(self, nodes: Iterable[Node]) -> None:
        """Replace constant causal masks of attention by the flag: its kernels are faster, and read no mask.

        A module that sets the flag itself for a batch without padding makes a mask while it is traced.
        """
        for node in nodes:
            if node.target is not _ATTENTION:
                continue
            names = (argument.name for argument in _ATTENTION._schema.arguments)  # noqa: SLF001
            given: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
            mask = given.get("attn_mask")
            if isinstance(mask, Node) and mask in self._nodes and _is_causal(_computed(mask, torch.device("cpu"))):
                node.args, node.kwargs = (), given | {"attn_mask": None, "is_causal": True}


def placed_on(device: torch.device, arguments: Any) -> Any:
    """Return the arguments of an operation that makes its tensors on `device`."""
    return map_aggregate(arguments, lambda item: device if isinstance(item, torch.device) else item)


def _is_repeatable(node: Node) -> bool:
    """Return whether an operation makes an equal tensor whenever it runs."""
    target = node.target
    return (
        isinstance(target, torch._ops.OpOverload)  # noqa: SLF001 -- its only name
        and not target._schema.is_mutable  # noqa: SLF001
        and torch.Tag.nondeterministic_seeded not in target.tags
        and isinstance(node.meta.get("val"), Tensor)
    )


def _computed(node: Node, device: torch.device) -> Tensor:
    values: dict[Node, Tensor] = {}

    def of(item: Any) -> Any:
        if not isinstance(item, Node):
            return item
        if item not in values:
            arguments, keywords = map_aggregate(placed_on(device, (item.args, item.kwargs)), of)
            values[item] = cast(Callable[..., Tensor], item.target)(*arguments, **keywords)
        return values[item]

    with torch.inference_mode(False), torch.no_grad():
        return cast(Tensor, of(node))


def _is_causal(mask: Tensor) -> bool:
    """Return whether a mask lets each position see itself and the positions before it."""
    return mask.dtype == torch.bool and torch.equal(mask, torch.ones_like(mask).tril())
