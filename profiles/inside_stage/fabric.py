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
    """A group of GPUs, evenly spread over nodes, or over the boards of one node.

    Attributes:
        per_node: GPUs of the group in one node, or on one board.
        num_nodes: Nodes, or boards, of the group.
        between: Link of a GPU to the other nodes or boards, each way.
    """

    per_node: int
    num_nodes: int
    between: Link

    @property
    def size(self) -> int:
        """The number of GPUs."""
        return self.per_node * self.num_nodes


def group_of(name: GroupName, sharding: LayerSharding, fabric: Fabric) -> GpuGroup:
    """Return a group of a stage; ranks go through the tensor group, then context, then data, as in Megatron-LM."""
    experts = sharding.expert * sharding.expert_tensor
    size, stride = {
        "tensor": (sharding.tensor, 1),
        "context": (sharding.context, sharding.tensor),
        "data": (sharding.context * sharding.data, sharding.tensor),
        "expert": (sharding.expert, sharding.expert_tensor),
        "expert_data": (max(1, sharding.num_gpus // experts), experts),
    }[name]
    per_node = max(1, min(size, fabric.node_gpus // stride))
    if per_node < size or fabric.board_gpus is None:
        return GpuGroup(per_node, -(-size // per_node), fabric.inter)
    per_board = max(1, min(size, fabric.board_gpus // stride))
    return GpuGroup(per_board, -(-size // per_board), fabric.between_boards)
