"""PipeDream's ``graph.txt``: layers as nodes of a graph, measured on one mini-batch; read as a `Profile`.

    node2 -- Conv2d(3, 64, ...) -- forward_compute_time=22.3, backward_compute_time=6.4, activation_size=198246400.0, \
parameter_size=93184.0
    <tab>node1 -- node2

Times are milliseconds; an activation of several tensors is ``[6291456.0; 131072.0]``. The layers of the profile are in
topological order: a branch stands right before the node that joins it, the longest branch first. Every output that is
made before a cut and used behind it crosses the cut. The profile keeps the edges: partitioning reorders the layers if a
cut through the branches is better.

    0 ─┬─ 1 ── 2 ─┬─ 4        chain 0 1 2 3 4; a cut behind 2 sends the outputs of 0 and 2
       └──── 3 ───┘

PipeDream's optimizer writes the stage of each node at the end of its line: ``-- stage_id=1``. Nodes of a kind that
begins with Input read data: they are left out, with their time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from pipesched.profiles import BYTES_LIMIT, ProfileError
from pipesched.profiles.costs import UNSAID, LayerCost, LayerGraph, LayerMeasurement, Profile
from pipesched.profiles.io.model_name import graph_model
from pipesched.schedules.common import shown, written_number

_NODE = re.compile(
    r"(?P<name>\S+) -- (?P<what>.*) -- forward_compute_time=(?P<forward>[^,]*), "
    r"backward_compute_time=(?P<backward>[^,]*), activation_size=(?P<activation>[^,]*), "
    r"parameter_size=(?P<parameters>[^,\s]*)(?: -- stage_id=(?P<stage>\d+))?\s*"
)
_EDGE = re.compile(r"\t(?P<source>\S+) -- (?P<target>\S+)\s*")
_MAX_LINE = 10_000


@dataclass(frozen=True, slots=True)
class _Node:
    what: str
    forward_s: float
    backward_s: float
    output_bytes: int
    weight_bytes: int
    stage: int | None = None

    @property
    def is_input(self) -> bool:
        return self.what.startswith("Input")


def read_pipedream_graph(text: str, file: str) -> Profile:
    """Return the graph in `text` as a profile of a chain, of one micro-batch size.

    The file does not contain the size of its mini-batch, so the mini-batch counts as a micro-batch of 1. Every output
    is assumed to be kept from forward to backward, as in PipeDream's optimizer. The bytes of the optimizer's state are
    unknown, and 0.

    Raises:
        ProfileError: The text is no graph, or the graph has a cycle; the message names `file` and the line or node.
    """
    nodes, sources = _parse(text, file)
    order = _chain(nodes, sources, file)
    stages = _given_stages(order, nodes, sources, file)
    order.sort(key=lambda name: stages.get(name, 0))
    layers = []
    for name in order:
        node = nodes[name]
        measured = LayerMeasurement(
            microbatch_size=1,
            forward_s=node.forward_s,
            backward_s=node.backward_s,
            input_bytes=0,
            output_bytes=0,
            output_storage_bytes=0,
            saved_bytes=node.output_bytes,
            input_saved=False,
            output_saved=False,
            output_is_input=False,
        )
        layers.append(LayerCost(f"{name} {node.what}"[:200], node.weight_bytes, 0, 0.0, (measured,)))
    place = {name: index for index, name in enumerate(order)}
    used = {source for needed in sources.values() for source in needed}
    graph = LayerGraph(
        needs=tuple(tuple({place[source]: None for source in sources[name] if source in place}) for name in order),
        output_bytes=tuple(nodes[name].output_bytes for name in order),
        data_bytes=sum(nodes[name].output_bytes for name in used if nodes[name].is_input),
        stages=tuple(stages[name] for name in order) if stages else (),
    )
    return Profile(graph_model(file), tuple(layers), UNSAID, graph=graph).in_order(range(len(order)))


def staged_graph(text: str, file: str, stages: Sequence[int]) -> str:
    """Return the graph in `text` with the stage of each layer of its profile; input nodes are in stage 0.

    Raises:
        ProfileError: The text is no graph, or has another number of layers.
    """
    layers = [layer.name.split()[0] for layer in read_pipedream_graph(text, file).layers]
    if len(layers) != len(stages):
        raise ProfileError(f"{file}: got {len(layers)} layers, expected {len(stages)}; use the graph of the partition")
    stage_of = dict(zip(layers, stages, strict=True))
    lines = []
    for line in text.splitlines():
        match = _NODE.fullmatch(line)
        bare = line.rstrip() if match is None or match["stage"] is None else line[: line.rindex(" -- stage_id=")]
        lines.append(bare if match is None else f"{bare} -- stage_id={stage_of.get(match['name'][:200], 0)}")
    return "\n".join(lines) + "\n"


def _parse(text: str, file: str) -> tuple[dict[str, _Node], dict[str, list[str]]]:
    """Return the nodes by name, and the inputs of each."""
    nodes: dict[str, _Node] = {}
    edges: list[tuple[int, str, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        place = f"{file}: line {number}"
        if len(line) > _MAX_LINE:
            raise ProfileError(f"{place}: got {len(line)} characters, expected at most {_MAX_LINE}; is it a graph?")
        if match := _EDGE.fullmatch(line):
            edges.append((number, match["source"], match["target"]))
        elif match := _NODE.fullmatch(line):
            if match["name"] in nodes:
                raise ProfileError(
                    f"{place}: got a second node {shown(match['name'])}, expected each node once; rename it"
                )
            nodes[match["name"]] = _node(match, place)
        elif line.strip():
            raise ProfileError(
                f"{place}: got {shown(line)}, expected a node (name -- what -- forward_compute_time=.., ..) or an edge "
                "(tab, name -- name); is it a graph of PipeDream's profiler?"
            )
    sources: dict[str, list[str]] = {name: [] for name in nodes}
    for number, source, target in edges:
        for name in (source, target):
            if name not in nodes:
                raise ProfileError(
                    f"{file}: line {number}: got an edge of {shown(name)}, expected a node of the file; add its line"
                )
        sources[target].append(source)
    return nodes, sources


def _node(match: re.Match[str], place: str) -> _Node:
    sizes = match["activation"].removeprefix("[").removesuffix("]").split(";")
    return _Node(
        match["what"],
        _number(match["forward"], place, "forward_compute_time") / 1e3,
        _number(match["backward"], place, "backward_compute_time") / 1e3,
        round(sum(_number(size, place, "activation_size") for size in sizes)),
        round(_number(match["parameters"], place, "parameter_size")),
        None if match["stage"] is None else round(_number(match["stage"], place, "stage_id")),
    )


def _number(text: str, place: str, key: str) -> float:
    value = written_number(text)
    if not 0 <= value < BYTES_LIMIT:
        raise ProfileError(f"{place}: {key}: got {shown(text)}, expected a finite number of 0 or more; correct it")
    return value


def _chain(nodes: Mapping[str, _Node], sources: Mapping[str, Sequence[str]], file: str) -> list[str]:
    """Return the nodes in the order of the chain, without input nodes."""
    try:
        order = list(TopologicalSorter(sources).static_order())
    except CycleError as error:
        cycle = " -> ".join(error.args[1])
        raise ProfileError(
            f"{file}: got a cycle {cycle[:200]}, expected a graph without cycles; remove one of its edges"
        ) from error
    longest_s: dict[str, float] = {}
    for name in order:
        own_s = nodes[name].forward_s + nodes[name].backward_s
        longest_s[name] = own_s + max((longest_s[source] for source in sources[name]), default=0.0)
    used = {source for needed in sources.values() for source in needed}
    ends = sorted((name for name in order if name not in used), key=lambda name: (longest_s[name], name))
    needed = {name: sorted(set(of), key=lambda source: (-longest_s[source], source)) for name, of in sources.items()}
    chain = [name for name in dict.fromkeys(_depth_first(ends, needed)) if not nodes[name].is_input]
    if not chain:
        raise ProfileError(f"{file}: got no layers, expected at least one beside inputs; use another file")
    return chain


def _depth_first(ends: Sequence[str], needed: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield each node after all its inputs, in the order of `needed`; some nodes more than once."""
    seen: set[str] = set()
    stack = [(name, False) for name in reversed(ends)]
    while stack:
        name, is_ready = stack.pop()
        if is_ready:
            yield name
        elif name not in seen:
            seen.add(name)
            stack.append((name, True))
            stack += [(source, False) for source in reversed(needed[name])]


def _given_stages(
    order: Sequence[str], nodes: Mapping[str, _Node], sources: Mapping[str, Sequence[str]], file: str
) -> dict[str, int]:
    """Return the stage of each node from 0, without gaps; empty if the file has no stages."""
    given = {name: stage for name in order if (stage := nodes[name].stage) is not None}
    if 0 < len(given) < len(order):
        raise ProfileError(
            f"{file}: got a stage_id of {len(given)} of {len(order)} layers, expected a stage_id for each layer, or "
            "for none; add the others, or remove these"
        )
    number = {stage: index for index, stage in enumerate(sorted(set(given.values())))}
    for name in order:
        for source in sources[name]:
            if source in given and given[source] > given[name]:
                raise ProfileError(
                    f"{file}: {name[:60]}: got stage_id={given[name]}, but it needs {source[:60]} of stage "
                    f"{given[source]}, expected stages in the order of the edges; correct one stage_id"
                )
    return {name: number[stage] for name, stage in given.items()}
