"""Find the places where the graph of a module is cut into layers."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, final

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.fx.node import has_side_effect

from pipesched.profiles import ProfileError


@torch.library.custom_op("pipesched::cut_point", mutates_args=())
def _cut_point() -> None:
    """Mark a place in a traced graph."""


@_cut_point.register_fake
def _() -> None:
    pass


MARK: Final = torch.ops.pipesched.cut_point.default
"""The op that marks a cut in a traced graph."""
has_side_effect(MARK)  # or the tracer would remove an op without a result


def cut_point() -> None:
    """Mark a place in a module's `forward` at which the module may be cut into stages.

    The marks of a module replace the cuts between its blocks. A call outside of tracing has no effect.
    """
    if torch.compiler.is_exporting():
        MARK()


@final
@dataclass(frozen=True, slots=True)
class Start:
    """The start of a layer: its first node in the graph, and its name."""

    node: int
    name: str


@final
class CutRule:
    """Cuts the graph of a module into layers.

    The cuts are, in this order: before the modules `names`; at `cut_point` marks; around each block, which is a child
    of the longest ModuleList or Sequential, or of another list of the same classes; around each child of the module.
    Operations between two blocks form a layer if they have parameters. All others belong to the block before or the
    next one, so that the fewest bytes cross the cut.

    Args:
        module: The whole module.
        names: Names of submodules to cut before.

    Raises:
        ProfileError: The names are no list, or the module has no submodule of such a name.
    """

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        if isinstance(names, str):
            raise ProfileError(f"cuts: got {names!r}, expected a list of names of named_modules(); try [{names!r}]")
        known = {name for name, _ in module.named_modules() if name}
        for name in names:
            if name not in known:
                raise ProfileError(f"cuts: got {name!r}, expected a name of named_modules(); try {_example(known)}")
        self._names = tuple(names)
        self._sizes = {name: p.numel() for name, p in module.named_parameters(remove_duplicate=False)}
        self._candidates = [blocks for blocks in (_blocks(module), _children(module)) if blocks]

    def starts(self, nodes: Sequence[Node]) -> list[Start]:
        """Return the starts of the layers, the first at node 0.

        Args:
            nodes: The operations of the graph, in order.

        Raises:
            ProfileError: A named module is no part of the graph, or there is no place to cut.
        """
        marks = [index for index, node in enumerate(nodes) if node.target is MARK]
        if self._names:
            starts = self._at_names(nodes)
        elif marks:
            starts = [Start(at, self._name(nodes[at:end])) for at, end in _ranges([0, *marks, len(nodes)])]
        else:
            attempts = (self._around(blocks, nodes) for blocks in self._candidates)
            starts = next((starts for starts in attempts if len(starts) > 1), [])
        if len(starts) < 2:
            raise ProfileError(
                "got a module without a place to cut, expected at least two layers; call pipesched.cut_point() in "
                "forward where a layer may end, or name submodules as cuts"
            )
        return _numbered(starts)

    def _at_names(self, nodes: Sequence[Node]) -> list[Start]:
        first: dict[str, int] = {}
        for index, node in enumerate(nodes):
            for path, _ in _modules_of(node):
                first.setdefault(path, index)
        for name in self._names:
            if name not in first:
                raise ProfileError(
                    f"cuts: got {name!r}, which does not run in forward, expected a submodule that is called; try "
                    f"{_example(filter(None, first))}"
                )
        at = sorted({first[name]: name for name in self._names}.items())
        begin = [] if at[0][0] == 0 else [Start(0, self._name(nodes[: at[0][0]]))]
        return [*begin, *(Start(index, name) for index, name in at)]

    def _around(self, blocks: frozenset[str], nodes: Sequence[Node]) -> list[Start]:
        """Return the start of each layer.

        A layer is one call of a block, or nodes between such calls that use parameters. Nodes without parameters join
        the next layer.
        """
        calls = [next(((path, call) for path, call in _modules_of(node) if path in blocks), None) for node in nodes]
        changes = [i for i in range(1, len(nodes)) if calls[i] != calls[i - 1]]
        starts: list[Start] = []
        last, pending = None, None  # call of the last layer; start of operations that belong to the next block
        for at, end in _ranges([0, *changes, len(nodes)]):
            call, begin = calls[at], at if pending is None else pending
            if call is None and not any(_is_parameter(used, self._sizes) for used in _used(nodes[at:end])):
                pending = begin
                continue
            if call is None or call != last:
                begin = _narrowest(nodes, begin, at) if starts else begin
                starts.append(Start(begin, self._name(nodes[at:end]) if call is None else call[0]))
            last, pending = call, None
        return starts

    def _name(self, nodes: Iterable[Node]) -> str:
        """Return the name of the module whose parameters are the largest that the nodes use."""
        sizes = {
            owner_name(node, used): self._sizes[state_name(used)]
            for node in nodes
            for used in node.all_input_nodes
            if _is_parameter(used, self._sizes)
        }
        return max(sizes, key=lambda name: sizes[name]) if sizes else "operations"


PREFIX: Final = "module."
"""What the names of a traced module begin with: the tracer calls it as a child of its own module."""


def state_name(node: Node) -> str:
    """Return the name in the module of the tensor that a get_attr node reads."""
    return str(node.target).removeprefix(PREFIX)


def owner_name(node: Node, used: Node) -> str:
    """Return the name of the innermost module that runs `node`; if it has none, of the owner of the tensor `used`."""
    return next((path for path, _ in reversed(_modules_of(node)) if path), state_name(used).rpartition(".")[0])


def _modules_of(node: Node) -> list[tuple[str, str]]:
    """Return (name, call) of the modules that run a node, from the outermost one."""
    stack = node.meta.get("nn_module_stack") or {}
    return [(str(path).removeprefix(PREFIX), str(call)) for call, (path, _) in stack.items() if path != PREFIX[:-1]]


def _used(nodes: Iterable[Node]) -> Iterable[Node]:
    return (used for node in nodes for used in node.all_input_nodes)


def _is_parameter(node: Node, sizes: dict[str, int]) -> bool:
    return node.op == "get_attr" and state_name(node) in sizes


def _blocks(module: nn.Module) -> frozenset[str]:
    """Return the names of the modules in the longest ModuleList or Sequential, and in others of its classes."""
    lists = {name: m for name, m in module.named_modules() if isinstance(m, (nn.ModuleList, nn.Sequential)) and len(m)}
    if not lists:
        return frozenset()
    longest = max(lists.values(), key=len)
    classes = set(map(type, longest))
    alike = [name for name, m in lists.items() if set(map(type, m)) <= classes]
    return frozenset(f"{name}.{child}".lstrip(".") for name in alike for child, _ in lists[name].named_children())


def _children(module: nn.Module) -> frozenset[str]:
    """Return the names of the children of the module, or of its only child."""
    names = [name for name, _ in module.named_children()]
    if len(names) != 1:
        return frozenset(names)
    inner = _children(module.get_submodule(names[0]))
    return frozenset(f"{names[0]}.{name}" for name in inner) or frozenset(names)


def _ranges(bounds: Sequence[int]) -> list[tuple[int, int]]:
    return [(first, last) for first, last in pairwise(bounds) if first < last]


def _narrowest(nodes: Sequence[Node], first: int, last: int) -> int:
    """Return the place from `first` to `last` where the fewest bytes are needed later; of equal ones the first."""
    if first == last:
        return first
    place = {node: index for index, node in enumerate(nodes)}
    spans = []
    for node in nodes:
        value, maker = node.meta.get("val"), node
        if isinstance(value, Tensor):
            if is_part(node):
                maker = node.all_input_nodes[0]
            until = max((place.get(user, len(nodes)) for user in node.users), default=-1)
            spans.append((place[maker], until, value.nbytes))
    return min(range(first, last + 1), key=lambda at: sum(size for made, used, size in spans if made < at <= used))


def is_part(node: Node) -> bool:
    """Return whether a node takes one part of a tuple."""
    return node.target is operator.getitem


def _numbered(starts: Iterable[Start]) -> list[Start]:
    """Return the starts; the second layer of a name is called NAME (2)."""
    seen: dict[str, int] = {}
    result = []
    for start in starts:
        count = seen[start.name] = seen.get(start.name, 0) + 1
        result.append(start if count == 1 else Start(start.node, f"{start.name} ({count})"))
    return result


def _example(names: Iterable[str]) -> str:
    return ", ".join(sorted(names, key=len)[:3]) or "another module"
