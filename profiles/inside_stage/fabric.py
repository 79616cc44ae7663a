"""The groups of GPUs of a stage on the nodes of a cluster, and the seconds of their collectives."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pipesched.profiles.clusters import Cluster, Link
from pipesched.profiles.costs import LayerSharding
from pipesched.profiles.inside_stage.operators import GroupName


@dataclass(frozen=True, slots=True)
class Fabric:
    """The links of one GPU.

    Attributes:
        node_gpus: GPUs of a node.
        intra: Link to the other GPUs of the node.
        inter: The GPU's share of the links to other nodes.
        board_gpus: GPUs that `intra` connects, where a node has several boards of them; otherwise None.
        between_boards: The GPU's share of the links between the boards of a node.
    """

    node_gpus: int
    intra: Link
    inter: Link
    board_gpus: int | None = None
    between_boards: Link = field(default_factory=Link)


def fabric_of(node: Cluster) -> Fabric:
    """Return the links of one GPU of a node; GPUs that share a network interface have equal shares of it."""
    link = node.inter or node.intra
    sharing = max(map(len, node.nics), default=1)
    inter = replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / sharing)
    return Fabric(len(node.devices), node.intra, inter)


@dataclass(frozen=True, slots=True)
class GpuGroup:
    """A group of GPUs, evenly spread over nodes.

    Attributes:
        per_node: GPUs of the group in one node.
        num_nodes: Nodes of the group.
    """

    per_node: int
    num_nodes: int

    @property
    def size(self) -> int:
        """The number of GPUs."""
        return self.per_node * self.num_nodes


def linked_group(name: GroupName, sharding: LayerSharding, fabric: Fabric) -> tuple[GpuGroup, Link]:
    """Return a group of a stage, and the slower link between its parts: nodes, or boards of one node."""
    group = group_of(name, sharding, fabric.node_gpus)
    if group.num_nodes == 1 and fabric.board_gpus is not None:
        return group_of(name, sharding, fabric.board_gpus), fabric.between_boards
    return group, fabric.inter


def group_of(name: GroupName, sharding: LayerSharding, node_gpus: int) -> GpuGroup:
    """Return a group of a stage; ranks go through the tensor group, then context, then data, as in Megatron-LM."""
    match name:
        case "tensor":
            return _spread(sharding.tensor, 1, node_gpus)
        case "context":
            return _spread(sharding.context, sharding.tensor, node_gpus)
        case "data":
            return _spread(sharding.context * sharding.data, sharding.tensor, node_gpus)
        case "expert":
            return _spread(sharding.expert, sharding.expert_tensor, node_gpus)
        case "expert_data":
            experts = sharding.expert * sharding.expert_tensor
            return _spread(max(1, sharding.num_gpus // experts), experts, node_gpus)


def _spread(size: int, stride: int, node_gpus: int) -> GpuGroup:
    """Return a group of `size` GPUs that are `stride` apart."""
    per_node = max(1, min(size, node_gpus // stride))
    return GpuGroup(per_node, -(-size // per_node))
