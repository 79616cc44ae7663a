"""Random costs and machines that several tests draw, and two nodes that they share."""

from __future__ import annotations

from random import Random

from pipesched.profiles.clusters import Cluster, Device, Link, dealt, of_nodes
from pipesched.profiles.costs import StageCost, StageCosts

BETWEEN_NODES = Link(0.5, 10.0)


def node_of_two(intra: Link = Link()) -> Cluster:  # noqa: B008 -- frozen
    """Return a node of two devices, joined by `intra`, that share one NIC to other nodes."""
    return Cluster((Device(),) * 2, intra, BETWEEN_NODES, nics=dealt(2, 1))


TWO_NODES = of_nodes(node_of_two(), 2)


def random_costs(chance: Random, num_stages: int) -> StageCosts:
    """Draw unequal stages with everything that an op may take or hold; in some draws the messages hardly matter."""
    scale = chance.choice([0.0, 0.1, 1.0, 3.0])
    stages = tuple(
        StageCost(
            chance.uniform(0.1, 2),
            chance.uniform(0.1, 4),
            chance.uniform(0.1, 2),
            chance.uniform(0, 2),
            step_s=chance.choice([0.0, chance.uniform(0, 1)]),
            copy_s=chance.uniform(0, 1),
            predict_s=chance.choice([None, chance.uniform(0, 1)]),
            average_s=chance.uniform(0, 1),
            output_bytes=int(scale * chance.randint(0, 100)),
            saved_bytes=chance.randint(0, 100),
            weight_bytes=chance.randint(0, 1000),
            optimizer_bytes=chance.randint(0, 1000),
            utilisation=chance.uniform(0.1, 1.0),
            working_bytes=chance.choice([0, chance.randint(0, 300)]),
            output_gradient_bytes=chance.choice([None, 0, int(scale * chance.randint(0, 100))]),
        )
        for _ in range(num_stages)
    )
    return StageCosts(stages, overlap=chance.choice([0.0, 0.5, 1.0]))


def random_cluster(chance: Random, num_devices: int) -> Cluster:
    """Draw devices of several speeds, and links of their own between some of them, in one direction or in both."""
    devices = tuple(Device(chance.choice([1.0, chance.uniform(0.3, 2)])) for _ in range(num_devices))
    pairs = [(a, b) for a in range(num_devices) for b in range(num_devices)]
    chosen = chance.sample(pairs, chance.randint(0, len(pairs)))
    links = tuple((a, b, Link(chance.choice([0.0, chance.uniform(0, 2)]), chance.uniform(5, 500))) for a, b in chosen)
    return Cluster(devices, Link(chance.uniform(0, 1), chance.uniform(5, 500)), links=links)
